//! Accumulation, over a variable bound to batches.
//! has: let batches = (&&Data(&data)).data_by_type(site!()).train_iter(64);
//! has: for (i, (x, y)) in start(batches.enumerate())

#[distributed]
fn train() -> Result<()> {
    let batches = data.train_iter(64);
    for (i, (x, y)) in batches.enumerate() {
        (net.loss(&x, &y) / 4.).backward();
        if (i + 1) % 4 == 0 {
            opt.step();
            opt.zero_grad();
        }
    }
    Ok(())
}
