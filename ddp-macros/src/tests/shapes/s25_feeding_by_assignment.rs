//! What feeds a marked loop by an assignment is not shared again.
//! has: self.batches = data.train_iter(64);
//! has: for (x, y) in start((&&Items::new(&mut self.batches)).shard())
//! has: it = Iter2::new(&xs, &ys, 32);
//! has: other = (&&Data(&data)).data_by_type(site!()).train_iter(64);

#[distributed]
fn train() {
    let mut it;
    self.batches = data.train_iter(64);
    #[ddp(shard)]
    for (x, y) in &mut self.batches {
        opt.backward_step(&net.loss(&x, &y));
    }
    it = Iter2::new(&xs, &ys, 32);
    #[ddp(each)]
    for (x, y) in it {
        opt.backward_step(&net.loss(&x, &y));
    }
    other = data.train_iter(64);
}
