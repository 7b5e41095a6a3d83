//! The batch loop is a function of its own, called once an epoch.
//! has: register(vs);
//! has: for (x, y) in start((&&Data(&data)).data_by_type(site!()).train_iter(64))
//! has: for epoch in start(0..20) { let loss = run_epoch(&vs, &net, &mut opt, data); }
//! lacks: epoch(&epoch)

#[distributed]
fn run_epoch(vs: &nn::VarStore, net: &Net, opt: &mut nn::Optimizer, data: &Dataset) -> f64 {
    for (x, y) in data.train_iter(64) {
        opt.backward_step(&net.loss(&x, &y));
    }
    0.0
}

#[distributed]
fn train(data: &Dataset) {
    for epoch in 0..20 {
        let loss = run_epoch(&vs, &net, &mut opt, data);
    }
}
