#[distributed(batch = "global")]
fn train(loader: Loader) {
    for epoch in 0..9 {
        #[ddp(shard)]
        for (x, y) in loader.batches(epoch) {
            opt.backward_step(&net.loss(&x, &y));
        }
    }
}
