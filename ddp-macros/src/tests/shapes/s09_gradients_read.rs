//! Gradients are read or changed between backward and step.
//! has: for v in opt.trainable_variables().iter().filter(|v| v.grad().defined())
//! lacks: start(opt

#[distributed]
fn train() -> Result<()> {
    for (x, y) in data.train_iter(64) {
        loss.backward();
        for v in opt.trainable_variables().iter().filter(|v| v.grad().defined()) {
            let _ = v.grad().clamp_(-0.1, 0.1);
        }
        opt.step();
    }
    Ok(())
}
