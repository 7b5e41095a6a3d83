//! The peer of `xtask/peers/loader_bench.py`: passes through a data loader, timed, and an order too long to list.
//!
//! Prints one JSON line: `{"median_per_s", "samples", "checksum"}`, of MNIST as the peer has it. With `--permute N` it goes
//! through a shuffled order of N samples instead and prints `{"samples", "per_s", "peak_kib", "grown_kib"}`: how fast, and how
//! much memory the process took at most, and took while it went.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use ddp_examples::data::mnist;
use ddp_runtime::data::{
    DataLoader, Dataset, FeistelSampler, Order, Sampler, SharedTensor, TensorDataset,
};
use serde_json::json;
use tch::{Kind, TchError, Tensor};

#[derive(Parser)]
struct Args {
    /// A folder with the files of MNIST
    #[arg(long, required_unless_present = "permute")]
    data: Option<PathBuf>,
    #[arg(long, default_value = "samples")]
    kind: Form,
    /// Threads that read ahead
    #[arg(long, default_value_t = 0)]
    workers: usize,
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Measured passes, after one that is not measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    /// Go through an order of so many samples, and load nothing
    #[arg(long)]
    permute: Option<usize>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Form {
    /// One sample at a time, stacked
    Samples,
    /// A batch at a time, gathered
    AtOnce,
}

/// Images and labels by the sample, as a data set of a user's own gives them.
struct Images {
    images: SharedTensor,
    labels: Vec<i64>,
}

impl Dataset for Images {
    type Sample = (Tensor, i64);
    type Error = TchError;

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn get(&self, index: usize) -> Result<(Tensor, i64), TchError> {
        Ok((self.images.row(index)?, self.labels[index]))
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(samples) = args.permute {
        return permute(samples);
    }
    let data = mnist(args.data.as_deref().context("--data DIR")?)?;
    let (images, labels) = (data.train_images, data.train_labels);
    let loader = match args.kind {
        Form::Samples => {
            let labels = Vec::<i64>::try_from(&labels)?;
            let data = Images { images: SharedTensor::f_new(&images)?, labels };
            settings(DataLoader::builder(data), &args).build()?
        }
        Form::AtOnce => {
            let data = TensorDataset::new((images, labels))?;
            settings(DataLoader::builder(data), &args).build()?
        }
    };
    measure(&loader, args.passes)
}

fn settings<D>(
    builder: ddp_runtime::data::Builder<D>,
    args: &Args,
) -> ddp_runtime::data::Builder<D> {
    builder.batch_size(args.batch).shuffle(true).num_workers(args.workers)
}

fn measure(loader: &DataLoader<(Tensor, Tensor)>, passes: u32) -> Result<()> {
    let mut speeds = Vec::new();
    let mut samples = 0;
    for turn in 0..=passes {
        let start = Instant::now();
        let mut last = 0;
        samples = 0;
        for batch in loader {
            let (xs, ys) = batch?;
            samples += xs.size()[0];
            last += ys.int64_value(&[-1]);
        }
        ensure!(last > 0, "nothing came");
        if turn > 0 {
            speeds.push(samples as f64 / start.elapsed().as_secs_f64());
        }
    }
    speeds.sort_by(f64::total_cmp);
    let mut checksum = 0;
    for batch in loader {
        checksum += batch?.1.sum(Kind::Int64).int64_value(&[]);
    }
    let median = speeds[speeds.len() / 2];
    println!("{}", json!({ "median_per_s": median, "samples": samples, "checksum": checksum }));
    Ok(())
}

/// Goes through a shuffled order; the sums of the samples and of their squares must be those of all of them.
fn permute(samples: usize) -> Result<()> {
    let before = memory_kib("VmHWM:")?;
    let start = Instant::now();
    let order = FeistelSampler::new(samples).indices(Order { seed: 1, epoch: 0 })?;
    let (mut sum, mut squares) = (0_u64, 0_u64);
    let (mut expected_sum, mut expected_squares) = (0_u64, 0_u64);
    for (place, index) in order.iter().enumerate() {
        let (place, index) = (place as u64, index as u64);
        sum = sum.wrapping_add(index);
        squares = squares.wrapping_add(index.wrapping_mul(index));
        expected_sum = expected_sum.wrapping_add(place);
        expected_squares = expected_squares.wrapping_add(place.wrapping_mul(place));
    }
    let took = start.elapsed().as_secs_f64();
    ensure!((sum, squares) == (expected_sum, expected_squares), "not a permutation");
    let peak = memory_kib("VmHWM:")?;
    let facts = json!({
        "samples": samples,
        "per_s": samples as f64 / took,
        "peak_kib": peak,
        "grown_kib": peak - before,
    });
    println!("{facts}");
    Ok(())
}

/// A line of what Linux says of this process' memory.
fn memory_kib(line: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let found = status.lines().find_map(|text| text.strip_prefix(line));
    let number = found.and_then(|text| text.split_whitespace().next()).context("no such line")?;
    Ok(number.parse()?)
}
