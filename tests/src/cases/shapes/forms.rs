//! Forms of the step: one call, by hand, accumulated, with changed gradients, own optimizers, raw leaves, forms of the loss.
use anyhow::{Context, Result, ensure};
use tch::data::Iter2;
use tch::nn;
use tch::{Device, Kind, Reduction, Tensor};

use super::course::{
    BATCH, STEPS, Seen, all_rows, compile_twice, follow, follow_on, follow_seen_with, seed, sgd,
};
use super::one_process::{Batch, FEATURES, Model, Net, data, equal, of_all_ranks};

/// Batches between two steps that accumulate.
const GROUP: usize = 4;

/// s10: descends by the sign of the gradient.
struct SignDescent {
    vars: Vec<Tensor>,
    lr: f64,
}

impl SignDescent {
    fn step(&mut self) {
        tch::no_grad(|| {
            for v in &mut self.vars {
                let change = v.grad().sign() * self.lr;
                *v -= change;
            }
        });
    }

    fn zero_grad(&mut self) {
        self.vars.iter_mut().for_each(Tensor::zero_grad);
    }
}

/// s10: a wrapper whose method has a known name and other arguments.
struct LossScaler<'a> {
    vs: &'a nn::VarStore,
    opt: nn::Optimizer,
    scale: f64,
}

impl LossScaler<'_> {
    fn backward_step(&mut self, loss: &Tensor, rate: impl Fn(&str) -> f64) -> Result<()> {
        self.opt.zero_grad();
        (loss * self.scale).f_backward()?;
        for (name, variable) in self.vs.variables() {
            let _ = variable.grad().f_mul_scalar_(rate(&name) / self.scale)?;
        }
        self.opt.step();
        Ok(())
    }
}

fn rate_of(name: &str) -> f64 {
    if name.starts_with("out") { 0.5 } else { 1.0 }
}

