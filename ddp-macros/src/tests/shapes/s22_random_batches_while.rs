//! A random batch in each step of a `while` or `loop`: asked.
//! refused: cannot tell how to share this loop; write #[ddp(each)] if every rank draws its own batches
//! refused: cannot tell how to share this loop; write #[ddp(each)] if every rank draws its own batches

#[distributed]
fn train() -> Result<()> {
    while step < 5000 {
        let index = Tensor::randint(n, [64], kind::INT64_CPU);
        opt.backward_step(&net.loss(&xs.index_select(0, &index)));
        step += 1;
    }
    loop {
        opt.backward_step(&net.loss(&replay.sample(64)));
    }
    Ok(())
}
