//! Which parameters a backward reaches: not always the same, not always on all ranks.
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};
use ddp_runtime::Scope;
use tch::nn::{self, Module, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Tensor};

use super::compare::close;

/// Features of every layer.
fn width() -> i64 {
    WIDTH.get().copied().unwrap_or(4)
}

static WIDTH: OnceLock<i64> = OnceLock::new();
/// With so many a matrix is more than 4 MiB, and its gradient is reduced where autograd makes it.
const LARGE: i64 = 750;

/// A trunk and two heads.
struct Net {
    trunk: nn::Linear,
    left: nn::Linear,
    right: nn::Linear,
}

impl Net {
    fn new(root: &nn::Path) -> Self {
        let linear = |name: &str| nn::linear(root / name, width(), width(), Default::default());
        Self { trunk: linear("trunk"), left: linear("left"), right: linear("right") }
    }
}

fn input(rank: usize) -> Tensor {
    let all = 2 * width() as usize;
    let values: Vec<f64> = (0..all).map(|i| ((i + all * rank) as f64).sin()).collect();
    Tensor::from_slice(&values).view([2, width()])
}

fn double_store() -> (nn::VarStore, Net) {
    let mut store = nn::VarStore::new(Device::Cpu);
    let net = Net::new(&store.root());
    store.double();
    (store, net)
}

/// The mean over ranks of what each computes, by `run_backward`, which nobody averages.
fn expected_mean(
    net: &Net,
    parameters: &[&Tensor],
    world_size: usize,
    loss: impl Fn(&Net, usize) -> Option<Tensor>,
) -> Vec<Tensor> {
    let mut sums: Vec<Tensor> = parameters.iter().map(|parameter| parameter.zeros_like()).collect();
    for loss in (0..world_size).filter_map(|rank| loss(net, rank)) {
        let gradients = Tensor::run_backward(&[loss], parameters, false, false);
        for (sum, gradient) in sums.iter_mut().zip(gradients) {
            *sum += gradient;
        }
    }
    sums.into_iter().map(|sum| sum / world_size as f64).collect()
}

fn trunk(net: &Net, rank: usize) -> Tensor {
    net.trunk.forward(&input(rank)).tanh()
}

/// Rank 0 goes left, the others right: a head counts as zero where it was not taken.
fn branch_by_rank() -> Result<()> {
    let (store, net) = double_store();
    let scope = ddp_runtime::init()?;
    scope.register(&store)?;
    if scope.world_size() == 1 {
        return Ok(scope.finish()?);
    }
    let loss = |net: &Net, rank: usize| {
        let head = if rank == 0 { &net.left } else { &net.right };
        head.forward(&trunk(net, rank)).square().mean(Kind::Double)
    };
    for _ in 0..3 {
        for mut variable in store.trainable_variables() {
            variable.zero_grad();
        }
        loss(&net, scope.rank()).backward();
        let left = expected_mean(&net, &[&net.left.ws], scope.world_size(), |net, rank| {
            (rank == 0).then(|| loss(net, rank))
        });
        let right = expected_mean(&net, &[&net.right.ws], scope.world_size(), |net, rank| {
            (rank != 0).then(|| loss(net, rank))
        });
        let trunk = expected_mean(&net, &[&net.trunk.ws], scope.world_size(), |net, rank| {
            Some(loss(net, rank))
        });
        let found = [net.left.ws.grad(), net.right.ws.grad(), net.trunk.ws.grad()];
        close(
            "branches",
            &found,
            &[left, right, trunk].into_iter().flatten().collect::<Vec<_>>(),
            1e-12,
        )?;
    }
    scope.finish()?;
    Ok(())
}

/// What no rank used has no gradient, so that momentum and weight decay leave it alone.
fn unused_everywhere() -> Result<()> {
    let (store, net) = double_store();
    let scope = ddp_runtime::init()?;
    scope.register(&store)?;
    let mut opt = nn::Sgd { momentum: 0.9, wd: 0.1, ..Default::default() }.build(&store, 0.1)?;
    let before = net.right.ws.copy();
    for _ in 0..3 {
        let loss = net.left.forward(&trunk(&net, scope.rank())).square().mean(Kind::Double);
        opt.backward_step(&loss);
        ensure!(!net.right.ws.grad().defined(), "a parameter that nobody used has a gradient");
    }
    ensure!(net.right.ws.equal(&before), "a parameter that nobody used has moved");
    ensure!(net.left.ws.grad().defined(), "a parameter that was used has no gradient");
    scope.finish()?;
    Ok(())
}

