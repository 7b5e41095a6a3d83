//! The same by a vote, and by a figure of all ranks.
//! has: if should_stop(last < 0.01) { return __ddp_scope.leave_result(Ok(last)); }
//! has: while mean(last) > 0.1 {

#[distributed]
fn train() -> Result<f64> {
    let mut last = 1.0;
    while mean(last) > 0.1 {
        for (x, y) in data.train_iter(64) {
            let loss = net.loss(&x, &y);
            opt.backward_step(&loss);
            last = f64::try_from(&loss)?;
            if should_stop(last < 0.01) {
                return Ok(last);
            }
        }
    }
    Ok(last)
}
