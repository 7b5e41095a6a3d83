//! `?`, `return` and `bail!` in the loop.
//! has: if f64::try_from(&loss)?.is_nan() { anyhow::bail!("diverged in epoch {epoch}"); }
//! has: return __ddp_scope.leave_result(Err(stopped()));

#[distributed]
fn train() -> Result<()> {
    for (x, y) in data.train_iter(64) {
        opt.backward_step(&loss);
        if f64::try_from(&loss)?.is_nan() {
            anyhow::bail!("diverged in epoch {epoch}");
        }
        if stop {
            return Err(stopped());
        }
    }
    Ok(())
}
