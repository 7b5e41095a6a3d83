//! A step that only some ranks would take; one in both branches, after a vote, and marked `skip`, is taken.
//! refused: each rank would decide this step alone; write `if skip_if(!cond) { continue }` before it
//! refused: each rank would decide this step alone; write `if skip_if(!cond) { continue }` before it

#[distributed]
fn train() -> Result<()> {
    for (x, y) in data.train_iter(64) {
        let loss = net.loss(&x, &y);
        let value = f64::try_from(&loss)?;
        if value.is_finite() {
            opt.backward_step(&loss);
        }
        loss.backward();
        if value > 9.0 {
            skipped += 1;
        } else {
            opt.step();
        }
        if value > 1.0 {
            opt.backward_step(&loss);
        } else {
            other.backward_step(&loss);
        }
        if agree(value.is_finite()) {
            opt.step();
        }
        #[ddp(skip)]
        if value.is_finite() {
            opt.step();
        }
    }
    Ok(())
}
