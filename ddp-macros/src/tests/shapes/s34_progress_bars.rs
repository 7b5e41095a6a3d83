//! Progress bars are hidden, never removed.
//! has: let bar = bar(ProgressBar::new((&&Data(&data)).data_by_type(site!()).train_iter(64).count() as u64));
//! has: for i in bar.wrap_iter(0..n)
//! has: let accuracy = bar.suspend(|| evaluate(&net));
//! has: start(bar.wrap_iter((&&Data(&data)).data_by_type(site!()).train_iter(64)))

#[distributed]
fn train() -> Result<()> {
    let bar = ProgressBar::new(data.train_iter(64).count() as u64);
    bar.set_message(format!("{:.3}", loss.double_value(&[])));
    let accuracy = bar.suspend(|| evaluate(&net));
    for i in bar.wrap_iter(0..n) {
        step(i);
    }
    for (x, y) in bar.wrap_iter(data.train_iter(64)) {
        opt.backward_step(&net.loss(&x, &y));
    }
    Ok(())
}
