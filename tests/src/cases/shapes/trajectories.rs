//! Trajectories: a hundred steps of whole training programs, beside one process that takes the joined batches.
use anyhow::{Context, Result, bail, ensure};
use tch::data::Iter2;
use tch::nn::{self, Module, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};

use super::course::{Seen, seed, seed_apart, sorted_variables};
use super::one_process::{Batch, FEATURES, Net, alike, data};
use crate::cases::compare::close;

/// Rows of a rank's batch.
const BATCH: i64 = 4;
/// Batches of a rank in one pass over the data.
const PASS: i64 = 20;
/// Passes.
const EPOCHS: i64 = 5;
/// What rounding may have become after the last step.
const LIMIT: f64 = 1e-8;
/// Backwards to a step of the program that accumulates; the last step of a pass has fewer.
const GROUP: i64 = 3;

fn sgd(vs: &nn::VarStore) -> Result<nn::Optimizer> {
    Ok(nn::Sgd { momentum: 0.9, wd: 1e-4, ..Default::default() }.build(vs, 0.02)?)
}

/// Requires that as many steps were taken as a trajectory has.
fn count(steps: i64) -> Result<()> {
    ensure!(steps == EPOCHS * PASS, "{steps} steps");
    Ok(())
}

fn linear(path: nn::Path, from: i64, to: i64) -> nn::Linear {
    nn::linear(path, from, to, Default::default())
}

/// Who takes the branch is the rank's own affair, out of the attribute's sight.
fn takes_branch(rank: usize, step: i64) -> bool {
    rank == 0 && step % 3 == 1
}

fn branch_loss(branch: &nn::Linear, x: &Tensor) -> Tensor {
    (branch.forward(x).tanh() - 0.5).square().mean(Kind::Double)
}

/// Normalised twice: images, then rows. No bias before a norm: it would have no gradient but rounding.
fn normalised(root: &nn::Path) -> nn::SequentialT {
    let conv = nn::ConvConfig { bias: false, ..Default::default() };
    let plain = nn::LinearConfig { bias: false, ..Default::default() };
    nn::seq_t()
        .add_fn(|x| x.view([-1, 1, 2, 3]))
        .add(nn::conv2d(root / "conv", 1, 4, 2, conv))
        .add(nn::batch_norm2d(root / "bn2", 4, Default::default()))
        .add_fn(|x| x.tanh().flatten(1, -1))
        .add(nn::linear(root / "hidden", 8, 6, plain))
        .add(nn::batch_norm1d(root / "bn1", 6, Default::default()))
        .add_fn(Tensor::tanh)
        .add(linear(root / "out", 6, 1))
}

