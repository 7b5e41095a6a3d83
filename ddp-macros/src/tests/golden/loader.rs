#[distributed]
fn train(loader: &DataLoader<(Tensor, Tensor)>, own: &Own, opt: &mut Optimizer) -> Result<()> {
    for epoch in 0..10 {
        for batch in loader {
            let (x, y) = batch?;
            opt.backward_step(&loss(&x, &y));
        }
        for batch in loader.iter().take(5) {
            let (x, y) = batch?;
            opt.backward_step(&loss(&x, &y));
        }
        for (k, batch) in own.loader.batches().enumerate() {
            let (x, y) = batch?;
            opt.backward_step(&loss(&x, &y));
        }
        #[ddp(shard)]
        for batch in own.stream.batches() {
            opt.backward_step(&own.loss(&batch));
        }
    }
    let right = DataLoader::builder(own.test()).evaluation().build()?;
    let mut hits = 0.0;
    for batch in &right {
        let (x, y) = batch?;
        hits += own.hits(&x, &y);
    }
    for batch in dispatch(|| own.lines(), Dispatch::Split) {
        opt.backward_step(&own.loss(&batch?));
    }
    let count = own.batches();
    println!("{} of {count}", sum(hits));
    Ok(())
}
