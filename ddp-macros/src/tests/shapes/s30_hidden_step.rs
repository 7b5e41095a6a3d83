//! A `continue` that may stand after the step, as the step cannot be seen, and a `break` where nothing trains.
//! has: if f64::try_from(&loss)?.is_nan() { continue; }
//! has: if f64::try_from(&net.loss(&x, &y))? > 1.0 { break; }

#[distributed]
fn train() -> Result<()> {
    let mut step = |x: &Tensor, y: &Tensor| opt.backward_step(&net.loss(x, y));
    for (x, y) in data.train_iter(64) {
        let loss = self.learn(&x, &y);
        if f64::try_from(&loss)?.is_nan() {
            continue;
        }
        count += 1;
    }
    for (x, y) in data.train_iter(64) {
        step(&x, &y);
        if f64::try_from(&net.loss(&x, &y))?.is_nan() {
            continue;
        }
        other.backward_step(&loss);
    }
    for (x, y) in Iter2::new(&val_x, &val_y, 64) {
        if f64::try_from(&net.loss(&x, &y))? > 1.0 {
            break;
        }
    }
    Ok(())
}