/// Two kinds of backward in turn, with gradients of the other kind standing: they must not change.
fn taking_turns() -> Result<()> {
    let (store, net) = double_store();
    let scope = ddp_runtime::init()?;
    scope.register(&store)?;
    let rank = scope.rank();
    let side = |head: &nn::Linear, scale: f64| {
        (head.forward(&input(rank)) * scale).square().mean(Kind::Double)
    };
    for round in 0..4 {
        for mut variable in store.trainable_variables() {
            variable.zero_grad();
        }
        let scale = f64::from(round) + 0.5;
        side(&net.left, scale).backward();
        let left = net.left.ws.grad().copy();
        side(&net.right, scale).backward();
        ensure!(net.left.ws.grad().equal(&left), "the gradient of another backward has changed");
        let expected = expected_mean(&net, &[&net.right.ws], scope.world_size(), |net, rank| {
            Some((net.right.forward(&input(rank)) * scale).square().mean(Kind::Double))
        });
        close("turn", &[net.right.ws.grad()], &expected, 1e-12)?;
    }
    scope.finish()?;
    Ok(())
}

/// A gradient that the program keeps over the next backward keeps its values.
fn kept_gradient() -> Result<()> {
    let (store, net) = double_store();
    let scope = ddp_runtime::init()?;
    scope.register(&store)?;
    let mut opt = nn::Sgd::default().build(&store, 0.1)?;
    let mut kept: Vec<(Tensor, Tensor)> = Vec::new();
    for _ in 0..4 {
        let loss = net.left.forward(&trunk(&net, scope.rank())).square().mean(Kind::Double);
        opt.backward_step(&loss);
        let gradient = net.left.ws.grad();
        kept.push((gradient.copy(), gradient));
    }
    for (copy, alias) in &kept {
        ensure!(copy.equal(alias), "a gradient that was kept has been written over");
    }
    ensure!(!kept[0].0.equal(&kept[3].0), "the gradients of different steps are equal");
    scope.finish()?;
    Ok(())
}

/// `no_sync` accumulates on each rank alone; the next backward averages the sum.
fn no_sync() -> Result<()> {
    let (store, net) = double_store();
    let scope = ddp_runtime::init()?;
    scope.register(&store)?;
    let loss = |net: &Net, rank: usize, part: f64| {
        (net.left.forward(&trunk(net, rank)) * part).square().mean(Kind::Double)
    };
    for _ in 0..2 {
        for mut variable in store.trainable_variables() {
            variable.zero_grad();
        }
        scope.no_sync(|| loss(&net, scope.rank(), 1.0).backward());
        let own = net.left.ws.grad().copy();
        let alone =
            Tensor::run_backward(&[loss(&net, scope.rank(), 1.0)], &[&net.left.ws], false, false);
        close("own part", &[own], &alone, 1e-12)?;
        loss(&net, scope.rank(), 2.0).backward();
        let expected = expected_mean(&net, &[&net.left.ws], scope.world_size(), |net, rank| {
            Some(loss(net, rank, 1.0) + loss(net, rank, 2.0))
        });
        close("both parts", &[net.left.ws.grad()], &expected, 1e-12)?;
    }
    scope.finish()?;
    Ok(())
}

/// Weights that differ and that nobody registered: rank 0's count, from the first step on.
fn unequal_weights() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let rank = scope.rank();
    let start = |rank: usize| {
        tch::manual_seed(100 + rank as i64);
        Tensor::randn([width(), width() - 1], (Kind::Double, Device::Cpu))
    };
    let loss = |w: &Tensor, rank: usize| input(rank).matmul(w).square().mean(Kind::Double);
    let mut w = start(rank).set_requires_grad(true);
    let mut reference = start(0).set_requires_grad(true);
    for step in 0..3 {
        w.zero_grad();
        loss(&w, rank).backward();
        let everyone = if step == 0 { 1 } else { scope.world_size() };
        let parts: Vec<Tensor> = (0..everyone).map(|rank| loss(&reference, rank)).collect();
        let mean = Tensor::stack(&parts, 0).mean(Kind::Double);
        let gradient = Tensor::run_backward(&[mean], &[&reference], false, false).remove(0);
        close("gradient", &[w.grad()], &[gradient.shallow_clone()], 1e-12)?;
        tch::no_grad(|| {
            w -= w.grad() * 0.1;
            reference -= gradient * 0.1;
        });
        close("weights", &[w.shallow_clone()], &[reference.shallow_clone()], 1e-12)?;
    }
    scope.finish()?;
    Ok(())
}

/// BatchNorm: running statistics are rank 0's on all ranks after each step.
fn buffers() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let store = nn::VarStore::new(Device::Cpu);
    let norm = nn::batch_norm1d(store.root(), 4, Default::default());
    scope.register(&store)?;
    for _ in 0..3 {
        let x = input(scope.rank()).to_kind(Kind::Float);
        nn::ModuleT::forward_t(&norm, &x, true).square().sum(Kind::Float).backward();
        let all = scope.all_gather(&norm.running_mean)?;
        ensure!(all.iter().all(|mean| mean.equal(&all[0])), "running means differ: {all:?}");
    }
    let first = scope.all_gather(&norm.running_mean)?.into_iter().next().context("no rank")?;
    ensure!(first.abs().max().double_value(&[]) > 0.0, "the statistics never moved");
    scope.finish()?;
    Ok(())
}

/// A layer with running statistics in f64, registered.
fn norm(scope: &Scope) -> Result<(nn::VarStore, nn::BatchNorm)> {
    let mut store = nn::VarStore::new(Device::Cpu);
    let norm = nn::batch_norm1d(store.root(), 4, Default::default());
    store.double();
    scope.register(&store)?;
    Ok((store, norm))
}

