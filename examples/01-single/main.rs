//! Trains a small convolutional net on images of handwritten digits.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use ddp_examples::data;
use indicatif::{ProgressBar, ProgressStyle};
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::vision::dataset::Dataset;
use tch::{Device, Tensor};

/// Trains a small convolutional net on images of handwritten digits.
#[derive(Parser)]
struct Args {
    /// A folder with the files of MNIST (default: small digits that are built in)
    #[arg(long)]
    data: Option<PathBuf>,
    /// How often to go through the training images
    #[arg(long, default_value_t = 20)]
    epochs: u32,
    /// Images a step
    #[arg(long, default_value_t = 64)]
    batch: i64,
    /// Learning rate
    #[arg(long, default_value_t = 2e-3)]
    lr: f64,
    /// Seed of the weights and of the order of the images
    #[arg(long, default_value_t = 1)]
    seed: i64,
}

/// Two convolutions and two linear layers, for square images of `side` pixels.
fn net(vs: nn::Path, side: i64) -> impl ModuleT {
    let same = nn::ConvConfig { padding: 1, ..Default::default() };
    let features = 64 * (side / 4).pow(2);
    nn::seq_t()
        .add_fn(move |xs| xs.view([-1, 1, side, side]))
        .add(nn::conv2d(&vs / "conv1", 1, 32, 3, same))
        .add_fn(|xs| xs.relu().max_pool2d_default(2))
        .add(nn::conv2d(&vs / "conv2", 32, 64, 3, same))
        .add_fn(|xs| xs.relu().max_pool2d_default(2).flat_view())
        .add(nn::linear(&vs / "hidden", features, 128, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(&vs / "digits", 128, 10, Default::default()))
}

fn train(args: &Args, data: &Dataset) -> Result<()> {
    tch::manual_seed(args.seed);
    let vs = nn::VarStore::new(Device::cuda_if_available());
    let net = net(vs.root(), data::side(data));
    let mut opt = nn::Adam::default().build(&vs, args.lr)?;

    let bar = ProgressBar::new(args.epochs.into());
    bar.set_style(ProgressStyle::with_template("{bar:40} epoch {pos} of {len}, {msg}")?);
    let start = Instant::now();
    for _ in 0..args.epochs {
        let mut loss = Tensor::new();
        for (xs, ys) in data.train_iter(args.batch).shuffle().to_device(vs.device()) {
            loss = net.forward_t(&xs, true).cross_entropy_for_logits(&ys);
            opt.backward_step(&loss);
        }
        bar.set_message(format!("loss {:.4}", f64::try_from(loss)?));
        bar.inc(1);
    }
    let samples = f64::from(args.epochs) * data.train_labels.numel() as f64;
    let speed = samples / start.elapsed().as_secs_f64();
    bar.finish();

    let (images, labels) = (&data.test_images, &data.test_labels);
    let accuracy = net.batch_accuracy_for_logits(images, labels, vs.device(), 1024);
    println!("accuracy {:.2} %", 100.0 * accuracy);
    println!("samples/s {speed:.0}");
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    let data = data::load(args.data.as_deref())?;
    train(&args, &data)
}
