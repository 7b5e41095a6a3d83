//! A stream whose length nobody knows, marked.
//! has: synchronize(); while let Ok(batch) = receiver.recv() { step(&batch); opt.backward_step(&batch); }

#[distributed]
fn train() -> Result<()> {
    #[ddp(each)]
    while let Ok(batch) = receiver.recv() {
        step(&batch);
        opt.backward_step(&batch);
    }
    Ok(())
}
