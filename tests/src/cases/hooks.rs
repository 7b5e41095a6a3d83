//! Communication hooks: the built-in ones against PyTorch's (`truth/hooks.py`), and one of a program's own.
use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use ddp_runtime::{
    Bf16Compress, CommHook, Compress, GradBucket, HookComm, Options, PowerSgd, ReduceOp, Reduction,
    Scope, Uneven,
};
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Kind, Tensor};

use super::compare::{close, relative_error};

type Arrays = BTreeMap<String, Tensor>;

/// The script's model on this rank's batches.
fn train(data: &Arrays, compress: Compress, hook: Option<PowerSgd>) -> Result<Vec<Tensor>> {
    let vs = nn::VarStore::new(Device::Cpu);
    let var = |name: &str| {
        Ok::<_, anyhow::Error>(vs.root().var_copy(name, data.get(name).context("no weights")?))
    };
    let (a, b, c) = (var("a")?, var("b")?, var("c")?);
    let x = data.get("x").context("no batches")?;
    let scope = Scope::with_options("hooks", Options { compress, ..Options::default() })?;
    scope.register(&vs)?;
    if let Some(hook) = hook {
        scope.register_comm_hook(hook)?;
    }
    let mut opt = nn::Sgd::default().build(&vs, 0.5)?;
    for step in 0..x.size()[0] {
        let x = x.get(step).get(scope.rank() as i64);
        let out = x.matmul(&a).tanh().matmul(&b) + &c;
        opt.backward_step(&out.square().mean(Kind::Float));
    }
    let weights = vec![a.copy(), b.copy(), c.copy()];
    for weight in &weights {
        let all = scope.all_gather(weight)?;
        ensure!(all.iter().all(|other| other.equal(weight)), "the ranks' weights differ");
    }
    scope.finish()?;
    Ok(weights)
}

fn truth(path: &str) -> Result<()> {
    let data: Arrays =
        Tensor::read_npz(path).with_context(|| format!("reading {path}"))?.into_iter().collect();
    let of = |hook: &str| {
        ["a", "b", "c"]
            .iter()
            .map(|name| {
                let array = data.get(&format!("{hook}.{name}"));
                array.map(Tensor::shallow_clone).with_context(|| format!("no {hook}.{name}"))
            })
            .collect::<Result<Vec<Tensor>>>()
    };
    let power = PowerSgd::new(2).start_after(3).min_compression_rate(1.0);
    for (name, compress, hook) in [
        ("none", Compress::None, None),
        ("bf16", Compress::Bf16, None),
        ("fp16", Compress::Fp16, None),
        ("powersgd", Compress::None, Some(power)),
    ] {
        let found = train(&data, compress, hook)?;
        close(name, &found, &of(name)?, 5e-6)?;
        // The comparison would not tell hooks apart that do nothing.
        let apart = relative_error(&of(name)?[0], &of("none")?[0]);
        ensure!(name == "none" || apart > 1e-5, "{name} is like none in PyTorch: {apart:e}");
    }
    Ok(())
}

/// Every other bucket is negated, to see that a hook decides; and counts what it was given.
#[derive(Default)]
struct Negate {
    under_way: Vec<Option<Reduction>>,
}

impl CommHook for Negate {
    fn name(&self) -> String {
        "negate".to_owned()
    }

    fn start(&mut self, bucket: &GradBucket, comm: &HookComm<'_>) -> ddp_runtime::Result<()> {
        self.under_way.resize_with(bucket.index + 1, || None);
        self.under_way[bucket.index] = Some(comm.all_reduce(&bucket.flat, ReduceOp::Sum)?);
        Ok(())
    }

    fn finish(&mut self, bucket: &GradBucket, comm: &HookComm<'_>) -> ddp_runtime::Result<()> {
        if let Some(reduction) = self.under_way[bucket.index].take() {
            let _ = comm.wait(reduction)?;
        }
        for gradient in &bucket.gradients {
            let _ = gradient.value.shallow_clone().neg_();
        }
        Ok(())
    }
}

fn own() -> Result<()> {
    let vs = nn::VarStore::new(Device::Cpu);
    let w = vs.root().var_copy("w", &Tensor::arange(6, (Kind::Float, Device::Cpu)));
    let scope = ddp_runtime::init()?;
    scope.register(&vs)?;
    scope.register_comm_hook(Negate::default())?;
    for step in 0..3 {
        vs.trainable_variables().iter_mut().for_each(Tensor::zero_grad);
        (&w * (step + scope.rank() as i64)).sum(Kind::Float).backward();
        let mean = step as f64 + (scope.world_size() - 1) as f64 / 2.0;
        close("negated", &[w.grad()], &[w.full_like(-mean)], 1e-6)?;
    }
    scope.finish()?;
    Ok(())
}

fn different() -> Result<()> {
    let scope = ddp_runtime::init()?;
    if scope.rank() == 0 {
        scope.register_comm_hook(Bf16Compress::new())?;
    } else {
        scope.register_comm_hook(PowerSgd::new(1))?;
    }
    scope.finish()?;
    Ok(())
}

/// A rank that has returned takes part in a hook with zeros.
fn with_join() -> Result<()> {
    let vs = nn::VarStore::new(Device::Cpu);
    let start = Tensor::arange(64 * 32, (Kind::Float, Device::Cpu)).sin().view([64, 32]);
    let w = vs.root().var_copy("w", &start);
    let options = Options { uneven: Uneven::Join, ..Options::default() };
    let scope = Scope::with_options("hooks", options)?;
    scope.register(&vs)?;
    scope.register_comm_hook(PowerSgd::new(1).start_after(0))?;
    // A gradient of rank 1, which the approximation gives back whole.
    for step in 0..2 + scope.rank() as i64 {
        vs.trainable_variables().iter_mut().for_each(Tensor::zero_grad);
        (&w * (step + scope.rank() as i64 + 1)).sum(Kind::Float).backward();
        let present: Vec<i64> = (0..scope.world_size() as i64).filter(|r| 2 + r > step).collect();
        let sum: i64 = present.iter().map(|rank| step + rank + 1).sum();
        let mean = sum as f64 / present.len() as f64;
        close("mean", &[w.grad()], &[w.full_like(mean)], 1e-5)?;
    }
    scope.finish()?;
    Ok(())
}

pub(super) fn run(args: &[String]) -> Result<()> {
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["truth", path] => truth(path),
        ["own"] => own(),
        ["different"] => different(),
        ["with-join"] => with_join(),
        _ => bail!("no case of hooks is called {args:?}"),
    }
}
