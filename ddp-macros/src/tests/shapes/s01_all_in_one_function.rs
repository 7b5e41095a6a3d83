//! Store, optimizer, loop and step in one function.
//! has: let vs = store(nn::VarStore::new(device(Device::cuda_if_available())));
//! has: for epoch in start(1..=epochs) { epoch(&epoch);
//! has: for (x, y) in (&&Data(&data)).data_by_type(site!()).train_iter(64).shuffle().to_device(vs.device())

#[distributed]
fn train() -> Result<()> {
    let vs = nn::VarStore::new(Device::cuda_if_available());
    let net = Net::new(&vs.root());
    let mut opt = nn::Adam::default().build(&vs, 1e-3)?;
    for epoch in 1..=epochs {
        for (x, y) in data.train_iter(64).shuffle().to_device(vs.device()) {
            opt.backward_step(&net.forward_t(&x, true).cross_entropy_for_logits(&y));
        }
    }
    Ok(())
}
