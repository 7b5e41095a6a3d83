//! A `continue` before the backward, voted; one after the step; one by a count.
//! has: if skip_if(!f64::try_from(&loss)?.is_finite()) { continue; }

#[distributed]
fn train() -> Result<()> {
    for (i, (x, y)) in data.train_iter(64).enumerate() {
        if i < first {
            continue;
        }
        let loss = net.loss(&x, &y);
        if skip_if(!f64::try_from(&loss)?.is_finite()) {
            continue;
        }
        opt.backward_step(&loss);
        if f64::try_from(&loss)? > 1.0 {
            continue;
        }
        log(&loss);
    }
    Ok(())
}
