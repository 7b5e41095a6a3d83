//! What something adds to a step, measured within one run: blocks of steps with it and without it in turn.
//!
//! Two processes differ by more than what is looked for; two blocks that follow each other share memory, caches and the machine's
//! load. Which of a pair comes first changes from pair to pair.

use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;
use ddp_runtime::__private::pause_timeline;
use ddp_runtime::{distributed, is_main, mean};
use serde_json::json;
use tch::Device;
use tch::nn::{self, Optimizer, OptimizerConfig};

use super::Args;
use super::models::Subject;

/// What is with and without.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum What {
    /// The attribute, on one process
    Attribute,
    /// The timeline of DDP_TRACE, which has to be set
    Timeline,
}

/// Steps of a block.
const BLOCK: u32 = 4;
/// The fewest and the most pairs.
const PAIRS: (u32, u32) = (5, 1000);

/// Prints `{"without_ms": [..], "with_ms": [..]}`: milliseconds a step, a pair of blocks at each place.
pub(crate) fn run(what: What, args: &Args) -> Result<()> {
    match what {
        What::Attribute => attribute(args),
        What::Timeline => timeline(args),
    }
}

/// The same steps with and without the attribute.
macro_rules! block {
    ($(#[$attribute:meta])* $name:ident) => {
        $(#[$attribute])*
        fn $name(subject: &Subject, opt: &mut Optimizer, steps: u32) {
            for _ in 0..steps {
                let loss = subject.net.forward(&subject.xs).cross_entropy_for_logits(&subject.ys);
                opt.backward_step(&loss);
            }
        }
    };
}

block!(plain);
block!(
    #[distributed]
    annotated
);

fn attribute(args: &Args) -> Result<()> {
    let vs = nn::VarStore::new(Device::Cpu);
    let subject = args.model.build(vs.root());
    let mut opt = nn::Sgd::default().build(&vs, 0.01)?;
    let pairs = measure(args, |with, steps| {
        if with {
            annotated(&subject, &mut opt, steps);
        } else {
            plain(&subject, &mut opt, steps);
        }
    });
    print(&pairs);
    Ok(())
}

#[distributed]
fn timeline(args: &Args) -> Result<()> {
    let vs = nn::VarStore::new(Device::Cpu);
    let subject = args.model.build(vs.root());
    let mut opt = nn::Sgd::default().build(&vs, 0.01)?;
    let mut block = |with: bool, steps| {
        pause_timeline(!with);
        plain(&subject, &mut opt, steps);
    };
    let pairs = measure(args, &mut block);
    pause_timeline(false);
    print(&pairs);
    Ok(())
}

/// Milliseconds a step without and with, as often as the time allows; all ranks do as many.
fn measure(args: &Args, mut block: impl FnMut(bool, u32)) -> Vec<(f64, f64)> {
    let mut timed = |with, steps| {
        let start = Instant::now();
        block(with, steps);
        1000.0 * start.elapsed().as_secs_f64() / f64::from(steps)
    };
    for with in [false, true] {
        timed(with, args.warmup);
    }
    let step = mean(timed(false, BLOCK));
    let pairs = (1000.0 * args.seconds / (step * f64::from(2 * BLOCK))) as u32;
    let pair = |number: u32| {
        if number.is_multiple_of(2) {
            (timed(false, BLOCK), timed(true, BLOCK))
        } else {
            let with = timed(true, BLOCK);
            (timed(false, BLOCK), with)
        }
    };
    (0..pairs.clamp(PAIRS.0, PAIRS.1)).map(pair).collect()
}

fn print(pairs: &[(f64, f64)]) {
    let (without, with): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    if is_main() {
        println!("{}", json!({ "without_ms": without, "with_ms": with }));
    }
}
