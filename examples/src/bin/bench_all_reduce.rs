//! The peer of `xtask/peers/ddp_all_reduce.py`: all-reduces of growing sizes, alone, and the memory's bandwidth.
//!
//! A communication hook repeats the all-reduce of a bucket where it lies, which is what a backward does with it. With `--calls`
//! it is `Scope::all_reduce` on a tensor of the program's own: the ranks compare their calls first.
//!
//! The main rank prints one JSON line: `{"sizes": [{"bytes", "median_us"} ..], "copy_gb_s"}`. `copy_gb_s` is what all
//! ranks together move when each copies one large buffer to another at the same time: bytes read and written.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use ddp_runtime::{CommHook, GradBucket, HookComm, Options, ReduceOp, Scope, mean, sum};
use serde_json::json;
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};

#[derive(Parser)]
struct Args {
    /// Sizes in bytes
    #[arg(long, value_delimiter = ',', required = true)]
    sizes: Vec<i64>,
    /// How long each size is measured, in seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Call `Scope::all_reduce` instead
    #[arg(long)]
    calls: bool,
}

/// The fewest and the most repetitions of a size.
const ROUNDS: (u32, u32) = (5, 500);
/// Bytes of the buffers that are copied.
const COPIED: i64 = 256 << 20;

fn floats(bytes: i64) -> Tensor {
    Tensor::zeros([bytes / 4], (Kind::Float, Device::Cpu))
}

/// The median time of `round`, repeated for about `seconds`, as many times on all ranks, in microseconds. `average` is that of
/// the ranks' figures.
fn measure<E>(
    seconds: f64,
    average: impl Fn(f64) -> Result<f64, E>,
    mut round: impl FnMut() -> Result<(), E>,
) -> Result<f64, E> {
    round()?;
    let _ = average(0.0)?;
    let once = Instant::now();
    round()?;
    let once = average(once.elapsed().max(Duration::from_nanos(1)).as_secs_f64())?;
    let rounds = ((seconds / once) as u32).clamp(ROUNDS.0, ROUNDS.1);
    let mut times = Vec::new();
    let _ = average(0.0)?;
    for _ in 0..rounds {
        let start = Instant::now();
        round()?;
        times.push(1e6 * start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok((times[(times.len() - 1) / 2] + times[times.len() / 2]) / 2.0)
}

/// Measures each bucket instead of averaging it.
struct Timer {
    seconds: f64,
    time: Arc<Mutex<Option<f64>>>,
}

impl CommHook for Timer {
    fn name(&self) -> String {
        format!("timer of {} s", self.seconds)
    }

    fn start(&mut self, bucket: &GradBucket, comm: &HookComm<'_>) -> ddp_runtime::Result<()> {
        let reduce = |tensor: &Tensor| comm.wait(comm.all_reduce(tensor, ReduceOp::Sum)?);
        let average = |figure: f64| {
            let total = reduce(&Tensor::from_slice(&[figure]))?.double_value(&[0]);
            Ok(total / comm.world_size() as f64)
        };
        let time = measure(self.seconds, average, || reduce(&bucket.flat).map(drop))?;
        *self.time.lock().unwrap_or_else(PoisonError::into_inner) = Some(time);
        Ok(())
    }

    fn finish(&mut self, _: &GradBucket, _: &HookComm<'_>) -> ddp_runtime::Result<()> {
        Ok(())
    }
}

/// The all-reduce of a bucket of so many bytes, in microseconds.
fn in_a_backward(scope: &Scope, time: &Mutex<Option<f64>>, bytes: i64) -> Result<f64> {
    let store = VarStore::new(Device::Cpu);
    let weight = store.root().zeros("weight", &[bytes / 4]);
    scope.register(&store)?;
    (weight * 0.0).sum(Kind::Float).backward();
    time.lock().unwrap_or_else(PoisonError::into_inner).take().context("no bucket was reduced")
}

fn main() -> Result<()> {
    let args = Args::parse();
    let scope = Scope::with_options("bench_all_reduce", Options::default())?;
    let time = Arc::new(Mutex::new(None));
    scope.register_comm_hook(Timer { seconds: args.seconds, time: Arc::clone(&time) })?;
    let average = |figure: f64| Ok(mean(figure));
    let mut sizes = Vec::new();
    for &bytes in &args.sizes {
        let median = if args.calls {
            let tensor = floats(bytes);
            measure(args.seconds, average, || Ok(scope.all_reduce(&tensor, ReduceOp::Sum)?))?
        } else {
            in_a_backward(&scope, &time, bytes)?
        };
        sizes.push(json!({ "bytes": bytes, "median_us": median }));
    }
    let (from, mut to) = (floats(COPIED), floats(COPIED));
    let copy = measure(args.seconds, average, || {
        to.copy_(&from);
        anyhow::Ok(())
    })?;
    let speed = sum(2.0 * COPIED as f64 / (1e3 * copy));
    if scope.is_main() {
        println!("{}", json!({ "sizes": sizes, "copy_gb_s": speed }));
    }
    Ok(scope.finish()?)
}
