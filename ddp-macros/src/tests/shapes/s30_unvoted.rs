//! A `continue` before the backward, unvoted.
//! refused: each rank would decide this `continue` alone; write `if skip_if(cond) { continue }`

#[distributed]
fn train() -> Result<()> {
    for (x, y) in data.train_iter(64) {
        let loss = net.loss(&x, &y);
        if !f64::try_from(&loss)?.is_finite() {
            continue;
        }
        opt.backward_step(&loss);
    }
    Ok(())
}