macro_rules! programs {
    ($($attribute:meta)?) => {
        /// A generator and a discriminator, each with its store and its optimizer.
        $(#[$attribute])?
        pub(super) fn gan((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let (mut gen_vs, mut disc_vs) = (nn::VarStore::new(Device::Cpu), nn::VarStore::new(Device::Cpu));
            let generator = linear(gen_vs.root() / "gen", FEATURES, FEATURES);
            let disc = Net::new(&disc_vs.root());
            gen_vs.double();
            disc_vs.double();
            let (mut gen_opt, mut disc_opt) = (sgd(&gen_vs)?, sgd(&disc_vs)?);
            let mut steps = 0;
            for _epoch in 0..EPOCHS {
                for (real, noise) in Iter2::new(xs, &(xs * ys), batch) {
                    let fake = generator.forward(&noise).tanh();
                    let disc_loss = (disc.forward(&real) - 1.0).square().mean(Kind::Double)
                        + disc.forward(&fake.detach()).square().mean(Kind::Double);
                    disc_opt.backward_step(&disc_loss);
                    // Through the discriminator, which gets gradients of the wrong loss; zero_grad takes them away.
                    let gen_loss = (disc.forward(&fake) - 1.0).square().mean(Kind::Double);
                    gen_opt.backward_step(&gen_loss);
                    steps += 1;
                }
            }
            count(steps)?;
            let mut found = gen_vs.trainable_variables();
            found.extend(disc_vs.trainable_variables());
            Ok(found)
        }

        /// Two backwards reach the trunk, which the actor's optimizer moves.
        $(#[$attribute])?
        pub(super) fn actor_critic((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let (mut actor_vs, mut critic_vs) = (nn::VarStore::new(Device::Cpu), nn::VarStore::new(Device::Cpu));
            let trunk = linear(actor_vs.root() / "trunk", FEATURES, 8);
            let policy = linear(actor_vs.root() / "policy", 8, 3);
            let critic = linear(critic_vs.root() / "critic", 8, 1);
            actor_vs.double();
            critic_vs.double();
            let mut actor_opt = nn::Adam::default().build(&actor_vs, 1e-2)?;
            let mut critic_opt = sgd(&critic_vs)?;
            let mut steps = 0;
            for _epoch in 0..EPOCHS {
                for (state, reward) in Iter2::new(xs, ys, batch) {
                    let action = state.narrow(1, 0, 3).argmax(1, true);
                    actor_opt.zero_grad();
                    critic_opt.zero_grad();
                    let seen = trunk.forward(&state).tanh();
                    let value = critic.forward(&seen);
                    value.mse_loss(&reward, Reduction::Mean).backward();
                    let advantage = (reward - value).detach();
                    let chosen = policy.forward(&trunk.forward(&state).tanh());
                    let chosen = chosen.log_softmax(1, Kind::Double).gather(1, &action, false);
                    (-(chosen * advantage)).mean(Kind::Double).backward();
                    actor_opt.step();
                    critic_opt.step();
                    steps += 1;
                }
            }
            count(steps)?;
            let mut found = actor_vs.trainable_variables();
            found.extend(critic_vs.trainable_variables());
            Ok(found)
        }

        /// A backbone that is frozen for the first passes.
        $(#[$attribute])?
        pub(super) fn frozen((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let (mut vs, mut head_vs) = (nn::VarStore::new(Device::Cpu), nn::VarStore::new(Device::Cpu));
            let backbone = linear(vs.root() / "backbone", FEATURES, FEATURES);
            let head = Net::new(&head_vs.root());
            vs.double();
            head_vs.double();
            let (mut opt, mut head_opt) = (sgd(&vs)?, sgd(&head_vs)?);
            vs.freeze();
            let mut steps = 0;
            for epoch in 0..EPOCHS {
                if epoch == 3 {
                    vs.unfreeze();
                }
                for (x, y) in Iter2::new(xs, ys, batch) {
                    opt.zero_grad();
                    head_opt.zero_grad();
                    head.loss(&backbone.forward(&x).tanh(), &y).backward();
                    opt.step();
                    head_opt.step();
                    steps += 1;
                }
            }
            count(steps)?;
            let mut found = vs.trainable_variables();
            found.extend(head_vs.trainable_variables());
            Ok(found)
        }

        /// Every pass ends with a step of fewer backwards than the others.
        $(#[$attribute])?
        pub(super) fn accumulation((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            let mut steps = 0;
            for _epoch in 0..EPOCHS * GROUP {
                for (index, (x, y)) in Iter2::new(xs, ys, batch).enumerate() {
                    (net.loss(&x, &y) / GROUP as f64).backward();
                    if (index as i64 + 1) % GROUP == 0 || index as i64 + 1 == PASS {
                        opt.step();
                        opt.zero_grad();
                        steps += 1;
                    }
                }
            }
            ensure!(steps == EPOCHS * GROUP * (PASS / GROUP + 1) && steps > 100, "{steps} steps");
            Ok(vs.trainable_variables())
        }
    };
}

mod plain {
    use super::*;
    programs!();
}
mod shared {
    use super::*;
    programs!(ddp_runtime::distributed);
}

/// Samples of the normalised model: the last of twenty batches is smaller, and neither divides by two or three ranks.
const SAMPLES: i64 = (PASS - 1) * 8 + 5;

/// A model with running statistics, in batches that the ranks share in parts of unequal size.
macro_rules! normalising {
    ($($attribute:meta)?) => {
        $(#[$attribute])?
        pub(super) fn train((xs, ys): &Batch) -> Result<(Vec<Tensor>, Vec<f64>)> {
            tch::manual_seed(7);
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = normalised(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            let (mut steps, mut figures) = (0, Vec::new());
            for _epoch in 0..EPOCHS {
                let mut batches = Iter2::new(xs, ys, 8);
                for (x, y) in batches.shuffle().return_smaller_last_batch() {
                    opt.backward_step(&net.forward_t(&x, true).mse_loss(&y, Reduction::Mean));
                    steps += 1;
                }
                let validation = tch::no_grad(|| net.forward_t(xs, false).mse_loss(ys, Reduction::Mean));
                figures.push(validation.double_value(&[]));
            }
            count(steps)?;
            Ok((sorted_variables(&vs), figures))
        }
    };
}
mod alone {
    use super::*;
    normalising!();
}
mod synchronised {
    use super::*;
    normalising!(ddp_runtime::distributed(batch = "global", sync_batch_norm = true));
}
mod by_rank {
    use super::*;
    normalising!(ddp_runtime::distributed(batch = "global"));
}

fn batch_norm() -> Result<()> {
    let rows = data(SAMPLES);
    let (expected, figures) = alone::train(&rows)?;
    ensure!(expected.len() == 12, "{} variables", expected.len());
    let (found, own) = synchronised::train(&rows)?;
    close("batch norm", &found, &expected, LIMIT)?;
    close("evaluations", &[Tensor::from_slice(&own)], &[Tensor::from_slice(&figures)], LIMIT)?;
    alike("evaluations", &own)?;
    // The reason for the option: statistics of each rank's own part lead elsewhere.
    if ddp_runtime::world_size() > 1 {
        let (other, _) = by_rank::train(&rows)?;
        ensure!(close("by rank", &other, &expected, 1e-3).is_err(), "the option changes nothing");
    }
    Ok(())
}

/// A branch that one rank takes now and then, with an optimizer that would move it by momentum alone.
#[ddp_runtime::distributed]
fn branching((xs, ys): &Batch, seen: &mut Seen) -> Result<Vec<Tensor>> {
    let mut vs = nn::VarStore::new(Device::Cpu);
    let net = Net::new(&vs.root());
    let branch = linear(vs.root() / "branch", FEATURES, 2);
    vs.double();
    let mut opt = sgd(&vs)?;
    let rank = ddp_runtime::rank();
    let mut steps = 0;
    for _epoch in 0..EPOCHS {
        for (x, y) in Iter2::new(xs, ys, BATCH).shuffle() {
            seen.note(&x, &y);
            let mut loss = net.loss(&x, &y);
            if takes_branch(rank, steps) {
                loss += branch_loss(&branch, &x);
            }
            opt.backward_step(&loss);
            steps += 1;
        }
    }
    count(steps)?;
    Ok(vs.trainable_variables())
}

fn branch() -> Result<()> {
    let (rows, mut seen) = (all_rows(), Seen::default());
    seed_apart();
    let found = branching(&rows, &mut seen)?;
    seed();
    let mut vs = nn::VarStore::new(Device::Cpu);
    let net = Net::new(&vs.root());
    let branch = linear(vs.root() / "branch", FEATURES, 2);
    vs.double();
    let mut opt = sgd(&vs)?;
    for (step, round) in seen.rounds()?.iter().enumerate() {
        let losses = round.iter().enumerate().map(|(rank, (x, y))| {
            let loss = net.loss(x, y);
            let taken = takes_branch(rank, step as i64);
            if taken { loss + branch_loss(&branch, x) } else { loss }
        });
        opt.backward_step(&Tensor::stack(&losses.collect::<Vec<_>>(), 0).mean(Kind::Double));
    }
    close("branch", &found, &vs.trainable_variables(), LIMIT)
}

fn all_rows() -> Batch {
    data(PASS * BATCH * ddp_runtime::world_size() as i64)
}

type Program = fn(&Batch, i64) -> Result<Vec<Tensor>>;

/// The ranks end where one process ends whose batches are as large as theirs together.
fn follow(what: &str, plain: Program, shared: Program) -> Result<()> {
    let rows = all_rows();
    seed();
    let expected = plain(&rows, BATCH * ddp_runtime::world_size() as i64)?;
    ensure!(!expected.is_empty(), "{what}: nothing to compare");
    seed_apart();
    close(what, &shared(&rows, BATCH)?, &expected, LIMIT)
}

pub(in crate::cases) fn run(args: &[String]) -> Result<()> {
    match args.first().context("expected a trajectory")?.as_str() {
        "gan" => follow("gan", plain::gan, shared::gan),
        "actor-critic" => follow("actor-critic", plain::actor_critic, shared::actor_critic),
        "frozen" => follow("frozen", plain::frozen, shared::frozen),
        "accumulation" => follow("accumulation", plain::accumulation, shared::accumulation),
        "branch" => branch(),
        "batch-norm" => batch_norm(),
        other => bail!("no trajectory is called {other}"),
    }
}
