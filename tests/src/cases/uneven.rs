//! Ranks that take 7, 9 and 12 steps: the end of the job, or, under `uneven = "join"`, a mean over those that still train.
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ddp_runtime::{Options, ReduceOp, Scope, Uneven};
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Tensor};

use super::compare::close;

const STEPS: [i64; 3] = [7, 9, 12];
const FEATURES: i64 = 4;

/// The batch of a rank's step.
fn input(rank: usize, step: i64) -> Tensor {
    let first = 40 * step + 13 * rank as i64;
    let values: Vec<f64> = (0..3 * FEATURES).map(|i| ((first + i) as f64).sin()).collect();
    Tensor::from_slice(&values).view([3, FEATURES])
}

struct Net {
    store: nn::VarStore,
    norm: nn::BatchNorm,
    layer: nn::Linear,
}

/// The same weights wherever it is called.
fn net() -> Net {
    let mut store = nn::VarStore::new(Device::Cpu);
    let norm = nn::batch_norm1d(store.root() / "norm", FEATURES, Default::default());
    let layer = nn::linear(store.root() / "layer", FEATURES, 2, Default::default());
    store.double();
    tch::no_grad(|| {
        for (index, mut variable) in store.trainable_variables().into_iter().enumerate() {
            let values = Tensor::arange(variable.numel() as i64, (Kind::Double, Device::Cpu));
            variable.copy_(&(values + index as f64).cos().view_as(&variable));
        }
    });
    Net { store, norm, layer }
}

fn loss(net: &Net, rank: usize, step: i64) -> Tensor {
    net.norm
        .forward_t(&input(rank, step), true)
        .apply(&net.layer)
        .tanh()
        .square()
        .mean(Kind::Double)
}

fn optimizer(store: &nn::VarStore) -> Result<nn::Optimizer> {
    Ok(nn::Sgd { momentum: 0.9, wd: 0.01, ..Default::default() }.build(store, 0.1)?)
}

/// The ranks that take a step.
fn present(step: i64, world_size: usize) -> Vec<usize> {
    (0..world_size).filter(|&rank| STEPS[rank] > step).collect()
}

/// One process that takes in each step the mean over the ranks that take it; the statistics are those of the lowest.
fn by_hand(world_size: usize) -> Result<Net> {
    let net = net();
    let mut opt = optimizer(&net.store)?;
    for step in 0..STEPS[world_size - 1] {
        let ranks = present(step, world_size);
        let before: Vec<Tensor> = statistics(&net).iter().map(Tensor::copy).collect();
        let mut after: Option<Vec<Tensor>> = None;
        opt.zero_grad();
        for &rank in &ranks {
            tch::no_grad(|| statistics(&net).iter_mut().zip(&before).for_each(|(s, b)| s.copy_(b)));
            (loss(&net, rank, step) / ranks.len() as f64).backward();
            after.get_or_insert_with(|| statistics(&net).iter().map(Tensor::copy).collect());
        }
        opt.step();
        if let Some(after) = after {
            tch::no_grad(|| statistics(&net).iter_mut().zip(&after).for_each(|(s, a)| s.copy_(a)));
        }
    }
    Ok(net)
}

fn statistics(net: &Net) -> [Tensor; 2] {
    [net.norm.running_mean.shallow_clone(), net.norm.running_var.shallow_clone()]
}

fn values(net: &Net) -> Vec<Tensor> {
    let mut all: Vec<(String, Tensor)> = net.store.variables().into_iter().collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.into_iter().map(|(_, tensor)| tensor).collect()
}

fn scope(uneven: Uneven) -> Result<Scope> {
    Ok(Scope::with_options("uneven", Options { uneven, ..Options::default() })?)
}

/// Each rank takes its steps, and asks in each what the ranks that take it say.
fn join() -> Result<()> {
    let net = net();
    let scope = scope(Uneven::Join)?;
    scope.register(&net.store)?;
    let (rank, world_size) = (scope.rank(), scope.world_size());
    let mut opt = optimizer(&net.store)?;
    for step in 0..STEPS[rank] {
        opt.backward_step(&loss(&net, rank, step));
        let ranks = present(step, world_size);
        let total: usize = ranks.iter().sum();
        let mean = total as f64 / ranks.len() as f64;
        ensure!(ddp_runtime::mean(rank as f64) == mean, "the mean is not that of {ranks:?}");
        ensure!(!ddp_runtime::should_stop(false), "nobody wants to stop");
        ensure!(ddp_runtime::agree(true), "a rank that has returned has no say");
        let own = Tensor::from_slice(&[rank as f64, 1.0]);
        let means = Vec::<f64>::try_from(ddp_runtime::mean(&own))?;
        ensure!(means == [mean, 1.0], "the mean tensor is {means:?}, not that of {ranks:?}");
        let largest = Tensor::from_slice(&[-(rank as i64) - 5]);
        scope.all_reduce(&largest, ReduceOp::Max)?;
        ensure!(largest.int64_value(&[0]) == -(ranks[0] as i64) - 5, "the maximum is {largest:?}");
        scope.all_reduce(&own, ReduceOp::Avg)?;
        let means = Vec::<f64>::try_from(&own)?;
        ensure!(means == [mean, 1.0], "the mean is {means:?}, not that of {ranks:?}");
        scope.barrier()?;
    }
    scope.finish()?;
    close("weights and statistics", &values(&net), &values(&by_hand(world_size)?), 1e-10)
}

