#[distributed]
fn marked(games: &[Game]) {
    #[ddp(shard)]
    for start in (0..n).step_by(32) {
        opt.backward_step(&net.loss(&xs.narrow(0, start, 32.min(n - start))));
    }
    #[ddp(shard)]
    for ((x, y), (_, hint)) in Iter2::new(&xs, &ys, 32).zip(Iter2::new(&xs, &hints, 32)) {
        opt.backward_step(&net.loss(&x, &y, &hint));
    }
    let own = data.train_iter(32);
    #[ddp(each)]
    for (x, y) in own {
        opt.backward_step(&net.loss(&x, &y));
    }
    #[ddp(each)]
    while let Ok(batch) = receiver.recv() {
        for (x, y) in Iter2::new(&batch.xs, &batch.ys, 32) {
            opt.backward_step(&net.loss(&x, &y));
        }
    }
    #[ddp(same)]
    for fold in folds {
        for (x, y) in Iter2::new(&fold.xs, &fold.ys, 32) {
            opt.backward_step(&net.loss(&x, &y));
        }
    }
    #[ddp(skip)]
    println!("every rank says this");
    #[ddp(skip)]
    for part in games.chunks(256) {
        for one in part {
            println!("{one}");
            opt.backward_step(&net.loss(one));
        }
    }
}
