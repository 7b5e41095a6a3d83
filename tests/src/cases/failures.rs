//! A rank that ends in the middle, one way or another.
use anyhow::{Context, Result, bail};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

/// Ends rank `who` at step 5, as told.
fn stumble(how: &str, who: usize, step: i64) -> Result<()> {
    if step != 5 || ddp_runtime::rank() != who {
        return Ok(());
    }
    match how {
        "error" => bail!("the disk is full"),
        "panic" => panic!("index out of luck"),
        "kill" => {
            let me = std::process::id().to_string();
            std::process::Command::new("kill").args(["-KILL", &me]).status()?;
            Ok(())
        }
        "abort" => std::process::abort(),
        _ => bail!("no way to stumble is called {how}"),
    }
}

#[ddp_runtime::distributed(timeout = 60)]
fn train(how: &str, who: usize) -> Result<()> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root(), 8, 8, Default::default());
    let mut opt = nn::Sgd::default().build(&vs, 0.01)?;
    for step in 0..2000 {
        let x = Tensor::randn([4, 8], (Kind::Float, Device::Cpu));
        opt.backward_step(&net.forward(&x).square().mean(Kind::Float));
        stumble(how, who, step)?;
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Ok(())
}

/// As `train`, with an error that is returned as a value.
#[ddp_runtime::distributed(timeout = 60)]
fn train_with_value(who: usize) -> Result<()> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root(), 8, 8, Default::default());
    let mut opt = nn::Sgd::default().build(&vs, 0.01)?;
    let mut outcome = Ok(());
    for step in 0..2000 {
        let x = Tensor::randn([4, 8], (Kind::Float, Device::Cpu));
        opt.backward_step(&net.forward(&x).square().mean(Kind::Float));
        outcome = stumble("error", who, step);
        if outcome.is_err() {
            break;
        }
    }
    outcome
}

pub(super) fn run(args: &[String]) -> Result<()> {
    let [how, who] = args else { bail!("expected how and who, got {args:?}") };
    let who = who.parse().context("who is a rank")?;
    match how.as_str() {
        "value" => train_with_value(who),
        "slow" => {
            let outcome = train("error", who);
            if ddp_runtime::rank() == who {
                // It has much to put away before it ends with its error.
                std::thread::sleep(std::time::Duration::from_secs(40));
            }
            outcome
        }
        how => train(how, who),
    }
}
