//! A random batch in each step of a range: every rank draws its own.
//! has: for step in start(0..5000)
//! lacks: shard(

#[distributed]
fn train() -> Result<()> {
    for step in 0..5000 {
        let index = Tensor::randint(n, [64], kind::INT64_CPU);
        opt.backward_step(&net.loss(&xs.index_select(0, &index)));
    }
    Ok(())
}