/// p13: another backward spreads buffers while a graph that has saved them still waits for its own.
fn buffers_in_a_graph() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let (_store, norm) = norm(&scope)?;
    let x = input(scope.rank());
    for _ in 0..3 {
        // In evaluation the graph keeps the running statistics themselves.
        let waiting = norm.forward_t(&x, false).square().sum(Kind::Double);
        norm.forward_t(&x, true).square().sum(Kind::Double).f_backward()?;
        waiting.f_backward()?;
    }
    Ok(scope.finish()?)
}

/// A forward without a backward leaves each rank its own statistics: until the save, or the end.
fn buffers_at_the_end(folder: &str) -> Result<()> {
    let run = |save: Option<&Path>| -> Result<nn::VarStore> {
        let scope = ddp_runtime::init()?;
        let (store, norm) = norm(&scope)?;
        let _ = norm.forward_t(&input(scope.rank()), true);
        let own = norm.running_mean.copy();
        let others = scope.all_gather(&own)?;
        let apart = others.iter().any(|other| !other.equal(&own));
        ensure!(apart == (scope.world_size() > 1), "the statistics are equal before");
        if let Some(path) = save {
            store_by_attribute(&store, path)?;
            let mut saved = nn::VarStore::new(Device::Cpu);
            let _ = nn::batch_norm1d(saved.root(), 4, Default::default());
            saved.double();
            saved.load(path)?;
            for (name, value) in store.variables() {
                ensure!(saved.variables()[&name].equal(&value), "{name} is another in the file");
            }
        }
        scope.finish()?;
        Ok(store)
    };
    run(Some(&Path::new(folder).join(format!("{}.safetensors", ddp_runtime::world_size()))))?;
    let store = run(None)?;
    let scope = ddp_runtime::init()?;
    for (name, value) in sorted(&store) {
        let all = scope.all_gather(&value)?;
        ensure!(all.iter().all(|other| other.equal(&value)), "{name} differs after the scope");
    }
    Ok(scope.finish()?)
}

fn sorted(store: &nn::VarStore) -> Vec<(String, Tensor)> {
    let mut variables: Vec<(String, Tensor)> = store.variables().into_iter().collect();
    variables.sort_unstable_by(|(name, _), (other, _)| name.cmp(other));
    variables
}

/// `save` as a marked function has it.
#[ddp_runtime::distributed]
fn store_by_attribute(vs: &nn::VarStore, path: &Path) -> Result<()> {
    vs.save(path)?;
    Ok(())
}

/// p23: the norm that clipping sees, and what it leaves, are those of the mean over the ranks.
fn clipping() -> Result<()> {
    let (store, net) = double_store();
    let scope = ddp_runtime::init()?;
    scope.register(&store)?;
    let loss = |net: &Net, rank: usize| {
        // Of opposite signs: the mean is much smaller than each rank's own.
        let sign = if rank.is_multiple_of(2) { 1.0 } else { -0.9 };
        (net.left.forward(&trunk(net, rank)) * sign).sum(Kind::Double)
    };
    let names = ["trunk.weight", "trunk.bias", "left.weight", "left.bias"];
    let variables = store.variables();
    let parameters = names.map(|name| &variables[name]);
    let mean =
        expected_mean(&net, &parameters, scope.world_size(), |net, rank| Some(loss(net, rank)));
    let norm = |gradients: &[Tensor]| -> f64 {
        gradients.iter().map(|g| g.square().sum(Kind::Double).double_value(&[])).sum::<f64>().sqrt()
    };
    let whole = norm(&mean);
    let opt = nn::Sgd::default().build(&store, 0.1)?;
    for part in [0.5, 2.0] {
        for mut variable in store.trainable_variables() {
            variable.zero_grad();
        }
        loss(&net, scope.rank()).backward();
        opt.clip_grad_norm(part * whole);
        let expected: Vec<Tensor> = mean.iter().map(|gradient| gradient * part.min(1.0)).collect();
        let found = parameters.map(Tensor::grad);
        close("clipped", &found, &expected, 1e-5)?;
    }
    Ok(scope.finish()?)
}

pub(super) fn run(args: &[String]) -> Result<()> {
    if args.get(1).is_some_and(|size| size == "large") {
        WIDTH.get_or_init(|| LARGE);
    }
    match args.first().map(String::as_str) {
        Some("branch-by-rank") => branch_by_rank(),
        Some("unused-everywhere") => unused_everywhere(),
        Some("taking-turns") => taking_turns(),
        Some("kept-gradient") => kept_gradient(),
        Some("no-sync") => no_sync(),
        Some("unequal-weights") => unequal_weights(),
        Some("buffers") => buffers(),
        Some("buffers-in-a-graph") => buffers_in_a_graph(),
        Some("buffers-at-the-end") => buffers_at_the_end(args.get(1).context("no folder")?),
        Some("clipping") => clipping(),
        _ => bail!("no case of leaves is called {args:?}"),
    }
}
