//! Learning rates and schedules are left as written.
//! has: opt.set_lr(base * (step as f64 / 500.).min(1.) * 0.97f64.powi(epoch));
//! has: scheduler.step();
//! lacks: start(0..9)

#[distributed]
fn train() -> Result<()> {
    for epoch in 0..9 {
        opt.set_lr(base * (step as f64 / 500.).min(1.) * 0.97f64.powi(epoch));
        opt.set_lr_group(1, base * 0.1);
        scheduler.step();
    }
    while warm {
        adjust_lr(&mut opt, epoch);
        scheduler.step();
    }
    Ok(())
}
