//! Epoch loops, and the ways out of a loop before its end.
use std::fmt;

use anyhow::{Result, bail, ensure};
use ddp_runtime::{distributed, should_stop, skip_if};
use tch::data::Iter2;
use tch::{TchError, Tensor, nn};

use super::one_process::{Batch, Model, Net, alike, both, data, follows, items, of_all_ranks};

const ROWS: i64 = 24;
const BATCH: i64 = 4;
const EPOCHS: i64 = 4;

/// Features, and targets that say which rows they are.
fn numbered() -> Batch {
    (data(ROWS).0, Tensor::arange(ROWS, (tch::Kind::Double, tch::Device::Cpu)).view([-1, 1]))
}

fn row_numbers(y: &Tensor) -> Vec<i64> {
    y.flatten(0, -1)
        .iter::<f64>()
        .map_or_else(|_| Vec::new(), |rows| rows.map(|row| row as i64).collect())
}

type Orders = Vec<Vec<i64>>;

both!(by_range: fn train(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch, start: i64) -> Result<Orders> {
    let mut opt = Model::adam(vs)?;
    let mut orders = Orders::new();
    for epoch in start..EPOCHS {
        orders.push(Vec::new());
        for (x, y) in Iter2::new(xs, ys, BATCH).shuffle() {
            opt.backward_step(&net.loss(&x, &(&y / ROWS as f64)));
            orders[(epoch - start) as usize].extend(row_numbers(&y));
        }
    }
    Ok(orders)
});

both!(by_counter: fn train(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch, start: i64) -> Result<Orders> {
    let mut opt = Model::adam(vs)?;
    let mut orders = Orders::new();
    let mut epoch = start;
    while epoch < EPOCHS {
        let mut order = Vec::new();
        for (x, y) in Iter2::new(xs, ys, BATCH).shuffle() {
            opt.backward_step(&net.loss(&x, &(&y / ROWS as f64)));
            order.extend(row_numbers(&y));
        }
        orders.push(order);
        epoch += 1;
    }
    Ok(orders)
});

both!(endless: fn train(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch, start: i64) -> Result<Orders> {
    let mut opt = Model::adam(vs)?;
    let mut orders = Orders::new();
    loop {
        let mut order = Vec::new();
        for (x, y) in Iter2::new(xs, ys, BATCH).shuffle() {
            opt.backward_step(&net.loss(&x, &(&y / ROWS as f64)));
            order.extend(row_numbers(&y));
        }
        orders.push(order);
        if orders.len() as i64 == EPOCHS - start {
            break;
        }
    }
    Ok(orders)
});

type Train = fn(&nn::VarStore, &Net, &Batch, i64) -> Result<Orders>;

/// One rank draws as the plain program does; several take each row once an epoch, in an order that changes.
fn check_epochs(what: &str, plain: Train, shared: Train) -> Result<()> {
    let data = numbered();
    let model = Model::seeded();
    let orders = shared(&model.vs, &model.net, &data, 0)?;
    if ddp_runtime::world_size() == 1 {
        let model = Model::seeded();
        let expected = plain(&model.vs, &model.net, &data, 0)?;
        ensure!(orders == expected, "{what}: {orders:?} is not the plain order {expected:?}");
    }
    ensure!(orders.len() as i64 == EPOCHS, "{what}: {} epochs", orders.len());
    let mut together = Vec::new();
    for order in &orders {
        ensure!(order.len() == ROWS as usize / ddp_runtime::world_size(), "{what}: {order:?}");
        let parts = of_all_ranks(&Tensor::from_slice(order))?;
        let whole = Vec::<i64>::try_from(Tensor::cat(&parts, 0))?;
        let mut sorted = whole.clone();
        sorted.sort_unstable();
        ensure!(sorted == (0..ROWS).collect::<Vec<_>>(), "{what}: an epoch had {sorted:?}");
        ensure!(!together.contains(&whole), "{what}: the order {whole:?} came twice");
        together.push(whole);
    }
    Ok(())
}

