//! The peer of `xtask/peers/ddp_bench.py`: the same models and training steps, timed.
//!
//! The main rank prints one JSON line: `{"model", "median_ms", "steps", "parameters"}`. A step is forward, zero_grad,
//! backward (with the all-reduce of the gradients where there are ranks) and SGD's step, on one batch a rank that
//! stays the same.

use std::time::Instant;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use ddp_runtime::distributed;
use serde_json::json;
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

#[derive(Parser)]
struct Args {
    #[arg(long)]
    model: Model,
    /// Measured steps
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Steps before the measured ones
    #[arg(long, default_value_t = 5)]
    warmup: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Model {
    /// 26.8 million parameters in 8 linear layers
    Mlp,
    /// Two convolutions and two linear layers on 28x28 images
    Conv,
    /// 200 linear layers of 64x64
    Layers,
}

/// A net with the shape of its batches.
struct Subject {
    net: Box<dyn Module>,
    batch: i64,
    features: i64,
    classes: i64,
}

impl Model {
    fn build(self, vs: nn::Path) -> Subject {
        let (net, batch, features, classes) = match self {
            Self::Mlp => (
                chain(vs, &[784, 2048, 2048, 2048, 2048, 2048, 2048, 2048, 10], Tensor::relu),
                64,
                784,
                10,
            ),
            Self::Conv => (conv(vs), 256, 784, 10),
            Self::Layers => (chain(vs, &[64; 201], Tensor::tanh), 32, 64, 64),
        };
        Subject { net: Box::new(net), batch, features, classes }
    }
}

/// Linear layers with an activation between.
fn chain(vs: nn::Path, sizes: &[i64], activation: fn(&Tensor) -> Tensor) -> nn::Sequential {
    let mut net = nn::seq();
    for (k, pair) in sizes.windows(2).enumerate() {
        if k > 0 {
            net = net.add_fn(activation);
        }
        net = net.add(nn::linear(&vs / k, pair[0], pair[1], Default::default()));
    }
    net
}

/// Two 5x5 convolutions with pooling, two linear layers.
fn conv(vs: nn::Path) -> nn::Sequential {
    nn::seq()
        .add_fn(|xs| xs.view([-1, 1, 28, 28]))
        .add(nn::conv2d(&vs / "conv1", 1, 32, 5, Default::default()))
        .add_fn(|xs| xs.max_pool2d_default(2))
        .add(nn::conv2d(&vs / "conv2", 32, 64, 5, Default::default()))
        .add_fn(|xs| xs.max_pool2d_default(2).view([-1, 1024]))
        .add(nn::linear(&vs / "fc1", 1024, 1024, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(&vs / "fc2", 1024, 10, Default::default()))
}

#[distributed]
fn train(args: &Args) -> Result<()> {
    let vs = nn::VarStore::new(Device::Cpu);
    let subject = args.model.build(vs.root());
    let mut opt = nn::Sgd::default().build(&vs, 0.01)?;
    let xs = Tensor::randn([subject.batch, subject.features], (Kind::Float, vs.device()));
    let ys = Tensor::randint(subject.classes, [subject.batch], (Kind::Int64, vs.device()));

    let mut times = Vec::new();
    for step in 0..args.warmup + args.steps {
        let start = Instant::now();
        let loss = subject.net.forward(&xs).cross_entropy_for_logits(&ys);
        opt.backward_step(&loss);
        if step >= args.warmup {
            times.push(1000.0 * start.elapsed().as_secs_f64());
        }
    }
    let parameters: usize = vs.trainable_variables().iter().map(Tensor::numel).sum();
    let model = args.model.to_possible_value().map(|value| value.get_name().to_owned());
    let facts = json!({ "model": model, "median_ms": median(&mut times), "steps": times.len(), "parameters": parameters });
    println!("{facts}");
    Ok(())
}

/// The middle of the values, or of the two in the middle.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let (below, above) = ((values.len() - 1) / 2, values.len() / 2);
    (values[below] + values[above]) / 2.0
}

fn main() -> Result<()> {
    train(&Args::parse())
}