fn own_steps() -> i64 {
    STEPS[ddp_runtime::rank()]
}

/// Under the attribute, with a save at the end: the file holds what the rank with the most steps has.
#[ddp_runtime::distributed(uneven = "join")]
fn train_and_save(net: &Net, store: &nn::VarStore, path: &str) -> Result<i64> {
    let mut opt = optimizer(store)?;
    let mut step = 0;
    #[ddp(each)]
    while step < own_steps() {
        opt.backward_step(&loss(net, ddp_runtime::rank(), step));
        step += 1;
    }
    store.save(path)?;
    Ok(step)
}

fn save(path: &str) -> Result<()> {
    let net = net();
    let steps = train_and_save(&net, &net.store, path)?;
    ensure!(steps == own_steps(), "each rank returns its own value");
    let mut saved = self::net();
    saved.store.load(path)?;
    let expected = by_hand(ddp_runtime::world_size())?;
    close("saved", &values(&saved), &values(&expected), 1e-10)?;
    close("own", &values(&net), &values(&expected), 1e-10)
}

/// Who has missed steps does not train on after a save.
#[ddp_runtime::distributed(uneven = "join")]
fn trains_on(net: &Net, store: &nn::VarStore, path: &str) -> Result<()> {
    let mut opt = optimizer(store)?;
    for _ in 0..2 {
        let mut step = 0;
        #[ddp(each)]
        while step < own_steps() {
            let loss = loss(net, ddp_runtime::rank(), step);
            opt.zero_grad();
            loss.f_backward()?;
            opt.step();
            step += 1;
        }
        store.save(path)?;
    }
    Ok(())
}

/// A layer that is added where a rank has returned already.
fn late_layer() -> Result<()> {
    let net = net();
    let scope = scope(Uneven::Join)?;
    scope.register(&net.store)?;
    for step in 0..STEPS[scope.rank()] {
        loss(&net, scope.rank(), step).f_backward()?;
    }
    if scope.rank() > 0 {
        let late = nn::linear(net.store.root() / "late", 2, 2, Default::default());
        scope.register(&net.store)?;
        Tensor::ones([1, 2], (Kind::Float, Device::Cpu))
            .apply(&late)
            .sum(Kind::Float)
            .f_backward()?;
    }
    scope.finish()?;
    Ok(())
}

/// A collective that needs every rank's tensor.
fn gather() -> Result<()> {
    let scope = scope(Uneven::Join)?;
    if scope.rank() > 0 {
        scope.all_gather(&Tensor::from_slice(&[1.0]))?;
    }
    scope.finish()?;
    Ok(())
}

/// `main_first` where the first has returned.
fn first_has_left() -> Result<()> {
    let scope = scope(Uneven::Join)?;
    if scope.rank() > 0 {
        ddp_runtime::main_first(|| ());
    }
    scope.finish()?;
    Ok(())
}

/// p02: without `join` the first rank to leave ends the job.
fn error() -> Result<()> {
    let net = net();
    let scope = scope(Uneven::Error)?;
    scope.register(&net.store)?;
    let mut last = Instant::now();
    let mut outcome = Ok(());
    for step in 0..STEPS[scope.rank()] {
        outcome = loss(&net, scope.rank(), step).f_backward();
        if outcome.is_err() {
            break;
        }
        last = Instant::now();
    }
    let outcome = outcome.map_err(anyhow::Error::from).and_then(|()| Ok(scope.finish()?));
    ensure!(last.elapsed() < Duration::from_secs(20), "it took {:?} to notice", last.elapsed());
    outcome
}

pub(super) fn run(args: &[String]) -> Result<()> {
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["join"] => join(),
        ["save", path] => save(path),
        ["trains-on", path] => {
            let net = net();
            trains_on(&net, &net.store, path)
        }
        ["late-layer"] => late_layer(),
        ["gather"] => gather(),
        ["first-has-left"] => first_has_left(),
        ["error"] => error(),
        _ => bail!("no case of uneven is called {args:?}"),
    }
}
