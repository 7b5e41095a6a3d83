//! The full batch in every step: accepted.
//! has: for epoch in start(1..200)
//! lacks: shard(

#[distributed]
fn train() -> Result<()> {
    for epoch in 1..200 {
        let loss = net.forward(&data.train_images).cross_entropy_for_logits(&data.train_labels);
        opt.backward_step(&loss);
        history[epoch] = f64::try_from(&loss)?;
    }
    Ok(())
}
