//! Descent by hand on raw leaves.
//! has: for _ in start(0..200) {
//! lacks: shard(

#[distributed]
fn train() -> Result<()> {
    let mut w = Tensor::randn([8, 1], kind::FLOAT_CPU).set_requires_grad(true);
    for _ in 0..200 {
        w.zero_grad();
        x.matmul(&w).mse_loss(&y, Reduction::Mean).backward();
        tch::no_grad(|| w -= w.grad() * 0.1);
    }
    Ok(())
}
