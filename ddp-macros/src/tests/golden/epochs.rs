#[distributed]
fn epochs() {
    'epochs: for epoch in start..n {
        for (x, y) in data.train_iter(64).shuffle() {
            step(&x, &y);
            if should_stop(late()) {
                break 'epochs;
            }
        }
    }
    while epoch < config.epochs {
        for (x, y) in data.train_iter(64).shuffle() {
            step(&x, &y);
        }
        epoch += 1;
    }
    for fold in 0..5 {
        for epoch in 0..10 {
            for (x, y) in data.train_iter(64) {
                step(&x, &y);
            }
        }
    }
    for path in &paths {
        for (x, y) in load(path).train_iter(64) {
            step(&x, &y);
        }
    }
    for step in 0..5000 {
        let index = Tensor::randint(n, [64], kind::INT64_CPU);
        opt.backward_step(&net.loss(&xs.index_select(0, &index)));
    }
    for i in bar.wrap_iter(0..n) {
        opt.backward_step(&net.loss(&xs));
    }
    #[cfg(feature = "endless")]
    loop {
        for (x, y) in data.train_iter(64) {
            step(&x, &y);
        }
    }
}