pub(super) fn s27_epoch_loops(_: &[&str]) -> Result<()> {
    check_epochs("for", by_range::plain::train, by_range::shared::train)?;
    check_epochs("while", by_counter::plain::train, by_counter::shared::train)?;
    check_epochs("loop", endless::plain::train, endless::shared::train)
}

/// Prints the orders of the epochs from `start` on, for the test to compare with those of another run.
pub(super) fn s27_resumed(args: &[&str]) -> Result<()> {
    let [form, start] = args else { bail!("expected `for` or `while`, and the first epoch") };
    let start = start.parse()?;
    let model = Model::seeded();
    let train = if *form == "while" { by_counter::shared::train } else { by_range::shared::train };
    let orders = train(&model.vs, &model.net, &numbered(), start)?;
    for (epoch, order) in (start..).zip(orders) {
        println!("epoch {epoch}: {order:?}");
    }
    Ok(())
}

/// A clock that runs differently on each rank, out of the attribute's sight.
fn is_late(steps: usize) -> bool {
    steps >= 3 + ddp_runtime::rank()
}

/// Leaves both loops by a vote, and reports steps and epochs begun.
#[distributed]
fn by_clock(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch) -> Result<[f64; 2]> {
    let mut opt = Model::adam(vs)?;
    let (mut steps, mut epochs) = (0, 0.0);
    'epochs: for _epoch in 0..9 {
        epochs += 1.0;
        for (x, y) in Iter2::new(xs, ys, BATCH).shuffle() {
            opt.backward_step(&net.loss(&x, &y));
            steps += 1;
            if should_stop(is_late(steps)) {
                break 'epochs;
            }
        }
    }
    Ok([steps as f64, epochs])
}

#[distributed]
fn by_clock_unvoted(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch) -> Result<()> {
    let mut opt = Model::adam(vs)?;
    let mut steps = 0;
    'epochs: for _epoch in 0..9 {
        for (x, y) in Iter2::new(xs, ys, BATCH).shuffle() {
            opt.backward_step(&net.loss(&x, &y));
            steps += 1;
            if is_late(steps) {
                break 'epochs;
            }
        }
    }
    Ok(())
}

fn validation_loss(net: &Net, (xs, ys): &Batch) -> Result<f64> {
    Ok(tch::no_grad(|| f64::try_from(net.loss(xs, ys)))?)
}

// Stops as soon as the loss on the whole set is low; on the way samples until the sample is small, which is nobody's concern.
both!(by_validation: fn train(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch, limit: f64) -> Result<Vec<f64>> {
    let mut opt = Model::adam(vs)?;
    let mut losses = Vec::new();
    for _epoch in 0..40 {
        for (x, y) in Iter2::new(xs, ys, BATCH) {
            opt.backward_step(&net.loss(&x, &y));
        }
        loop {
            match Tensor::rand([1], (tch::Kind::Double, tch::Device::Cpu)).double_value(&[0]) {
                sample if sample < 0.5 => break,
                _ => continue,
            }
        }
        losses.push(validation_loss(net, &(xs.shallow_clone(), ys.shallow_clone()))?);
        if losses.last().is_some_and(|loss| *loss < limit) {
            break;
        }
    }
    Ok(losses)
});

