//! Groups of backwards: averaged once, with a remainder, and with the result of one process that sees all batches.
use anyhow::{Result, bail, ensure};
use ddp_runtime::{Options, Scope, Uneven};
use tch::data::Iter2;
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

use super::compare::close;

const FEATURES: i64 = 4;
const BATCH: i64 = 3;
const GROUP: i64 = 3;
/// Batches of a rank: two groups and a remainder.
const BATCHES: i64 = 7;
const EPOCHS: i64 = 2;

struct Net {
    store: nn::VarStore,
    trunk: nn::Linear,
    left: nn::Linear,
    right: nn::Linear,
}

impl Net {
    /// The same weights wherever it is called.
    fn new() -> Self {
        let mut store = nn::VarStore::new(Device::Cpu);
        let linear =
            |name: &str| nn::linear(store.root() / name, FEATURES, FEATURES, Default::default());
        let (trunk, left, right) = (linear("trunk"), linear("left"), linear("right"));
        store.double();
        tch::no_grad(|| {
            for (index, mut variable) in store.trainable_variables().into_iter().enumerate() {
                let values = Tensor::arange(variable.numel() as i64, (Kind::Double, Device::Cpu));
                variable.copy_(&(values + index as f64).cos().view_as(&variable));
            }
        });
        Self { store, trunk, left, right }
    }

    fn loss(&self, x: &Tensor, y: &Tensor) -> Tensor {
        let x = self.trunk.forward(x).tanh();
        (self.left.forward(&x) + self.right.forward(&x) - y).square().mean(Kind::Double)
    }

    fn optimizer(&self) -> Result<nn::Optimizer> {
        let config = nn::Sgd { momentum: 0.9, wd: 0.01, ..Default::default() };
        Ok(config.build(&self.store, 0.1)?)
    }
}

fn rows(world_size: i64) -> (Tensor, Tensor) {
    let count = world_size * BATCHES * BATCH;
    let rows = |factor: f64| {
        let values = Tensor::arange(count * FEATURES, (Kind::Double, Device::Cpu));
        (values * factor).sin().view([count, FEATURES])
    };
    (rows(0.7), rows(1.3))
}

/// As patterns go: step after every third batch, and once more for the rest.
#[ddp_runtime::distributed(accumulate = 3)]
fn train(net: &Net, store: &nn::VarStore, xs: &Tensor, ys: &Tensor) -> Result<()> {
    let mut opt = net.optimizer()?;
    for _ in 0..EPOCHS {
        let mut count = 0;
        for (i, (x, y)) in Iter2::new(xs, ys, BATCH).enumerate() {
            (net.loss(&x, &y) / GROUP as f64).backward();
            count = i as i64 + 1;
            if count % GROUP == 0 {
                opt.step();
                opt.zero_grad();
            }
        }
        if count % GROUP != 0 {
            opt.step();
            opt.zero_grad();
        }
    }
    ensure!(!store.trainable_variables().is_empty(), "nothing to train");
    Ok(())
}

/// One process that takes the ranks' batches together: rank r has the rows r, r + W, ..
fn by_hand(world_size: i64, steps_of_group: impl Fn(i64) -> bool) -> Result<Net> {
    let net = Net::new();
    let mut opt = net.optimizer()?;
    let (xs, ys) = rows(world_size);
    for _ in 0..EPOCHS {
        opt.zero_grad();
        for batch in 0..BATCHES {
            let length = BATCH * world_size;
            let part = |t: &Tensor| t.narrow(0, batch * length, length);
            (net.loss(&part(&xs), &part(&ys)) / GROUP as f64).backward();
            if steps_of_group(batch) {
                opt.step();
                opt.zero_grad();
            }
        }
    }
    Ok(net)
}

fn group_or_rest(batch: i64) -> bool {
    (batch + 1) % GROUP == 0 || batch + 1 == BATCHES
}

fn with_remainder() -> Result<()> {
    let net = Net::new();
    let world_size = ddp_runtime::world_size() as i64;
    let (xs, ys) = rows(world_size);
    train(&net, &net.store, &xs, &ys)?;
    let expected = by_hand(world_size, group_or_rest)?;
    let weights = expected.store.trainable_variables();
    close("weights", &net.store.trainable_variables(), &weights, 1e-10)
}

