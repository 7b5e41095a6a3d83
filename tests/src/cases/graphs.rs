//! Graphs out of the ordinary: gradients left undefined, shared parameters, several dtypes, repeated backwards, data with a
//! gradient, layers added late, many models one after another.
// A backward that keeps its graph is only to be had from torch-sys.
#![allow(unsafe_code)]
use anyhow::{Result, bail, ensure};
use ddp_runtime::{Debug, Options, Scope};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

use super::compare::close;

fn input(rank: usize, step: i64) -> Tensor {
    let values = Tensor::arange(8, (Kind::Double, Device::Cpu));
    (values + (10 * step + 3 * rank as i64) as f64).sin().view([2, 4])
}

/// A store of doubles with variables of these names and shapes, equal wherever it is made.
fn store(shapes: &[(&str, &[i64])]) -> (nn::VarStore, Vec<Tensor>) {
    let mut store = nn::VarStore::new(Device::Cpu);
    store.set_kind(Kind::Double);
    let variables = shapes
        .iter()
        .map(|(name, size)| {
            let count: i64 = size.iter().product();
            let values = Tensor::arange(count, (Kind::Double, Device::Cpu)).cos().view(*size);
            store.root().var_copy(name, &(values + 1.5))
        })
        .collect();
    (store, variables)
}

/// The mean over ranks of the gradients of `loss`, by `run_backward`, which nobody averages.
fn mean_gradients(of: &[&Tensor], ranks: usize, loss: impl Fn(usize) -> Tensor) -> Vec<Tensor> {
    let losses: Vec<Tensor> = (0..ranks).map(loss).collect();
    let mean = Tensor::stack(&losses, 0).mean(Kind::Double);
    Tensor::run_backward(&[mean], of, false, false)
}

fn clear(store: &nn::VarStore) {
    store.trainable_variables().iter_mut().for_each(Tensor::zero_grad);
}

/// A norm of order 0 hands on no gradient at all. Rank 0 leaves `a` undefined in odd steps, all ranks in every third.
fn undefined() -> Result<()> {
    let (store, vars) = store(&[("a", &[4]), ("b", &[4]), ("c", &[300_000])]);
    let [a, b, c] = [&vars[0], &vars[1], &vars[2]];
    let scope = ddp_runtime::init()?;
    scope.register(&store)?;
    let (rank, ranks) = (scope.rank(), scope.world_size());
    let defined = |rank: usize, step: i64| step % 3 != 2 && (rank > 0 || step % 2 == 0);
    let loss = |rank: usize, step: i64| {
        let x = input(rank, step).sum(Kind::Double);
        let rest = (b.square().sum(Kind::Double) + c.mean(Kind::Double)) * &x;
        if defined(rank, step) {
            rest + a.square().sum(Kind::Double) * x
        } else {
            rest + a.norm_scalaropt_dim(0, [0_i64], false)
        }
    };
    let mut opt = nn::Sgd { momentum: 0.9, wd: 0.1, ..Default::default() }.build(&store, 0.01)?;
    for step in 0..6 {
        opt.zero_grad();
        loss(rank, step).backward();
        let expected_b = mean_gradients(&[b], ranks, |rank| {
            b.square().sum(Kind::Double) * input(rank, step).sum(Kind::Double)
        });
        close("b", &[b.grad()], &expected_b, 1e-12)?;
        let scale: f64 = (0..ranks)
            .filter(|&rank| defined(rank, step))
            .map(|rank| input(rank, step).sum(Kind::Double).double_value(&[]))
            .sum();
        if (0..ranks).any(|rank| defined(rank, step)) {
            let expected = a.detach() * (2.0 * scale / ranks as f64);
            close("a", &[a.grad()], &[expected], 1e-12)?;
            opt.step();
        } else {
            let before = a.copy();
            ensure!(!a.grad().defined(), "a has a gradient that no rank produced");
            opt.step();
            ensure!(a.equal(&before), "a moved without a gradient");
        }
    }
    scope.finish()?;
    Ok(())
}

