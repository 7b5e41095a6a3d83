//! Batches taken by hand from a known iterator.
//! has: synchronize(); while let Some((x, y)) = batches.next() {
//! has: let mut batches = (&&Data(&data)).data_by_type(site!()).train_iter(64);

#[distributed]
fn train() {
    let mut batches = data.train_iter(64);
    while let Some((x, y)) = batches.next() {
        opt.backward_step(&net.loss(&x, &y));
    }
}