fn input(rank: usize, step: i64) -> Tensor {
    let values = Tensor::arange(2 * FEATURES, (Kind::Double, Device::Cpu));
    (values + (10 * step + 3 * rank as i64) as f64).sin().view([2, FEATURES])
}

fn scope(net: &Net, accumulate: usize) -> Result<Scope> {
    let scope = Scope::with_options("accumulate", Options { accumulate, ..Options::default() })?;
    scope.register(&net.store)?;
    Ok(scope)
}

/// Until the group is complete, gradients are the rank's own; then they are the mean, also of a part that only the first
/// backward of the group reached.
fn group_of_two() -> Result<()> {
    let net = Net::new();
    let scope = scope(&net, 2)?;
    let ranks: Vec<usize> = (0..scope.world_size()).collect();
    let left = |rank| net.left.forward(&input(rank, 0)).square().mean(Kind::Double);
    let right = |rank| net.right.forward(&input(rank, 1)).square().mean(Kind::Double);
    let gradient = |of: &Tensor, losses: Vec<Tensor>| {
        let mean = Tensor::stack(&losses, 0).mean(Kind::Double);
        Tensor::run_backward(&[mean], &[of], false, false).remove(0)
    };
    for _ in 0..3 {
        left(scope.rank()).backward();
        let own = gradient(&net.left.ws, vec![left(scope.rank())]);
        close("own", &[net.left.ws.grad()], &[own], 1e-12)?;
        right(scope.rank()).backward();
        let both = [net.left.ws.grad(), net.right.ws.grad()];
        let means = [
            gradient(&net.left.ws, ranks.iter().map(|&rank| left(rank)).collect()),
            gradient(&net.right.ws, ranks.iter().map(|&rank| right(rank)).collect()),
        ];
        close("mean", &both, &means, 1e-12)?;
        for mut variable in net.store.trainable_variables() {
            variable.zero_grad();
        }
    }
    scope.finish()?;
    Ok(())
}

/// A step after two backwards of a group of three.
fn too_early(averaged: bool) -> Result<()> {
    let net = Net::new();
    let scope = scope(&net, 3)?;
    let (rank, world_size) = (scope.rank(), scope.world_size());
    steps_of_two(&net, &[rank], || {
        if averaged {
            ddp_runtime::average_gradients();
        }
    })?;
    scope.finish()?;
    let expected = Net::new();
    steps_of_two(&expected, &(0..world_size).collect::<Vec<_>>(), || ())?;
    let weights = expected.store.trainable_variables();
    close("weights", &net.store.trainable_variables(), &weights, 1e-10)
}

/// Three steps, each after two batches of these ranks.
fn steps_of_two(net: &Net, ranks: &[usize], before_step: impl Fn()) -> Result<()> {
    let mut opt = net.optimizer()?;
    for round in 0..3 {
        for step in 0..2 {
            let loss = |&rank: &usize| {
                let x = input(rank, 2 * round + step);
                net.loss(&x, &x)
            };
            let losses: Vec<Tensor> = ranks.iter().map(loss).collect();
            Tensor::stack(&losses, 0).mean(Kind::Double).f_backward()?;
        }
        before_step();
        opt.step();
        opt.zero_grad();
    }
    Ok(())
}

fn with_join() -> Result<()> {
    let options = Options { accumulate: 2, uneven: Uneven::Join, ..Options::default() };
    let scope = Scope::with_options("accumulate", options)?;
    scope.finish()?;
    Ok(())
}

pub(super) fn run(args: &[String]) -> Result<()> {
    match args.first().map(String::as_str) {
        Some("with-remainder") => with_remainder(),
        Some("group-of-two") => group_of_two(),
        Some("too-early") => too_early(false),
        Some("too-early-averaged") => too_early(true),
        Some("with-join") => with_join(),
        _ => bail!("no case of accumulate is called {args:?}"),
    }
}
