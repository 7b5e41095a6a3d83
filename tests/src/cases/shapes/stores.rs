//! Variable stores: two in turn, copies of each other, hidden in fields, shadowed, filled late, frozen or unused.
use anyhow::{Result, ensure};
use tch::data::Iter2;
use tch::nn::{self, Module, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};

use super::course::{
    BATCH, Seen, all_rows, compile_twice, equal_everywhere, follow, mean_course, seed, seed_apart,
    sgd, sorted_variables,
};
use super::one_process::{Batch, FEATURES, Model, Net, equal};

/// A model from whatever numbers come next.
fn unseeded() -> Model {
    let mut vs = nn::VarStore::new(Device::Cpu);
    let net = Net::new(&vs.root());
    vs.double();
    Model { vs, net }
}

/// s17: who needs the auxiliary part is the rank's own affair, out of the attribute's sight.
fn uses_aux(rank: usize, step: usize) -> bool {
    step % 2 == 1 && rank == 0
}

fn aux_loss(aux: &nn::Linear, x: &Tensor) -> Tensor {
    aux.forward(x).square().mean(Kind::Double)
}

macro_rules! programs {
    ($($attribute:meta)?) => {
        $(#[$attribute])?
        pub(super) fn s13((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut gen_vs = nn::VarStore::new(Device::Cpu);
            let generator = nn::linear(gen_vs.root() / "gen", FEATURES, FEATURES, Default::default());
            let mut disc_vs = nn::VarStore::new(Device::Cpu);
            let disc = Net::new(&disc_vs.root());
            gen_vs.double();
            disc_vs.double();
            let mut gen_opt = sgd(&gen_vs)?;
            let mut disc_opt = sgd(&disc_vs)?;
            for (real, noise) in Iter2::new(xs, &(xs * ys), batch) {
                gen_vs.freeze();
                disc_vs.unfreeze();
                let fake = generator.forward(&noise).tanh();
                let disc_loss = (disc.forward(&real) - 1.0).square().mean(Kind::Double)
                    + disc.forward(&fake).square().mean(Kind::Double);
                disc_opt.backward_step(&disc_loss);
                gen_vs.unfreeze();
                disc_vs.freeze();
                let fake = generator.forward(&noise).tanh();
                let gen_loss = (disc.forward(&fake) - 1.0).square().mean(Kind::Double);
                gen_opt.backward_step(&gen_loss);
            }
            let mut found = gen_vs.trainable_variables();
            found.extend(disc_vs.trainable_variables());
            Ok(found)
        }

        $(#[$attribute])?
        pub(super) fn s14((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            let mut soft_vs = nn::VarStore::new(Device::Cpu);
            let soft = Net::new(&soft_vs.root());
            let mut hard_vs = nn::VarStore::new(Device::Cpu);
            let hard = Net::new(&hard_vs.root());
            vs.double();
            soft_vs.double();
            hard_vs.double();
            soft_vs.copy(&vs)?;
            hard_vs.copy(&vs)?;
            let mut opt = sgd(&vs)?;
            // Weights of all three after every step.
            let mut course = Vec::new();
            for (step, (x, y)) in Iter2::new(xs, ys, batch).enumerate() {
                let next = tch::no_grad(|| soft.forward(&x).minimum(&hard.forward(&x)));
                let loss = net.forward(&x).mse_loss(&(y + next * 0.9), Reduction::Mean);
                opt.backward_step(&loss);
                tch::no_grad(|| {
                    for (mut t, o) in soft_vs.trainable_variables().into_iter().zip(vs.trainable_variables()) {
                        t.copy_(&(&t * 0.9 + o * 0.1));
                    }
                });
                if step % 3 == 2 {
                    hard_vs.copy(&vs)?;
                }
                for store in [&vs, &soft_vs, &hard_vs] {
                    course.extend(store.trainable_variables().iter().map(Tensor::copy));
                }
            }
            Ok(course)
        }

        $(#[$attribute])?
        fn with_parameters(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch, batch: i64) -> Result<()> {
            let mut opt = sgd(vs)?;
            for (x, y) in Iter2::new(xs, ys, batch) {
                opt.backward_step(&net.loss(&x, &y));
            }
            Ok(())
        }

        pub(super) fn s15_parameter(rows: &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let Model { vs, net } = unseeded();
            with_parameters(&vs, &net, rows, batch)?;
            Ok(vs.trainable_variables())
        }

        struct Trainer {
            vs: nn::VarStore,
            net: Net,
            synced: bool,
        }

        impl Trainer {
            fn store(&self) -> &nn::VarStore {
                &self.vs
            }

            $(#[$attribute])?
            fn fit(&mut self, (xs, ys): &Batch, batch: i64, seen: &mut Seen) -> Result<()> {
                if self.synced {
                    ddp_runtime::sync(&self.vs);
                }
                let mut opt =
                    nn::Sgd { momentum: 0.9, ..Default::default() }.build(self.store(), 0.05)?;
                for (x, y) in Iter2::new(xs, ys, batch) {
                    seen.note(&x, &y);
                    opt.backward_step(&self.net.loss(&x, &y));
                }
                Ok(())
            }
        }

        pub(super) fn s15_field(rows: &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let Model { vs, net } = Model::seeded();
            let mut trainer = Trainer { vs, net, synced: false };
            trainer.fit(rows, batch, &mut Seen::default())?;
            Ok(trainer.vs.trainable_variables())
        }

        pub(super) fn s15_synced_field(rows: &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let Model { vs, net } = unseeded();
            let mut trainer = Trainer { vs, net, synced: true };
            trainer.fit(rows, batch, &mut Seen::default())?;
            Ok(trainer.vs.trainable_variables())
        }

        pub(super) fn s15_unequal_field(rows: &Batch, seen: &mut Seen) -> Result<Vec<Tensor>> {
            let Model { vs, net } = unseeded();
            let mut trainer = Trainer { vs, net, synced: false };
            trainer.fit(rows, BATCH, seen)?;
            Ok(trainer.vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s16((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut found = Vec::new();
            let mut vs = nn::VarStore::new(Device::Cpu);
            // The optimizer before the model.
            let mut opt = sgd(&vs)?;
            let net = Net::new(&vs.root());
            vs.double();
            for (x, y) in Iter2::new(xs, ys, batch) {
                opt.backward_step(&net.loss(&x, &y));
            }
            found.extend(vs.trainable_variables());
            // The same name again.
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            let empty = nn::VarStore::new(Device::Cpu);
            let mut idle = sgd(&empty)?;
            let mut late: Option<nn::Linear> = None;
            for epoch in 0..3 {
                if epoch == 1 {
                    late = Some(nn::linear(vs.root() / "late", FEATURES, FEATURES, Default::default()));
                    vs.double();
                }
                for (x, y) in Iter2::new(xs, ys, batch) {
                    let x = late.as_ref().map_or_else(|| x.shallow_clone(), |late| late.forward(&x).tanh());
                    let loss = net.loss(&x, &y);
                    opt.backward_step(&loss);
                    idle.step();
                    idle.zero_grad();
                }
            }
            found.extend(vs.trainable_variables());
            Ok(found)
        }

        $(#[$attribute])?
        pub(super) fn s17_frozen((xs, ys): &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let mut teacher_vs = nn::VarStore::new(Device::Cpu);
            let teacher = Net::new(&teacher_vs.root());
            let mut vs = nn::VarStore::new(Device::Cpu);
            let student = Net::new(&(vs.root() / "student"));
            let aux = nn::linear(vs.root() / "aux", FEATURES, 1, Default::default());
            teacher_vs.double();
            vs.double();
            teacher_vs.freeze();
            let untouched = aux.ws.copy();
            let mut opt = nn::Sgd { momentum: 0.9, wd: 0.1, ..Default::default() }.build(&vs, 0.05)?;
            let use_aux = false;
            for (x, y) in Iter2::new(xs, ys, batch) {
                let hint = teacher.forward(&x);
                let zero = Tensor::from(0f64);
                let loss = student.loss(&x, &(y + hint)) + if use_aux { aux_loss(&aux, &x) } else { zero };
                opt.backward_step(&loss);
            }
            ensure!(!aux.ws.grad().defined(), "what nobody used has a gradient");
            ensure!(aux.ws.equal(&untouched) || ddp_runtime::rank() > 0, "what nobody used has moved");
            let mut found = vs.trainable_variables();
            found.extend(teacher_vs.trainable_variables());
            Ok(found)
        }

        $(#[$attribute])?
        pub(super) fn s17_some_ranks((xs, ys): &Batch, seen: &mut Seen) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let student = Net::new(&vs.root());
            let aux = nn::linear(vs.root() / "aux", FEATURES, 1, Default::default());
            vs.double();
            let mut opt = sgd(&vs)?;
            let rank = ddp_runtime::rank();
            for (step, (x, y)) in Iter2::new(xs, ys, BATCH).enumerate() {
                seen.note(&x, &y);
                let mut loss = student.loss(&x, &y);
                if uses_aux(rank, step) {
                    loss += aux_loss(&aux, &x);
                }
                opt.backward_step(&loss);
            }
            Ok(vs.trainable_variables())
        }
    };
}
compile_twice!();

/// Two networks with running statistics: one backward runs through two training forwards of each of them.
#[ddp_runtime::distributed]
fn with_statistics((xs, ys): &Batch) -> Result<()> {
    let net = |path: nn::Path| {
        nn::seq_t()
            .add(nn::linear(&path / "in", FEATURES, FEATURES, Default::default()))
            .add(nn::batch_norm1d(&path / "norm", FEATURES, Default::default()))
            .add_fn(Tensor::tanh)
    };
    let (mut gen_vs, mut disc_vs) =
        (nn::VarStore::new(Device::Cpu), nn::VarStore::new(Device::Cpu));
    let (generator, disc) = (net(gen_vs.root()), net(disc_vs.root()));
    gen_vs.double();
    disc_vs.double();
    let (mut gen_opt, mut disc_opt) = (sgd(&gen_vs)?, sgd(&disc_vs)?);
    for (real, noise) in Iter2::new(xs, &(xs * ys), BATCH).shuffle() {
        let fake = generator.forward_t(&noise, true);
        gen_vs.freeze();
        disc_vs.unfreeze();
        let judged = disc.forward_t(&real, true) - disc.forward_t(&fake.detach(), true);
        disc_opt.backward_step(&judged.mean(Kind::Double));
        gen_vs.unfreeze();
        disc_vs.freeze();
        let judged = disc.forward_t(&fake, true) + disc.forward_t(&real, true);
        gen_opt.backward_step(&judged.square().mean(Kind::Double));
    }
    for store in [&gen_vs, &disc_vs] {
        let variables = sorted_variables(store);
        ensure!(variables.len() == 6, "{} variables", variables.len());
        equal_everywhere(&variables)?;
    }
    Ok(())
}

pub(super) fn s13_two_stores() -> Result<()> {
    follow("in turn", plain::s13, shared::s13)?;
    let rows = all_rows();
    seed_apart();
    with_statistics(&rows)
}

pub(super) fn s14_target_networks() -> Result<()> {
    follow("targets", plain::s14, shared::s14)
}

/// A model with running statistics in a field.
struct Holder {
    vs: nn::VarStore,
    norm: nn::BatchNorm,
}

impl Holder {
    /// The statistics after the head of the function.
    #[ddp_runtime::distributed]
    fn fit(&mut self) -> Tensor {
        ddp_runtime::sync(&self.vs);
        self.norm.running_mean.copy()
    }
}

/// A head that rank 1 makes wider.
#[ddp_runtime::distributed]
fn with_another_shape(holder: &[nn::VarStore]) {
    ddp_runtime::sync(&holder[0]);
}

pub(super) fn s15_where_the_store_is() -> Result<()> {
    follow("parameter", plain::s15_parameter, shared::s15_parameter)?;
    follow("field, synced", plain::s15_synced_field, shared::s15_synced_field)?;
    follow("field", plain::s15_field, shared::s15_field)?;
    // Unequal and not synced: in the first step rank 0's gradients alone count, then its weights are everywhere.
    let (rows, mut seen) = (all_rows(), Seen::default());
    seed_apart();
    let found = shared::s15_unequal_field(&rows, &mut seen)?;
    let mut rounds = seen.rounds()?;
    rounds[0].truncate(1);
    equal("unequal field", &found, &mean_course(&rounds, |net, _, (x, y)| net.loss(x, y))?)?;

    let vs = nn::VarStore::new(Device::Cpu);
    let mut norm = nn::batch_norm1d(vs.root(), 3, Default::default());
    let _ = norm.running_mean.fill_(5.0 + ddp_runtime::rank() as f64);
    let mean = Holder { vs, norm }.fit();
    ensure!(mean.equal(&mean.full_like(5.0)), "the running mean is {mean}");
    Ok(())
}

/// Ends in an error on every rank.
pub(super) fn s15_another_shape() -> Result<()> {
    let vs = nn::VarStore::new(Device::Cpu);
    let _ = nn::linear(vs.root() / "body", 3, 4, Default::default());
    let outputs = 1 + i64::from(ddp_runtime::rank() == 1);
    let _ = nn::linear(vs.root() / "head", 4, outputs, Default::default());
    with_another_shape(&[vs]);
    Ok(())
}

pub(super) fn s16_names_and_late_layers() -> Result<()> {
    follow("names and late layers", plain::s16, shared::s16)
}

pub(super) fn s17_frozen_and_unused() -> Result<()> {
    follow("frozen", plain::s17_frozen, shared::s17_frozen)?;
    let (rows, mut seen) = (all_rows(), Seen::default());
    seed_apart();
    let found = shared::s17_some_ranks(&rows, &mut seen)?;
    let rounds = seen.rounds()?;
    seed();
    let mut vs = nn::VarStore::new(Device::Cpu);
    let student = Net::new(&vs.root());
    let aux = nn::linear(vs.root() / "aux", FEATURES, 1, Default::default());
    vs.double();
    let mut opt = sgd(&vs)?;
    for (step, round) in rounds.iter().enumerate() {
        let loss = |(rank, (x, y)): (usize, &Batch)| {
            let loss = student.loss(x, y);
            if uses_aux(rank, step) { loss + aux_loss(&aux, x) } else { loss }
        };
        let losses: Vec<Tensor> = round.iter().enumerate().map(loss).collect();
        opt.backward_step(&Tensor::stack(&losses, 0).mean(Kind::Double));
    }
    equal("on some ranks", &found, &vs.trainable_variables())
}
