//! Trains with checkpoints, and goes on where it stopped: send it SIGTERM (or Ctrl-C to `cargo ddp run`) and start it again.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use ddp_examples::data;
use ddp_runtime::metric::{Accuracy, Mean, Metric};
use ddp_runtime::{Checkpoints, distributed, should_stop, stop_on_signals};
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::vision::dataset::Dataset;
use tch::{Device, Tensor};

/// Trains a small net on images of handwritten digits, with checkpoints.
#[derive(Parser)]
struct Args {
    /// A folder with the files of MNIST (default: small digits that are built in)
    #[arg(long)]
    data: Option<PathBuf>,
    /// The folder of the checkpoints
    #[arg(long, default_value = "runs/digits")]
    run: PathBuf,
    /// How often to go through the training images
    #[arg(long, default_value_t = 20)]
    epochs: u32,
    /// Steps from one checkpoint to the next
    #[arg(long, default_value_t = 50)]
    every: u64,
}

fn net(vs: nn::Path, pixels: i64) -> impl ModuleT {
    nn::seq_t()
        .add(nn::linear(&vs / "hidden", pixels, 128, Default::default()))
        .add_fn(Tensor::relu)
        .add_fn_t(|xs, train| xs.dropout(0.2, train))
        .add(nn::linear(&vs / "digits", 128, 10, Default::default()))
}

#[distributed]
fn train(args: &Args, data: &Dataset) -> Result<()> {
    tch::manual_seed(1);
    let vs = nn::VarStore::new(Device::cuda_if_available());
    let net = net(vs.root(), data.train_images.size()[1]);
    let mut opt = nn::Adam::default().build(&vs, 1e-3)?;

    let checkpoints = Checkpoints::new(&args.run).keep(2);
    let mut best = 0.0;
    let progress = checkpoints.resume(|saved| {
        saved.store("model", &vs)?;
        saved.optimizer("adam", &mut opt)?;
        best = saved.value("best")?;
        Ok(())
    })?;
    if progress.is_resumed() {
        println!("goes on in epoch {} after step {}", progress.epoch(), progress.step());
    }

    for epoch in progress.epochs(args.epochs) {
        let mut loss = Mean::new();
        for (xs, ys) in progress.batches(data.train_iter(64).shuffle().to_device(vs.device())) {
            let batch_loss = net.forward_t(&xs, true).cross_entropy_for_logits(&ys);
            opt.backward_step(&batch_loss);
            loss.update(f64::try_from(&batch_loss)?, xs.size()[0]);
            let stop = should_stop(false);
            if stop || progress.step() % args.every == 0 {
                checkpoints.save(&progress, |to| {
                    to.store("model", &vs)?;
                    to.optimizer("adam", &opt)?;
                    to.value("best", &best)
                })?;
            }
            if stop {
                println!("stopped after step {}", progress.step());
                return Ok(());
            }
        }
        let mut accuracy = Accuracy::new();
        let images = data.test_images.to_device(vs.device());
        let logits = tch::no_grad(|| net.forward_t(&images, false));
        accuracy.update(&logits, &data.test_labels.to_device(vs.device()))?;
        let (loss, accuracy) = (loss.compute()?, accuracy.compute()?);
        best = f64::max(best, accuracy);
        println!("epoch {epoch}: loss {loss:.4}, accuracy {:.2} %", 100.0 * accuracy);
    }
    println!("best accuracy {:.2} %", 100.0 * best);
    Ok(())
}

fn main() -> Result<()> {
    // One process too: Ctrl-C ends it, SIGTERM lets it save first.
    stop_on_signals()?;
    let args = Args::parse();
    let data = data::load(args.data.as_deref())?;
    train(&args, &data)
}
