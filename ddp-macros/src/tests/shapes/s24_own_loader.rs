//! An own loader type, marked.
//! has: for batch in start((&&Items::new(Loader::open(&path)?.shuffled(epoch))).shard()) { let batch = batch?;

#[distributed]
fn train() -> Result<()> {
    #[ddp(shard)]
    for batch in Loader::open(&path)?.shuffled(epoch) {
        let batch = batch?;
        opt.backward_step(&net.loss(&batch.x, &batch.y));
    }
    Ok(())
}
