//! A step in a closure, in no_grad, behind a local macro.
//! has: for (x, y) in start((&&Data(&data)).data_by_type(site!()).train_iter(64))
//! has: descend!(opt, loss);
//! has: tch::no_grad(|| { opt.step(); let _ = log_std.clamp_(-5., 2.); });

#[distributed]
fn train() -> Result<()> {
    macro_rules! descend {
        ($opt:expr, $loss:expr) => {{
            $opt.zero_grad();
            $loss.backward();
        }};
    }
    for (x, y) in data.train_iter(64) {
        descend!(opt, loss);
        tch::no_grad(|| {
            opt.step();
            let _ = log_std.clamp_(-5., 2.);
        });
    }
    Ok(())
}
