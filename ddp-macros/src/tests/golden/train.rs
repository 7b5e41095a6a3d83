#[distributed]
fn train(data: &Dataset, epochs: i64) -> Result<()> {
    let vs = nn::VarStore::new(Device::cuda_if_available());
    let net = Net::new(&vs.root());
    let mut opt = nn::Adam::default().build(&vs, 1e-3)?;
    for epoch in 1..=epochs {
        for (x, y) in data.train_iter(64).shuffle().to_device(vs.device()) {
            let loss = net.forward_t(&x, true).cross_entropy_for_logits(&y);
            opt.backward_step(&loss);
        }
        println!("{epoch}: {:.4}", net.accuracy(&data.test_images)?);
    }
    vs.save("net.ot")?;
    Ok(())
}
