//! The program of `02-distributed` without the attribute, in the steps of PyTorch's tutorials on DDP.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use ddp_examples::data;
use ddp_runtime::data::DistributedSampler;
use ddp_runtime::{DistributedDataParallel, mean};
use tch::Tensor;
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::vision::dataset::Dataset;

/// Trains a small convolutional net on images of handwritten digits.
#[derive(Parser)]
struct Args {
    /// A folder with the files of MNIST (default: small digits that are built in)
    #[arg(long)]
    data: Option<PathBuf>,
    /// How often to go through the training images
    #[arg(long, default_value_t = 20)]
    epochs: u32,
    /// Images a step on each rank
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Learning rate
    #[arg(long, default_value_t = 2e-3)]
    lr: f64,
    /// Seed of the weights and of the order of the images
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Where to save the weights
    #[arg(long)]
    save: Option<PathBuf>,
}

/// Two convolutions and two linear layers, for square images of `side` pixels.
fn net(vs: nn::Path, side: i64) -> nn::SequentialT {
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
    // Joins the ranks that the launcher has started. Without one there is one rank, and nothing below costs anything.
    let scope = ddp_runtime::init()?;
    ddp_runtime::manual_seed(args.seed.into());

    // From here on all ranks have rank 0's weights, and every backward averages its gradients.
    let vs = nn::VarStore::new(scope.device());
    let model = DistributedDataParallel::new(&scope, &vs, net(vs.root(), data::side(data)))?;
    let mut opt = nn::Adam::default().build(&vs, args.lr)?;

    // Each rank takes its part of the images, another order in each epoch.
    let samples = data.train_labels.numel();
    let mut sampler = DistributedSampler::new(samples, scope.share()).seed(args.seed.into());
    for epoch in 0..args.epochs {
        sampler.set_epoch(epoch.into());
        let mut last = f64::NAN;
        for indices in sampler.indices()?.chunks(args.batch) {
            let indices = Tensor::from_slice(indices);
            let xs = data.train_images.index_select(0, &indices).to_device(vs.device());
            let ys = data.train_labels.index_select(0, &indices).to_device(vs.device());
            let loss = model.forward_t(&xs, true).cross_entropy_for_logits(&ys);
            opt.backward_step(&loss);
            last = f64::try_from(loss)?;
        }
        // Every rank has the mean of all; one of them says so.
        let loss = mean(last);
        if scope.is_main() {
            println!("epoch {epoch}: loss {loss:.4}");
        }
    }

    let (images, labels) = (&data.test_images, &data.test_labels);
    let accuracy = model.batch_accuracy_for_logits(images, labels, vs.device(), 1024);
    if scope.is_main() {
        println!("accuracy {:.2} %", 100.0 * accuracy);
    }
    if let Some(path) = &args.save {
        // The main rank writes; the others go on when the file is complete.
        scope.save(&vs, path)?;
    }

    // Waits for all ranks. A rank that returns early with an error tells them so.
    Ok(scope.finish()?)
}

fn main() -> Result<()> {
    let args = Args::parse();
    let data = data::load(args.data.as_deref())?;
    train(&args, &data)
}
