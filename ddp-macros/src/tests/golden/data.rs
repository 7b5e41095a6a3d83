#[distributed]
fn iterators(xs: &Tensor, ys: &Tensor) {
    for (x, y) in Iter2::new(&xs, &ys, 32).to_device(device).shuffle() {
        step(&x, &y);
    }
    for text in corpus.iter_shuffle(SEQ + 1, 16) {
        step_text(&text);
    }
    let mut it = tch::data::Iter2::f_new(&xs, &ys, 32)?;
    it.shuffle().return_smaller_last_batch();
    for (i, (x, y)) in it.enumerate().take(50) {
        step(&x, &y);
    }
    self.data().train_iter(32).for_each(|(x, y)| step(&x, &y));
    let n = data.train_iter(32).count();
    for (x, y) in data.test_iter(256) {
        right += count_right(&net, &x, &y);
    }
}
