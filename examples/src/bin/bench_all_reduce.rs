//! The peer of `xtask/peers/ddp_all_reduce.py`: all-reduces of growing sizes, alone, and the memory's bandwidth.
//!
//! The main rank prints one JSON line: `{"sizes": [{"bytes", "median_us"} ..], "copy_gb_s"}`. `copy_gb_s` is what all
//! ranks together move when each copies one large buffer to another at the same time: bytes read and written.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use ddp_runtime::{ReduceOp, Scope, sum};
use serde_json::json;
use tch::{Device, Kind, Tensor};

#[derive(Parser)]
struct Args {
    /// Sizes in bytes
    #[arg(long, value_delimiter = ',', required = true)]
    sizes: Vec<i64>,
    /// How long each size is measured, in seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

/// The fewest and the most repetitions of a size.
const ROUNDS: (u32, u32) = (5, 500);
/// Bytes of the buffers that are copied.
const COPIED: i64 = 256 << 20;

fn floats(bytes: i64) -> Tensor {
    Tensor::zeros([bytes / 4], (Kind::Float, Device::Cpu))
}

/// The median time of `round`, repeated for about `seconds`, as many times on all ranks, in microseconds.
fn measure(scope: &Scope, seconds: f64, mut round: impl FnMut() -> Result<()>) -> Result<f64> {
    round()?;
    scope.barrier()?;
    let once = Instant::now();
    round()?;
    let once = once.elapsed().max(Duration::from_nanos(1)).as_secs_f64();
    // The ranks' own figures differ.
    let once = sum(once) / scope.world_size() as f64;
    let rounds = ((seconds / once) as u32).clamp(ROUNDS.0, ROUNDS.1);
    let mut times = Vec::new();
    scope.barrier()?;
    for _ in 0..rounds {
        let start = Instant::now();
        round()?;
        times.push(1e6 * start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok((times[(times.len() - 1) / 2] + times[times.len() / 2]) / 2.0)
}

fn main() -> Result<()> {
    let args = Args::parse();
    let scope = ddp_runtime::init()?;
    let mut sizes = Vec::new();
    for &bytes in &args.sizes {
        let tensor = floats(bytes);
        let time = measure(&scope, args.seconds, || Ok(scope.all_reduce(&tensor, ReduceOp::Sum)?))?;
        sizes.push(json!({ "bytes": bytes, "median_us": time }));
    }
    let (from, mut to) = (floats(COPIED), floats(COPIED));
    let copy = measure(&scope, args.seconds, || {
        to.copy_(&from);
        Ok(())
    })?;
    let speed = sum(2.0 * COPIED as f64 / (1e3 * copy));
    if scope.is_main() {
        println!("{}", json!({ "sizes": sizes, "copy_gb_s": speed }));
    }
    Ok(scope.finish()?)
}
