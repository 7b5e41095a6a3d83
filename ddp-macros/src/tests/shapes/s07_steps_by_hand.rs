//! zero_grad, backward and step by hand.
//! has: loss.backward(); opt.clip_grad_norm(1.0); opt.step(); opt.zero_grad();

#[distributed]
fn train() -> Result<()> {
    for (x, y) in data.train_iter(64) {
        let loss = net.forward(&x).mse_loss(&y, Reduction::Mean);
        loss.backward();
        opt.clip_grad_norm(1.0);
        opt.step();
        opt.zero_grad();
    }
    Ok(())
}
