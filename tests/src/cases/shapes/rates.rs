//! Learning rates that the program sets, and running statistics.
use anyhow::{Result, ensure};
use tch::data::Iter2;
use tch::nn::{self, Module, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};

use super::course::{
    BATCH, Seen, all_rows, compile_twice, equal_everywhere, follow, seed, seed_apart, sgd,
    sorted_variables,
};
use super::one_process::{Batch, FEATURES, Net, alike, equal};

/// s18: halves the rate when a figure has not become much better. It is no optimizer, though it steps.
struct Plateau {
    best: f64,
    rate: f64,
}

impl Plateau {
    fn step(&mut self, figure: f64) {
        if figure > self.best * 0.5 {
            self.rate *= 0.5;
        }
        self.best = self.best.min(figure);
    }
}

macro_rules! programs {
    ($($attribute:meta)?) => {
        /// Returns the rates of all steps beside the variables.
        $(#[$attribute])?
        pub(super) fn s18((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            let front = nn::linear(vs.root().set_group(1) / "front", FEATURES, FEATURES, Default::default());
            vs.double();
            let mut opt = nn::Sgd { momentum: 0.9, ..Default::default() }.build(&vs, 0.1)?;
            let mut scheduler = Plateau { best: f64::MAX, rate: 0.1 };
            let (mut step, mut rates) = (0, Vec::new());
            for epoch in 0..4 {
                for (x, y) in Iter2::new(xs, ys, batch) {
                    let rate = scheduler.rate * (f64::from(step + 1) / 5.0).min(1.0) * 0.97f64.powi(epoch);
                    opt.set_lr(rate);
                    opt.set_lr_group(1, rate * 0.1);
                    opt.backward_step(&net.loss(&front.forward(&x), &y));
                    rates.push(rate);
                    step += 1;
                }
                let validation = tch::no_grad(|| net.loss(&front.forward(xs), ys));
                scheduler.step(validation.double_value(&[]));
            }
            let halved = scheduler.rate < 0.1;
            ensure!(halved, "the schedule never changed the rate");
            let mut found = vs.trainable_variables();
            found.push(Tensor::from_slice(&rates));
            Ok(found)
        }
    };
}
compile_twice!();

pub(super) fn s18_learning_rates() -> Result<()> {
    follow("rates", plain::s18, shared::s18)
}

/// s19: a convolution with running statistics, over samples laid out as images.
fn conv_net(path: &nn::Path) -> nn::SequentialT {
    // A bias would have no gradient but rounding: the statistics take it away again.
    let config = nn::ConvConfig { bias: false, ..Default::default() };
    nn::seq_t()
        .add_fn(|x| x.view([-1, 1, 2, 3]))
        .add(nn::conv2d(path / "conv", 1, 4, 2, config))
        .add(nn::batch_norm2d(path / "bn", 4, Default::default()))
        .add_fn(|x| x.tanh().flatten(1, -1))
        .add(nn::linear(path / "out", 8, 1, Default::default()))
}

/// What another rank's file, or another history, would have left there.
fn spoil_statistics(vs: &nn::VarStore) {
    for (name, mut variable) in vs.variables() {
        if name.ends_with("running_mean") {
            let _ = variable.fill_(ddp_runtime::rank() as f64);
        }
    }
}

/// Returns all variables, statistics included, and what each evaluation gave.
#[ddp_runtime::distributed]
fn normalised((xs, ys): &Batch, seen: &mut Seen) -> Result<(Vec<Tensor>, Vec<f64>)> {
    let mut vs = nn::VarStore::new(Device::Cpu);
    let net = conv_net(&vs.root());
    vs.double();
    spoil_statistics(&vs);
    let mut opt = sgd(&vs)?;
    let mut figures = Vec::new();
    for _epoch in 0..2 {
        for (x, y) in Iter2::new(xs, ys, BATCH).shuffle() {
            if seen.is_empty() {
                equal_everywhere(&sorted_variables(&vs))?;
            }
            seen.note(&x, &y);
            opt.backward_step(&net.forward_t(&x, true).mse_loss(&y, Reduction::Mean));
        }
        let validation = tch::no_grad(|| net.forward_t(xs, false).mse_loss(ys, Reduction::Mean));
        figures.push(validation.double_value(&[]));
    }
    Ok((sorted_variables(&vs), figures))
}

/// A replica for each rank in one process; after each step all have the weights and the statistics of the first.
fn replicas(rounds: &[Vec<Batch>]) -> Result<Vec<Tensor>> {
    let mut stores = Vec::new();
    for _ in 0..ddp_runtime::world_size() {
        seed();
        let mut vs = nn::VarStore::new(Device::Cpu);
        let net = conv_net(&vs.root());
        vs.double();
        stores.push((vs, net));
    }
    let mut opt = sgd(&stores[0].0)?;
    for round in rounds {
        let loss = |((_, net), (x, y)): (&(nn::VarStore, nn::SequentialT), &Batch)| {
            net.forward_t(x, true).mse_loss(y, Reduction::Mean)
        };
        let losses: Vec<Tensor> = stores.iter().zip(round).map(loss).collect();
        for variable in stores.iter().flat_map(|(vs, _)| vs.trainable_variables()) {
            variable.shallow_clone().zero_grad();
        }
        Tensor::stack(&losses, 0).mean(Kind::Double).backward();
        let Some(((first, _), others)) = stores.split_first_mut() else { continue };
        for (other, _) in others.iter() {
            for (sum, part) in first.trainable_variables().iter().zip(other.trainable_variables()) {
                let _ = sum.grad().g_add_(&part.grad());
            }
        }
        opt.step();
        for (other, _) in others {
            other.copy(first)?;
        }
    }
    Ok(sorted_variables(&stores[0].0))
}

pub(super) fn s19_batch_norm() -> Result<()> {
    let (rows, mut seen) = (all_rows(), Seen::default());
    seed_apart();
    let (found, figures) = normalised(&rows, &mut seen)?;
    alike("validation", &figures)?;
    equal_everywhere(&found)?;
    ensure!(found.len() == 7, "{} variables", found.len());
    equal("batch norm", &found, &replicas(&seen.rounds()?)?)
}
