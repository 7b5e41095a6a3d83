//! tch's iterators, also in a variable and with modifiers.
//! has: for (x, y) in start(iter2(Iter2::new, site!(), &xs, &ys, 32).to_device(device).shuffle())
//! has: for text in start((&&Data(&corpus)).data_by_type(site!()).iter_shuffle(SEQ + 1, 16))
//! has: for (i, (x, y)) in start(it.enumerate().take(50))
//! has: (&&Data(&data)).data_by_type(site!()).train_iter(32).for_each(
//! has: let n = (&&Data(&data)).data_by_type(site!()).train_iter(32).count();
//! has: for batch in start(&mut it)

#[distributed]
fn train() -> Result<()> {
    for (x, y) in Iter2::new(&xs, &ys, 32).to_device(device).shuffle() {
        step(&x, &y);
    }
    for text in corpus.iter_shuffle(SEQ + 1, 16) {
        step_text(&text);
    }
    let mut it = Iter2::new(&xs, &ys, 32);
    it.shuffle().return_smaller_last_batch();
    for (i, (x, y)) in it.enumerate().take(50) {
        step(&x, &y);
    }
    data.train_iter(32).for_each(|(x, y)| step(&x, &y));
    let n = data.train_iter(32).count();
    let mut it = Iter2::new(&xs, &ys, 32);
    for batch in &mut it {
        opt.backward_step(&net.loss(batch));
    }
    Ok(())
}
