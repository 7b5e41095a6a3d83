//! A step on a thread of its own.
//! refused: this step runs on a thread of its own; step on the marked function's thread

#[distributed]
fn train() -> Result<()> {
    std::thread::spawn(move || worker_opt.backward_step(&loss));
    Ok(())
}