macro_rules! programs {
    ($($attribute:meta)?) => {
        $(#[$attribute])?
        fn clipped((xs, ys): &Batch, batch: i64, clip: Option<f64>) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            for (x, y) in Iter2::new(xs, ys, batch) {
                let loss = &net.loss(&x, &y);
                match clip {
                    Some(max) => opt.backward_step_clip(loss, max),
                    None => opt.backward_step_clip_norm(loss.as_ref(), 0.05),
                }
            }
            let once = |x: &Tensor| opt.backward_step(&net.loss(x, &x.narrow(1, 0, 1)));
            [xs].into_iter().for_each(once);
            Ok(vs.trainable_variables())
        }

        pub(super) fn s06_clip(rows: &Batch, batch: i64) -> Result<Vec<Tensor>> {
            clipped(rows, batch, Some(0.03))
        }

        pub(super) fn s06_clip_norm(rows: &Batch, batch: i64) -> Result<Vec<Tensor>> {
            clipped(rows, batch, None)
        }

        $(#[$attribute])?
        pub(super) fn s07_cleared_last((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            for (x, y) in Iter2::new(xs, ys, batch) {
                let loss = net.forward(&x).mse_loss(&y, Reduction::Mean);
                loss.backward();
                opt.clip_grad_norm(0.1);
                opt.step();
                opt.zero_grad();
            }
            Ok(vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s07_cleared_first((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            for (x, y) in Iter2::new(xs, ys, batch) {
                opt.zero_grad();
                net.loss(&x, &y).backward();
                opt.clip_grad_value(0.02);
                opt.step();
            }
            Ok(vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s07_cleared_twice((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            for (x, y) in Iter2::new(xs, ys, batch) {
                let loss = net.loss(&x, &y);
                opt.zero_grad();
                opt.backward_step(&loss);
            }
            Ok(vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s08((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            let batch_count = Iter2::new(xs, ys, batch).count();
            ensure!(batch_count as i64 == STEPS, "{batch_count} batches");
            let batches = Iter2::new(xs, ys, batch);
            for (i, (x, y)) in batches.enumerate() {
                (net.loss(&x, &y) / GROUP as f64).backward();
                if (i + 1) % GROUP == 0 {
                    opt.step();
                    opt.zero_grad();
                }
            }
            if batch_count % GROUP != 0 {
                opt.step();
                opt.zero_grad();
            }
            Ok(vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s09_changed((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            let unused = vs.root().zeros("unused", &[2]);
            vs.double();
            let mut opt = sgd(&vs)?;
            for (x, y) in Iter2::new(xs, ys, batch) {
                opt.zero_grad();
                net.loss(&x, &y).backward();
                for v in opt.trainable_variables().iter().filter(|v| v.grad().defined()) {
                    let _ = v.grad().clamp_(-0.02, 0.02);
                }
                opt.step();
            }
            ensure!(!unused.grad().defined(), "what took no part has a gradient");
            Ok(vs.trainable_variables())
        }

        /// Steps only where the gradient is long, and returns the lengths beside the variables.
        $(#[$attribute])?
        pub(super) fn s09_read((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            let mut lengths = Vec::new();
            for (x, y) in Iter2::new(xs, ys, batch) {
                opt.zero_grad();
                net.loss(&x, &y).backward();
                let mut squares = 0.0;
                for v in opt.trainable_variables() {
                    squares += v.grad().square().sum(Kind::Double).double_value(&[]);
                }
                lengths.push(squares.sqrt());
                if squares.sqrt() > 1.05 {
                    opt.step();
                }
            }
            let long = lengths.iter().filter(|length| **length > 1.05).count();
            ensure!(0 < long && long < lengths.len(), "nothing is decided by {lengths:?}");
            let mut found = vs.trainable_variables();
            found.push(Tensor::from_slice(&lengths));
            Ok(found)
        }

        $(#[$attribute])?
        pub(super) fn s10_own_optimizer((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = SignDescent { vars: vs.trainable_variables(), lr: 0.01 };
            for (x, y) in Iter2::new(xs, ys, batch) {
                opt.zero_grad();
                net.loss(&x, &y).backward();
                opt.step();
            }
            Ok(vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s10_wrapper((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut scaler = LossScaler { vs: &vs, opt: sgd(&vs)?, scale: 1024.0 };
            for (x, y) in Iter2::new(xs, ys, batch) {
                let loss = net.loss(&x, &y);
                scaler.backward_step(&loss, |name| rate_of(name))?;
            }
            Ok(vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s11_batches((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut w = Tensor::randn([FEATURES, 1], (Kind::Double, Device::Cpu)).set_requires_grad(true);
            for (x, y) in Iter2::new(xs, ys, batch) {
                w.zero_grad();
                x.matmul(&w).mse_loss(&y, Reduction::Mean).backward();
                tch::no_grad(|| w -= w.grad() * 0.1);
            }
            Ok(vec![w])
        }

        $(#[$attribute])?
        pub(super) fn s11_all_rows((x, y): &Batch, _batch: i64) -> Result<Vec<Tensor>> {
            let mut w = Tensor::randn([FEATURES, 1], (Kind::Double, Device::Cpu)).set_requires_grad(true);
            for _ in 0..30 {
                w.zero_grad();
                x.matmul(&w).mse_loss(y, Reduction::Mean).backward();
                tch::no_grad(|| w -= w.grad() * 0.1);
            }
            Ok(vec![w])
        }

        $(#[$attribute])?
        pub(super) fn s12(
            (xs, ys): &Batch,
            loss: Loss,
            seen: &mut Seen,
        ) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            for (x, y) in Iter2::new(xs, ys, BATCH) {
                seen.note(&x, &y);
                opt.backward_step(&loss(&net, &x, &y));
            }
            Ok(vs.trainable_variables())
        }
    };
}
compile_twice!();

pub(super) fn s06_one_call() -> Result<()> {
    follow("clip", plain::s06_clip, shared::s06_clip)?;
    follow("clip norm", plain::s06_clip_norm, shared::s06_clip_norm)
}

pub(super) fn s07_by_hand() -> Result<()> {
    follow("cleared last", plain::s07_cleared_last, shared::s07_cleared_last)?;
    follow("cleared first", plain::s07_cleared_first, shared::s07_cleared_first)?;
    follow("cleared twice", plain::s07_cleared_twice, shared::s07_cleared_twice)
}

pub(super) fn s08_accumulation() -> Result<()> {
    ensure!(!(STEPS as usize).is_multiple_of(GROUP), "the last group is not short");
    follow("accumulation", plain::s08, shared::s08)
}

/// The gradients that `run_backward` returns, and the rows they are of.
#[ddp_runtime::distributed]
fn returned(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch) -> Result<Vec<(Batch, Vec<Tensor>)>> {
    let mut found = Vec::new();
    for (x, y) in Iter2::new(xs, ys, BATCH) {
        let variables = vs.trainable_variables();
        let gradients = Tensor::run_backward(&[net.loss(&x, &y)], &variables, false, false);
        ensure!(variables.iter().all(|v| !v.grad().defined()), "a gradient was stored");
        found.push(((x, y), gradients));
    }
    Ok(found)
}

pub(super) fn s09_changed_gradients() -> Result<()> {
    follow("clamped", plain::s09_changed, shared::s09_changed)?;
    follow("read", plain::s09_read, shared::s09_read)?;
    let model = Model::seeded();
    let found = returned(&model.vs, &model.net, &all_rows())?;
    let first = &found.first().context("no batch")?.1[0];
    for ((x, y), gradients) in &found {
        let variables = model.vs.trainable_variables();
        let own = Tensor::run_backward(&[model.net.loss(x, y)], &variables, false, false);
        ensure!(own.iter().zip(gradients).all(|(own, found)| own.equal(found)), "not its own");
    }
    let others = of_all_ranks(first)?;
    let differ = others.iter().filter(|other| !other.equal(first)).count();
    ensure!(differ + 1 == ddp_runtime::world_size(), "{differ} ranks have other gradients");
    Ok(())
}

pub(super) fn s10_own_optimizers() -> Result<()> {
    follow("own optimizer", plain::s10_own_optimizer, shared::s10_own_optimizer)?;
    follow("wrapper", plain::s10_wrapper, shared::s10_wrapper)
}

/// Leaves that start equal are averaged from the first step on; those that do not start as rank 0's.
pub(super) fn s11_raw_leaves() -> Result<()> {
    let rows = all_rows();
    let joined = BATCH * ddp_runtime::world_size() as i64;
    seed();
    let expected = plain::s11_batches(&rows, joined)?;
    seed();
    equal("batches", &shared::s11_batches(&rows, BATCH)?, &expected)?;
    follow_on("all rows", &data(16), plain::s11_all_rows, shared::s11_all_rows)
}

type Loss = fn(&Net, &Tensor, &Tensor) -> Tensor;

fn summed(net: &Net, x: &Tensor, y: &Tensor) -> Tensor {
    (net.forward(x) - y).square().sum(Kind::Double)
}

fn scaled(net: &Net, x: &Tensor, y: &Tensor) -> Tensor {
    &summed(net, x, y) / BATCH as f64
}

fn weighted(net: &Net, x: &Tensor, y: &Tensor) -> Tensor {
    let w = x.narrow(1, 0, 1).square() + 0.1;
    let error = (net.forward(x) - y).square();
    (&w * &error).sum(Kind::Double) / w.sum(Kind::Double)
}

/// Nobody rescales: each loss counts as it is, and the mean over the ranks is taken.
pub(super) fn s12_losses() -> Result<()> {
    let losses: [(&str, Loss); 3] =
        [("sum", summed), ("divided", scaled), ("weighted mean", weighted)];
    for (what, loss) in losses {
        follow_seen_with(
            what,
            |rows, seen| plain::s12(rows, loss, seen),
            |rows, seen| shared::s12(rows, loss, seen),
            |net, _, (x, y)| loss(net, x, y),
        )?;
    }
    Ok(())
}
