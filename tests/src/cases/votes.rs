//! Decisions and figures that all ranks share.
use anyhow::{Result, bail, ensure};
use ddp_runtime::{agree, main_first, main_only, mean, should_stop, skip_if, sum};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

use super::compare::close;

fn decisions() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let (rank, world) = (scope.rank(), scope.world_size());
    for who in 0..world {
        ensure!(should_stop(rank == who), "one rank wants to stop");
        ensure!(skip_if(rank == who), "one rank wants to skip");
        ensure!(agree(rank == who) == (world == 1), "one rank alone agrees");
    }
    ensure!(agree(true) && !agree(false) && !should_stop(false) && !skip_if(false), "unanimous");
    scope.finish()?;
    Ok(())
}

fn figures() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let (rank, world) = (scope.rank(), scope.world_size());
    let own = 0.1 * (rank + 1) as f64;
    let values: Vec<f64> = (1..=world).map(|rank| 0.1 * rank as f64).collect();
    let total: f64 = values.iter().sum();
    ensure!(sum(own) == total, "{} is not {total}", sum(own));
    ensure!(mean(own) == total / world as f64, "the mean is {}", mean(own));
    let tensor = Tensor::from_slice(&[own, 2.0 * own]).set_requires_grad(true);
    let expected = Tensor::from_slice(&[total, 2.0 * total]);
    close("sum", &[sum(&tensor)], &[expected.shallow_clone()], 1e-15)?;
    close("mean", &[mean(&tensor)], &[expected / world as f64], 1e-15)?;
    let counts = Tensor::from_slice(&[rank as i64, 1]);
    let expected = [0.5 * (world - 1) as f64, 1.0];
    close("mean of counts", &[mean(&counts)], &[Tensor::from_slice(&expected)], 1e-15)?;
    scope.finish()?;
    Ok(())
}

/// p04, p03: ranks that stop and skip for reasons of their own take the same steps.
#[ddp_runtime::distributed]
fn uneven() -> Result<(u32, u32)> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root(), 4, 1, Default::default());
    let mut opt = nn::Sgd::default().build(&vs, 0.1)?;
    let (mut steps, mut skipped) = (0, 0);
    for step in 0..100 {
        let bad = step % 5 == ddp_runtime::rank();
        if skip_if(bad) {
            skipped += 1;
            continue;
        }
        let x = Tensor::randn([4, 4], (Kind::Float, Device::Cpu));
        opt.backward_step(&net.forward(&x).square().mean(Kind::Float));
        steps += 1;
        let enough = steps > 10 + ddp_runtime::rank() as u32;
        if should_stop(enough) {
            break;
        }
    }
    Ok((steps, skipped))
}

/// p28: what the first rank makes is there for the others; it takes its time.
fn first(folder: &str) -> Result<()> {
    let scope = ddp_runtime::init()?;
    let made = std::path::Path::new(folder).join("made");
    let found = main_first(|| {
        let found = made.exists();
        if !found {
            std::thread::sleep(std::time::Duration::from_secs(11));
            std::fs::write(&made, "once")?;
        }
        anyhow::Ok(found)
    })?;
    ensure!(found == (scope.rank() > 0), "rank {} found {found}", scope.rank());
    ensure!(main_only(|| 5) == (scope.rank() == 0).then_some(5), "main_only runs on rank 0");
    scope.finish()?;
    Ok(())
}

/// p01: what needs all ranks, in a section of one rank.
fn inside_a_section(what: &str) -> Result<()> {
    let scope = ddp_runtime::init()?;
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root(), 4, 1, Default::default());
    scope.register(&vs)?;
    let backward = || {
        let x = Tensor::ones([2, 4], (Kind::Float, Device::Cpu));
        net.forward(&x).mean(Kind::Float).f_backward()
    };
    match what {
        "barrier-in-main-only" => main_only(|| scope.barrier()).unwrap_or(Ok(()))?,
        "backward-in-main-only" => main_only(backward).unwrap_or(Ok(()))?,
        "barrier-in-main-first" => main_first(|| scope.barrier())?,
        "backward-in-main-first" => main_first(backward)?,
        _ => bail!("nothing called {what} needs all ranks"),
    }
    scope.barrier()?;
    Ok(())
}

pub(super) fn run(args: &[String]) -> Result<()> {
    match args {
        [case] if case == "decisions" => decisions(),
        [case] if case == "figures" => figures(),
        [case] if case == "uneven" => {
            let (steps, skipped) = uneven()?;
            println!("{steps} steps, {skipped} skipped");
            Ok(())
        }
        [case, folder] if case == "first" => first(folder),
        [case, what] if case == "inside-a-section" => inside_a_section(what),
        _ => bail!("no case of votes is called {args:?}"),
    }
}
