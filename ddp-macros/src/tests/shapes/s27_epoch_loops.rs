//! Epoch loops of every form around a shared loop need no mark.
//! has: synchronize(); while epoch < config.epochs { epoch(&epoch); for
//! has: synchronize(); loop { for
//! has: synchronize(); loop { epoch(&self.state.epoch); for
//! has: while run < n { let mut epoch = 0; for
//! has: for epoch in start(first..n) { epoch(&epoch);

#[distributed]
fn train() -> Result<()> {
    while epoch < config.epochs {
        for (x, y) in data.train_iter(64).shuffle() {
            opt.backward_step(&net.loss(&x, &y));
        }
        epoch += 1;
    }
    loop {
        for (x, y) in data.train_iter(64).shuffle() {
            opt.backward_step(&net.loss(&x, &y));
        }
        if patience == 0 {
            break;
        }
    }
    loop {
        for (x, y) in data.train_iter(64).shuffle() {
            opt.backward_step(&net.loss(&x, &y));
        }
        if done {
            self.state.epoch += 1;
        }
    }
    while run < n {
        let mut epoch = 0;
        for (x, y) in data.train_iter(64).shuffle() {
            opt.backward_step(&net.loss(&x, &y));
        }
        epoch += 1;
        run += 1;
    }
    for epoch in first..n {
        for (x, y) in data.train_iter(64).shuffle() {
            opt.backward_step(&net.loss(&x, &y));
        }
    }
    Ok(())
}