/// `together`: leaves by a vote and by validation. `unvoted`: each rank by its own clock.
pub(super) fn s28_leaving_early(args: &[&str]) -> Result<()> {
    let data = data(ROWS);
    let model = Model::seeded();
    match args {
        ["unvoted"] => return by_clock_unvoted(&model.vs, &model.net, &data),
        ["together"] => {}
        _ => bail!("expected together or unvoted"),
    }
    // Rank 0 is late first, after three steps: on three ranks in the second epoch, of two steps each.
    let progress = by_clock(&model.vs, &model.net, &data)?;
    let epochs = 3.0_f64 / (ROWS / BATCH / ddp_runtime::world_size() as i64) as f64;
    ensure!(progress == [3.0, epochs.ceil()], "left after {progress:?}");

    let start = validation_loss(&Model::seeded().net, &data)?;
    let model = Model::seeded();
    let losses = by_validation::shared::train(&model.vs, &model.net, &data, start * 0.5)?;
    ensure!((2..40).contains(&losses.len()), "left after {} epochs", losses.len());
    if ddp_runtime::world_size() == 1 {
        let model = Model::seeded();
        let plain = by_validation::plain::train(&model.vs, &model.net, &data, start * 0.5)?;
        ensure!(losses == plain, "{losses:?} are not the plain losses {plain:?}");
    }
    alike("validation losses", &losses)
}

/// An error of the program's own.
#[derive(Debug)]
enum TrainError {
    Torch(TchError),
    Diverged(usize),
}

impl fmt::Display for TrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torch(error) => write!(f, "torch: {error}"),
            Self::Diverged(step) => write!(f, "own: diverged in step {step}"),
        }
    }
}

impl std::error::Error for TrainError {}

impl From<TchError> for TrainError {
    fn from(error: TchError) -> Self {
        Self::Torch(error)
    }
}

/// The step in which this rank is to fail.
type Fails = fn(usize) -> bool;

#[distributed]
fn with_anyhow(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch, fails: Fails) -> Result<f64> {
    let mut opt = Model::adam(vs)?;
    let mut last = f64::NAN;
    for (step, (x, y)) in Iter2::new(xs, ys, BATCH).enumerate() {
        let loss = net.loss(&x, &y);
        opt.backward_step(&loss);
        last = f64::try_from(&loss)?;
        if fails(step) {
            anyhow::bail!("anyhow: diverged in step {step}");
        }
    }
    Ok(last)
}

#[distributed]
fn with_tch(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch, fails: Fails) -> Result<f64, TchError> {
    let mut opt = Model::adam(vs)?;
    let mut last = Ok(f64::NAN);
    for (step, (x, y)) in Iter2::new(xs, ys, BATCH).enumerate() {
        let loss = net.loss(&x, &y);
        opt.zero_grad();
        loss.f_backward()?;
        opt.step();
        let _ = x.f_narrow(0, 0, if fails(step) { 777 } else { 1 })?;
        last = f64::try_from(&loss);
    }
    last
}

#[distributed]
fn with_box(
    vs: &nn::VarStore,
    net: &Net,
    (xs, ys): &Batch,
    fails: Fails,
) -> Result<f64, Box<dyn std::error::Error>> {
    let mut opt = Model::adam(vs)?;
    let mut last = f64::NAN;
    for (step, (x, y)) in Iter2::new(xs, ys, BATCH).enumerate() {
        let loss = net.loss(&x, &y);
        opt.backward_step(&loss);
        let text = if fails(step) { "not a number" } else { "1" };
        last = f64::try_from(&loss)? * text.parse::<f64>()?;
    }
    Ok(last)
}

#[distributed]
fn with_own(
    vs: &nn::VarStore,
    net: &Net,
    (xs, ys): &Batch,
    fails: Fails,
) -> Result<f64, TrainError> {
    let mut opt = Model::adam(vs)?;
    let mut last = f64::NAN;
    for (step, (x, y)) in Iter2::new(xs, ys, BATCH).enumerate() {
        let loss = net.loss(&x, &y);
        opt.backward_step(&loss);
        last = f64::try_from(&loss)?;
        if fails(step) {
            return Err(TrainError::Diverged(step));
        }
    }
    Ok(last)
}

