//! A stream whose length nobody knows: asked.
//! refused: cannot tell how to share this loop; write #[ddp(each)] if every rank draws its own batches

#[distributed]
fn train() -> Result<()> {
    while let Ok(batch) = receiver.recv() {
        opt.backward_step(&net.loss(&batch));
    }
    Ok(())
}
