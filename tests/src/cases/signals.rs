//! Signals of a scheduler: all ranks stop after the same step, save, and leave.
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail, ensure};
use ddp_runtime::{Checkpoints, distributed, should_stop};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

const STEPS: u64 = 400;

/// Who is sent the signal: this process, or the launcher.
fn send(signal: &str, to_launcher: bool) -> Result<()> {
    let pid = if to_launcher { std::os::unix::process::parent_id() } else { std::process::id() };
    let status = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status()?;
    ensure!(status.success(), "kill {signal} {pid}: {status}");
    Ok(())
}

/// Trains until somebody asks it to stop. Rank `who` has the signal sent in its third step of this run.
#[distributed]
fn train(folder: &Path, signal: &str, who: usize, to_launcher: bool) -> Result<Option<u64>> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root(), 4, 1, Default::default());
    let mut opt = nn::Sgd::default().build(&vs, 0.01)?;
    let checkpoints = Checkpoints::new(folder);
    let progress = checkpoints.resume(|saved| saved.store("model", &vs))?;
    let begun = progress.step();
    #[ddp(each)]
    for _ in progress.batches(0..STEPS) {
        let x = Tensor::randn([4, 4], (Kind::Float, Device::Cpu));
        opt.backward_step(&net.forward(&x).square().mean(Kind::Float));
        std::thread::sleep(std::time::Duration::from_millis(10));
        if progress.step() == begun + 3 && ddp_runtime::rank() == who {
            send(signal, to_launcher)?;
        }
        if should_stop(false) {
            checkpoints.save(&progress, |to| to.store("model", &vs))?;
            return Ok(Some(progress.step()));
        }
    }
    Ok(None)
}

fn run_train(folder: &str, signal: &str, who: &str, to_launcher: bool) -> Result<()> {
    match train(Path::new(folder), signal, who.parse()?, to_launcher)? {
        Some(step) => println!("stopped after step {step}"),
        None => bail!("nobody stopped"),
    }
    Ok(())
}

pub(super) fn run(args: &[String]) -> Result<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["rank", folder, signal, who] => run_train(folder, signal, who, false),
        ["launcher", folder, signal, who] => run_train(folder, signal, who, true),
        ["asked", folder, signal, who] => {
            ddp_runtime::stop_on_signals()?;
            run_train(folder, signal, who, false)
        }
        // The scope is over: the signal does what it always did.
        ["after", folder, signal] => {
            run_train(folder, signal, "0", false)?;
            send(signal, false)?;
            std::thread::sleep(std::time::Duration::from_secs(30));
            bail!("the signal was swallowed")
        }
        _ => bail!("no case of signals is called {args:?}"),
    }
}