/// Runs the function of each error type to its end, or one of them with rank 1 failing in its second step.
pub(super) fn s29_errors(args: &[&str]) -> Result<()> {
    let (data, model) = (data(ROWS), Model::seeded());
    let (vs, net) = (&model.vs, &model.net);
    let fails: Fails = |step| step == 1 && ddp_runtime::rank() == 1;
    let boxed = |error: Box<dyn std::error::Error>| anyhow::anyhow!("box: {error}");
    match args {
        ["anyhow"] => with_anyhow(vs, net, &data, fails).map(drop),
        ["tch"] => Ok(with_tch(vs, net, &data, fails).map(drop)?),
        ["box"] => with_box(vs, net, &data, fails).map(drop).map_err(boxed),
        ["own"] => Ok(with_own(vs, net, &data, fails).map(drop)?),
        [] => {
            let never: Fails = |_| false;
            let mut losses = vec![with_anyhow(vs, net, &data, never)?];
            losses.push(with_tch(vs, net, &data, never)?);
            losses.push(with_box(vs, net, &data, never).map_err(boxed)?);
            losses.push(with_own(vs, net, &data, never)?);
            ensure!(losses.iter().all(|loss| loss.is_finite()), "losses {losses:?}");
            let batch = BATCH * ddp_runtime::world_size() as i64;
            let pass = || items(&data, batch).into_iter().map(|item| vec![item]);
            // Four passes with fresh optimizers each: followed by the same four of one process.
            let expected = Model::seeded();
            for _ in 0..4 {
                let mut opt = Model::adam(&expected.vs)?;
                pass().for_each(|round| {
                    opt.backward_step(&expected.net.loss(&round[0].0, &round[0].1))
                });
            }
            super::one_process::equal(
                "four passes",
                &vs.trainable_variables(),
                &expected.vs.trainable_variables(),
            )
        }
        _ => bail!("no error type is called {args:?}"),
    }
}

/// Skips, on all ranks, the batches in which one rank's loss is no number; counts the batches that end quietly.
#[distributed]
fn skipping(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch) -> Result<[f64; 2]> {
    let mut opt = Model::adam(vs)?;
    let (mut skipped, mut loud) = (0.0, 0.0);
    for (x, y) in Iter2::new(xs, ys, BATCH) {
        let loss = net.loss(&x, &y);
        if skip_if(!f64::try_from(&loss)?.is_finite()) {
            skipped += 1.0;
            continue;
        }
        opt.backward_step(&loss);
        if f64::try_from(&loss)? < 100.0 {
            continue;
        }
        loud += 1.0;
    }
    Ok([skipped, loud])
}

/// Whether the loss is no number, out of the attribute's sight.
fn is_bad(loss: &Tensor) -> bool {
    !loss.double_value(&[]).is_finite()
}

#[distributed]
fn skipping_unvoted(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch) -> Result<()> {
    let mut opt = Model::adam(vs)?;
    for (x, y) in Iter2::new(xs, ys, BATCH) {
        let loss = net.loss(&x, &y);
        if is_bad(&loss) {
            continue;
        }
        opt.backward_step(&loss);
    }
    Ok(())
}

/// One row is no number. `voted` or `unvoted`.
pub(super) fn s30_skipping(args: &[&str]) -> Result<()> {
    let (x, y) = data(ROWS);
    // Row 5 belongs to the first batch of rank 1 of two, of rank 2 of three, and to the second batch of one rank.
    let _ = y.get(5).fill_(f64::NAN);
    let data = (x, y);
    let model = Model::seeded();
    match args {
        ["unvoted"] => skipping_unvoted(&model.vs, &model.net, &data),
        ["voted"] => {
            let counts = skipping(&model.vs, &model.net, &data)?;
            ensure!(counts == [1.0, 0.0], "skipped and loud: {counts:?}");
            let batch = BATCH * ddp_runtime::world_size() as i64;
            let good = |(_, y): &Batch| y.sum(tch::Kind::Double).double_value(&[]).is_finite();
            let rounds: Vec<Vec<Batch>> =
                items(&data, batch).into_iter().filter(good).map(|item| vec![item]).collect();
            follows("skipping", &model.vs, &rounds)
        }
        _ => bail!("expected voted or unvoted"),
    }
}
