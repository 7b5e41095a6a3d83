//! Leaving early on the rank's own loss: by `return`, and at the end of a `while`.
//! refused: each rank would decide this `return` alone; write `if should_stop(cond) { return .. }`
//! refused: each rank would decide the end of this loop alone; write `while agree(cond)`

#[distributed]
fn train() -> Result<f64> {
    let mut last = 1.0;
    while last > 0.1 {
        for (x, y) in data.train_iter(64) {
            let loss = net.loss(&x, &y);
            opt.backward_step(&loss);
            last = f64::try_from(&loss)?;
            if last.is_nan() {
                return Err(Error::Diverged);
            }
            if last > 9.0 {
                bail!("diverged");
            }
            if last < 0.01 {
                return Ok(last);
            }
        }
    }
    Ok(last)
}
