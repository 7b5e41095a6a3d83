//! Where the step stands: in the loop, in a helper, a method, a closure or a macro; in a loop of its own function.
use anyhow::{Result, ensure};
use tch::data::Iter2;
use tch::nn::{self, OptimizerConfig};
use tch::vision::dataset::Dataset;
use tch::{Device, Tensor};

use super::course::{
    BATCH, STEPS, Seen, Shuffling, all_rows, compile_twice, dataset, equal_everywhere, follow,
    follow_seen, sgd,
};
use super::one_process::{Batch, Model, Net, equal};

const EPOCHS: i64 = 3;

/// s02: a helper that knows nothing of ranks.
fn update(net: &Net, opt: &mut nn::Optimizer, x: &Tensor, y: &Tensor) -> f64 {
    let loss = net.loss(x, y);
    opt.backward_step(&loss);
    loss.double_value(&[])
}

/// s04: a step that no visitor of the function's tokens can see.
macro_rules! descend {
    ($opt:expr, $loss:expr) => {{
        $opt.zero_grad();
        $loss.backward();
    }};
}

macro_rules! programs {
    ($($attribute:meta)?) => {
        $(#[$attribute])?
        pub(super) fn s01(rows: &Batch, seen: &mut Seen) -> Result<Vec<Tensor>> {
            let data = dataset(rows);
            let mut vs = nn::VarStore::new(Device::cuda_if_available());
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            for _epoch in 1..=EPOCHS {
                for (x, y) in data.train_iter(BATCH).shuffle().to_device(vs.device()) {
                    if seen.is_empty() {
                        equal_everywhere(&vs.trainable_variables())?;
                    }
                    seen.note(&x, &y);
                    opt.backward_step(&net.loss(&x, &y));
                }
            }
            Ok(vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s02((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = nn::Adam::default().build(&vs, 1e-2)?;
            let mut sum = 0.0;
            for (x, y) in Iter2::new(xs, ys, batch) {
                sum += update(&net, &mut opt, &x, &y);
            }
            ensure!(sum.is_finite(), "the losses sum to {sum}");
            Ok(vs.trainable_variables())
        }

        struct Learner {
            vs: nn::VarStore,
            net: Net,
            opt: Option<nn::Optimizer>,
            batch: i64,
        }

        impl Learner {
            fn optimizer_mut(&mut self) -> Result<&mut nn::Optimizer> {
                if self.opt.is_none() {
                    self.opt = Some(nn::AdamW::default().build(&self.vs, 1e-2)?);
                }
                self.opt.as_mut().ok_or_else(|| anyhow::anyhow!("no optimizer"))
            }

            fn learn(&mut self, x: &Tensor, y: &Tensor) -> Result<()> {
                let loss = self.net.loss(x, y);
                self.optimizer_mut()?.backward_step(&loss);
                Ok(())
            }

            $(#[$attribute])?
            fn fit(&mut self, data: &Dataset) -> Result<()> {
                for (x, y) in data.train_iter(self.batch) {
                    self.learn(&x, &y)?;
                }
                Ok(())
            }
        }

        pub(super) fn s03(rows: &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let Model { vs, net } = Model::seeded();
            let mut learner = Learner { vs, net, opt: None, batch };
            learner.fit(&dataset(rows))?;
            Ok(learner.vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s04_macro((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            let mut log_std = vs.root().var("log_std", &[1], nn::Init::Const(-0.5));
            vs.double();
            let mut opt = nn::Sgd { momentum: 0.9, ..Default::default() }.build(&vs, 0.1)?;
            for (x, y) in Iter2::new(xs, ys, batch) {
                let log_std_now = log_std.squeeze();
                let loss = net.loss(&x, &y) * (&log_std_now * -2.0).exp() + &log_std_now;
                descend!(opt, loss);
                tch::no_grad(|| {
                    opt.step();
                    let _ = log_std.clamp_(-0.6, 2.);
                });
            }
            Ok(vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s04_closure((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = nn::Adam::default().build(&vs, 1e-2)?;
            let mut step = |x: &Tensor, y: &Tensor| {
                let loss = net.loss(x, y);
                descend!(opt, loss);
                opt.step();
            };
            for (x, y) in Iter2::new(xs, ys, batch) {
                step(&x, &y);
            }
            Ok(vs.trainable_variables())
        }

        $(#[$attribute])?
        fn run_epoch(
            vs: &nn::VarStore,
            net: &Net,
            opt: &mut nn::Optimizer,
            (xs, ys): &Batch,
            seen: &mut Seen,
        ) -> f64 {
            let (mut sum, mut count) = (0.0, 0.0);
            for (x, y) in Iter2::new(xs, ys, BATCH).to_device(vs.device()).shuffle() {
                seen.note(&x, &y);
                sum += update(net, opt, &x, &y);
                count += 1.0;
            }
            sum / count
        }

        $(#[$attribute])?
        pub(super) fn s05_inner(rows: &Batch, seen: &mut Seen) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            for _epoch in 0..EPOCHS {
                let loss = run_epoch(&vs, &net, &mut opt, rows, seen);
                ensure!(loss.is_finite(), "the loss is {loss}");
            }
            Ok(vs.trainable_variables())
        }

        /// No mark: each call of the inner function is a group of its own.
        pub(super) fn s05_in_a_row(rows: &Batch, seen: &mut Seen) -> Result<Vec<Tensor>> {
            let Model { vs, net } = Model::seeded();
            let mut opt = sgd(&vs)?;
            run_epoch(&vs, &net, &mut opt, rows, seen);
            run_epoch(&vs, &net, &mut opt, rows, seen);
            run_epoch(&vs, &net, &mut opt, rows, seen);
            Ok(vs.trainable_variables())
        }
    };
}
compile_twice!();

pub(super) fn s01_all_in_one() -> Result<()> {
    let seen = follow_seen("all in one", plain::s01, shared::s01)?;
    seen.are_passes_over(&all_rows(), STEPS)
}

/// The helper is single-device code outside a marked function, even when one rank alone calls it.
pub(super) fn s02_helper() -> Result<()> {
    follow("helper", plain::s02, shared::s02)?;
    let ours = Model::seeded();
    let mut opt = Model::adam(&ours.vs)?;
    let (xs, ys) = all_rows();
    for _ in 0..=ddp_runtime::rank() {
        update(&ours.net, &mut opt, &xs, &ys);
    }
    let first_rank_steps = Model::seeded();
    let mut opt = Model::adam(&first_rank_steps.vs)?;
    update(&first_rank_steps.net, &mut opt, &xs, &ys);
    let (found, expected) =
        (ours.vs.trainable_variables(), first_rank_steps.vs.trainable_variables());
    if ddp_runtime::rank() == 0 {
        return equal("helper outside", &found, &expected);
    }
    ensure!(!found[0].equal(&expected[0]), "another rank's steps had no effect of their own");
    Ok(())
}

pub(super) fn s03_method() -> Result<()> {
    follow("method", plain::s03, shared::s03)
}

pub(super) fn s04_hidden() -> Result<()> {
    follow("macro", plain::s04_macro, shared::s04_macro)?;
    follow("closure", plain::s04_closure, shared::s04_closure)
}

pub(super) fn s05_loop_of_its_own() -> Result<()> {
    let programs: [(&str, Shuffling, Shuffling); 2] = [
        ("inner loop", plain::s05_inner, shared::s05_inner),
        ("three calls", plain::s05_in_a_row, shared::s05_in_a_row),
    ];
    for (what, plain, shared) in programs {
        follow_seen(what, plain, shared)?.are_passes_over(&all_rows(), STEPS)?;
    }
    Ok(())
}
