//! The step in a helper that gets the optimizer.
//! has: for (x, y) in start((&&Data(&data)).data_by_type(site!()).train_iter(64))
//! has: update(&net, &mut opt, &x, &y);

#[distributed]
fn train() -> Result<()> {
    for (x, y) in data.train_iter(64) {
        update(&net, &mut opt, &x, &y);
    }
    Ok(())
}
