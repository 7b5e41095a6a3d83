//! An own optimizer type; its methods are not touched.
//! has: scaler.backward_step(&loss, |name| rate_of(name))?;
//! has: env.step(action);
//! has: for v in &mut self.vars

#[distributed]
fn train() -> Result<()> {
    for (x, y) in data.train_iter(64) {
        scaler.backward_step(&loss, |name| rate_of(name))?;
    }
    while !done {
        env.step(action);
    }
    tch::no_grad(|| for v in &mut self.vars { *v -= v.grad().sign() * self.lr });
    Ok(())
}
