//! A loss that is a sum is not rescaled.
//! has: let summed = error.square().sum(Kind::Float);
//! has: let scaled = &summed / BATCH as f64;

#[distributed]
fn train() -> Result<()> {
    for (x, y) in data.train_iter(64) {
        let summed = error.square().sum(Kind::Float);
        let scaled = &summed / BATCH as f64;
        opt.backward_step(&scaled);
    }
    Ok(())
}
