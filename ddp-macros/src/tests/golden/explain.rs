/// Trains a net.
#[distributed(explain)]
fn train(vs: &nn::VarStore, data: &Dataset) -> Result<()> {
    let device = Device::Cuda(0);
    tch::manual_seed(1);
    for epoch in 0..9 {
        for (x, y) in data.train_iter(64) {
            opt.backward_step(&net.loss(&x, &y));
        }
        println!("{epoch}: {}", dbg!(epoch));
        vs.save("last.ot")?;
    }
    std::fs::create_dir("runs")?;
    while self.epoch < 9 {
        for x in corpus.iter_shuffle(8, 4).progress() {
            opt.backward_step(&net.text_loss(&x));
        }
        log!(Level::Info, "epoch {}", self.epoch);
        self.epoch += 1;
    }
    #[ddp(each)]
    loop {
        opt.backward_step(&net.sample());
    }
}