/// One weight used by two layers, and gradients of two dtypes in one backward.
fn shared_and_mixed() -> Result<()> {
    let (store, vars) = store(&[("w", &[4, 4])]);
    let w = &vars[0];
    let singles = nn::VarStore::new(Device::Cpu);
    let v = singles.root().var_copy("v", &Tensor::arange(4, (Kind::Float, Device::Cpu)));
    let scope = ddp_runtime::init()?;
    scope.register(&store)?;
    scope.register(&singles)?;
    let (rank, ranks) = (scope.rank(), scope.world_size());
    for step in 0..3 {
        clear(&store);
        clear(&singles);
        let loss = |rank: usize| {
            let hidden = input(rank, step).matmul(w).tanh().matmul(w);
            (hidden * v.to_kind(Kind::Double)).square().mean(Kind::Double)
        };
        loss(rank).backward();
        let expected = mean_gradients(&[w, &v], ranks, loss);
        ensure!(v.grad().kind() == Kind::Float, "the gradient of v is not of its dtype");
        close("w", &[w.grad()], &expected[..1], 1e-12)?;
        close("v", &[v.grad()], &expected[1..], 1e-6)?;
    }
    scope.finish()?;
    Ok(())
}

fn backward(loss: &Tensor, keep_graph: bool, create_graph: bool) -> Result<()> {
    // SAFETY: a live tensor; the call reads it.
    unsafe {
        torch_sys::at_backward(loss.as_ptr().cast_mut(), keep_graph.into(), create_graph.into());
        let error = torch_sys::get_and_reset_last_err();
        if !error.is_null() {
            let text = std::ffi::CStr::from_ptr(error).to_string_lossy().into_owned();
            libc::free(error.cast());
            bail!("{text}");
        }
    }
    Ok(())
}

/// A graph that is gone through twice: gradients add up, and stay the mean.
fn kept_graph() -> Result<()> {
    let (store, vars) = store(&[("w", &[4, 2])]);
    let w = &vars[0];
    let scope = ddp_runtime::init()?;
    scope.register(&store)?;
    for step in 0..3 {
        clear(&store);
        let loss = |rank: usize| input(rank, step).matmul(w).tanh().square().mean(Kind::Double);
        let own = loss(scope.rank());
        backward(&own, true, false)?;
        backward(&own, false, false)?;
        let expected = mean_gradients(&[w], scope.world_size(), |rank| loss(rank) * 2.0);
        close("twice", &[w.grad()], &expected, 1e-12)?;
    }
    scope.finish()?;
    Ok(())
}

/// Gradients with a graph of their own are refused.
fn created_graph() -> Result<()> {
    let (store, vars) = store(&[("w", &[4, 2])]);
    let scope = ddp_runtime::init()?;
    scope.register(&store)?;
    backward(&input(scope.rank(), 0).matmul(&vars[0]).square().sum(Kind::Double), true, true)
}

/// Checkpointing by hand: an activation is cut off, and taken up again with the gradient that came back to it.
fn checkpoint(ignored: bool) -> Result<()> {
    let (store, vars) = store(&[("first", &[4, 3]), ("second", &[3, 2])]);
    let [first, second] = [&vars[0], &vars[1]];
    let scope = ddp_runtime::init()?;
    scope.register(&store)?;
    let rank = scope.rank();
    for step in 0..4 {
        clear(&store);
        let bottom = |rank: usize| input(rank, step).matmul(first).tanh();
        let top = |hidden: &Tensor| hidden.matmul(second).square().mean(Kind::Double);
        let hidden = bottom(rank).detach().set_requires_grad(true);
        if ignored {
            ddp_runtime::ignore(&hidden);
        }
        top(&hidden).f_backward()?;
        (bottom(rank) * hidden.grad()).sum(Kind::Double).f_backward()?;
        let expected =
            mean_gradients(&[first, second], scope.world_size(), |rank| top(&bottom(rank)));
        close("gradients", &[first.grad(), second.grad()], &expected, 1e-12)?;
    }
    scope.finish()?;
    Ok(())
}

const LATE: i64 = 2;

