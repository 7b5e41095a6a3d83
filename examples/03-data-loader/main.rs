//! Trains on images that are altered anew whenever they are loaded, by threads that read ahead of the training.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use ddp_examples::data;
use ddp_runtime::data::{DataLoader, Dataset, SharedTensor, TensorDataset, Workers, sample_seed};
use ddp_runtime::{distributed, sum};
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::{Device, Kind, TchError, Tensor};

/// Trains a small net on images of handwritten digits that are shifted at random.
#[derive(Parser)]
struct Args {
    /// A folder with the files of MNIST (default: small digits that are built in)
    #[arg(long)]
    data: Option<PathBuf>,
    /// How often to go through the training images
    #[arg(long, default_value_t = 20)]
    epochs: u32,
    /// Images a step, on each rank
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Threads of each rank that load images (default: what the host has)
    #[arg(long)]
    workers: Option<usize>,
    /// Learning rate
    #[arg(long, default_value_t = 2e-3)]
    lr: f64,
}

/// Images that are shifted by up to one pixel each time they are loaded.
struct Shifted {
    images: SharedTensor,
    labels: Vec<i64>,
    side: i64,
}

impl Dataset for Shifted {
    type Sample = (Tensor, i64);
    type Error = TchError;

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn get(&self, index: usize) -> Result<Self::Sample, TchError> {
        // The same on any number of ranks and threads, and another in each epoch.
        let seed = sample_seed();
        let (down, right) = ((seed % 3) as i64 - 1, (seed / 3 % 3) as i64 - 1);
        let image = self.images.row(index)?.f_view([self.side, self.side])?;
        Ok((image.f_roll([down, right], [0, 1])?.f_flatten(0, -1)?, self.labels[index]))
    }
}

fn net(vs: nn::Path, side: i64) -> impl ModuleT {
    nn::seq_t()
        .add(nn::linear(&vs / "hidden", side * side, 256, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(&vs / "digits", 256, 10, Default::default()))
}

#[distributed]
fn train(args: &Args) -> Result<()> {
    let digits = data::load(args.data.as_deref())?;
    let side = data::side(&digits);
    let images = SharedTensor::f_new(&digits.train_images)?;
    let labels = Vec::<i64>::try_from(&digits.train_labels)?;
    let workers = args.workers.map_or(Workers::Auto, Workers::Count);
    let loader = DataLoader::builder(Shifted { images, labels, side })
        .batch_size(args.batch)
        .shuffle(true)
        .num_workers(workers)
        .build()?;
    let test = TensorDataset::new((digits.test_images, digits.test_labels))?;
    let test = DataLoader::builder(test).batch_size(256).evaluation().build()?;

    tch::manual_seed(1);
    let vs = nn::VarStore::new(Device::cuda_if_available());
    let net = net(vs.root(), side);
    let mut opt = nn::Adam::default().build(&vs, args.lr)?;
    for epoch in 0..args.epochs {
        let mut last = Tensor::new();
        for batch in &loader {
            let (xs, ys) = batch?;
            let (xs, ys) = (xs.to_device(vs.device()), ys.to_device(vs.device()));
            last = net.forward_t(&xs, true).cross_entropy_for_logits(&ys);
            opt.backward_step(&last);
        }
        println!("epoch {epoch}, loss {:.4}", f64::try_from(last)?);
    }

    // Each rank has its own part of the test images; the figure is that of all.
    let (mut right, mut count) = (0.0, 0.0);
    for batch in &test {
        let (xs, ys) = batch?;
        let guess = net.forward_t(&xs.to_device(vs.device()), false).argmax(-1, false);
        let hits = guess.eq_tensor(&ys.to_device(vs.device())).sum(Kind::Double);
        right += f64::try_from(hits)?;
        count += ys.numel() as f64;
    }
    println!("accuracy {:.2} %", 100.0 * sum(right) / sum(count));
    Ok(())
}

fn main() -> Result<()> {
    train(&Args::parse())
}