/// A layer that is added at the end of a batch, which differs between the ranks when it is made.
#[ddp_runtime::distributed]
fn grow(vs: &nn::VarStore, w: &Tensor, starts: &mut Vec<Tensor>) -> Result<Vec<Tensor>> {
    let mut late: Option<Tensor> = None;
    let mut steps = 0..5;
    #[ddp(each)]
    for step in steps.by_ref() {
        let mut x = input(ddp_runtime::rank(), step).matmul(w);
        if let Some(late) = &late {
            starts.push(late.copy());
            x = x.tanh().matmul(late);
        }
        vs.trainable_variables().iter_mut().for_each(Tensor::zero_grad);
        x.square().mean(Kind::Double).backward();
        tch::no_grad(|| {
            for mut variable in vs.trainable_variables() {
                if variable.grad().defined() {
                    let step = variable.grad() * 0.05;
                    variable -= step;
                }
            }
        });
        if step == LATE {
            let own = Tensor::randn([4, 4], (Kind::Double, Device::Cpu));
            late = Some(vs.root().var_copy("late", &own));
        }
    }
    Ok(vs.trainable_variables())
}

fn late_layer() -> Result<()> {
    let (vs, vars) = store(&[("w", &[4, 4])]);
    let ranks = ddp_runtime::world_size();
    let mut starts = Vec::new();
    let found = grow(&vs, &vars[0], &mut starts)?;
    // One process, from the values that the late layer had before its first step.
    let (reference, vars) = store(&[("w", &[4, 4])]);
    let mut late: Option<Tensor> = None;
    for step in 0..5 {
        let loss = |rank: usize| {
            let x = input(rank, step).matmul(&vars[0]);
            let x = late.as_ref().map_or_else(|| x.shallow_clone(), |late| x.tanh().matmul(late));
            x.square().mean(Kind::Double)
        };
        clear(&reference);
        let losses: Vec<Tensor> = (0..ranks).map(loss).collect();
        Tensor::stack(&losses, 0).mean(Kind::Double).backward();
        tch::no_grad(|| {
            for mut variable in reference.trainable_variables() {
                if variable.grad().defined() {
                    let step = variable.grad() * 0.05;
                    variable -= step;
                }
            }
        });
        if step == LATE {
            late = Some(reference.root().var_copy("late", &starts[0]));
        }
    }
    close("weights", &found, &reference.trainable_variables(), 1e-10)
}

/// The memory that this process has in use, in MiB.
fn resident_mb() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split_whitespace().nth(1).unwrap_or_default().parse()?;
    Ok((pages * 4096) >> 20)
}

/// Many models of 8 MiB and as much for their gradients, one after another in one scope.
fn many_models() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let mut used = Vec::new();
    for round in 0..30 {
        let store = nn::VarStore::new(Device::Cpu);
        let layer = nn::linear(store.root() / "layer", 1024, 2048, Default::default());
        scope.register(&store)?;
        let x = Tensor::ones([1, 1024], (Kind::Float, Device::Cpu)) * f64::from(round);
        layer.forward(&x).square().mean(Kind::Float).backward();
        used.push(resident_mb()?);
    }
    let (early, last) = (used[4], used[29]);
    ensure!(last < early + 100, "from {early} to {last} MiB: dropped models keep their memory");
    scope.finish()?;
    Ok(())
}

/// p17: one rank alone changes a weight.
fn drift(every: u64) -> Result<()> {
    let (store, vars) = store(&[("calm", &[4, 2]), ("drifting", &[2, 2])]);
    let debug = if every > 0 { Debug::Checksum { every } } else { Debug::Off };
    let scope = Scope::with_options("drift", Options { debug, ..Options::default() })?;
    scope.register(&store)?;
    for step in 0..8 {
        clear(&store);
        let loss = input(scope.rank(), step).matmul(&vars[0]).matmul(&vars[1]);
        loss.square().mean(Kind::Double).f_backward()?;
        if step == 4 && scope.rank() == 1 {
            tch::no_grad(|| drop(vars[1].shallow_clone().fill_(3.0)));
        }
    }
    scope.finish()?;
    Ok(())
}

pub(super) fn run(args: &[String]) -> Result<()> {
    match args.first().map(String::as_str) {
        Some("undefined") => undefined(),
        Some("shared-and-mixed") => shared_and_mixed(),
        Some("kept-graph") => kept_graph(),
        Some("created-graph") => created_graph(),
        Some("checkpoint") => checkpoint(true),
        Some("checkpoint-unsaid") => checkpoint(false),
        Some("late-layer") => late_layer(),
        Some("many-models") => many_models(),
        Some("drift") => drift(3),
        Some("drift-unseen") => drift(0),
        _ => bail!("no case of graphs is called {args:?}"),
    }
}
