//! Replicas within one process, compared with one device on the whole batch.
use std::sync::Barrier;

use anyhow::{Result, bail, ensure};
use ddp_runtime::{DataParallel, Error, data_parallel};
use tch::nn::{self, Module, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Tensor};

use super::compare::close;

const F64: (Kind, Device) = (Kind::Double, Device::Cpu);

/// A convolution and two linear layers, smooth.
fn net(vs: &nn::Path) -> nn::Sequential {
    nn::seq()
        .add(nn::conv2d(vs / "conv", 1, 3, 3, Default::default()))
        .add_fn(|xs| xs.tanh().flat_view())
        .add(nn::linear(vs / "hidden", 48, 10, Default::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(vs / "out", 10, 4, Default::default()))
}

fn images(rows: i64) -> Tensor {
    Tensor::randn([rows, 1, 6, 6], F64)
}

fn double_store() -> nn::VarStore {
    let mut store = nn::VarStore::new(Device::Cpu);
    store.set_kind(Kind::Double);
    store
}

fn devices(count: usize) -> Vec<Device> {
    vec![Device::Cpu; count]
}

/// A model with its store.
type Held<M> = (nn::VarStore, M);

/// A model on one device, and the same with the same values on `count`.
fn pair<M>(
    count: usize,
    build: impl Fn(&nn::Path) -> M,
) -> Result<(Held<M>, Held<DataParallel<M>>)> {
    let mut single = nn::VarStore::new(Device::Cpu);
    let model = build(&single.root());
    let mut store = nn::VarStore::new(Device::Cpu);
    let parallel = DataParallel::new(&store, &devices(count), build)?;
    // After they are built: tch makes running statistics in single precision.
    single.double();
    store.double();
    store.copy(&single)?;
    Ok(((single, model), (store, parallel)))
}

fn gradients(store: &nn::VarStore) -> Vec<Tensor> {
    store.trainable_variables().iter().map(Tensor::grad).collect()
}

/// Uneven and small batches, on one to four replicas, twice each: the second adds to the first.
fn gradients_of_one_device() -> Result<()> {
    for count in 1..=4 {
        let ((single, model), (store, parallel)) = pair(count, net)?;
        for rows in [1, 2, 3, 5, 6, 7, 8, 9] {
            let xs = images(rows);
            let weights = Tensor::randn([rows, 4], F64);
            let (expected, found) = (model.forward(&xs), parallel.forward(&xs));
            close("outputs", &[found.shallow_clone()], &[expected.shallow_clone()], 1e-12)?;
            (expected * &weights).sum(Kind::Double).backward();
            (found * &weights).sum(Kind::Double).backward();
            let what = format!("gradients, {count} replicas, {rows} rows more");
            close(&what, &gradients(&store), &gradients(&single), 1e-12)?;
        }
    }
    Ok(())
}

fn course() -> Result<()> {
    let ((single, model), (store, parallel)) = pair(3, net)?;
    let mut opts =
        (nn::Adam::default().build(&single, 1e-2)?, nn::Adam::default().build(&store, 1e-2)?);
    for step in 0..50 {
        let (xs, ys) = (images(10), Tensor::randint(4, [10], (Kind::Int64, Device::Cpu)));
        let loss = |ys_hat: Tensor| ys_hat.cross_entropy_for_logits(&ys);
        opts.0.backward_step(&loss(model.forward(&xs)));
        opts.1.backward_step(&loss(parallel.forward(&xs)));
        if step % 10 == 9 {
            let weights = (store.trainable_variables(), single.trainable_variables());
            close("weights", &weights.0, &weights.1, 1e-9)?;
        }
    }
    Ok(())
}

fn normalised(vs: &nn::Path) -> nn::SequentialT {
    nn::seq_t()
        .add(nn::linear(vs / "in", 4, 6, Default::default()))
        .add(nn::batch_norm1d(vs / "bn", 6, Default::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(vs / "out", 6, 2, Default::default()))
}

fn statistics(store: &nn::VarStore) -> Vec<Tensor> {
    let variables = store.variables();
    ["bn.running_mean", "bn.running_var"].map(|name| variables[name].copy()).into()
}

/// PyTorch's rule, computed part by part on one model: each part is normalised by itself, and of the running statistics only
/// the first part's update stays.
fn buffers() -> Result<()> {
    let ((single, model), (store, parallel)) = pair(3, normalised)?;
    for rows in [8, 9, 4] {
        let xs = Tensor::randn([rows, 4], F64);
        let mut outputs = Vec::new();
        let mut kept = Vec::new();
        for part in xs.chunk(3, 0) {
            let before = statistics(&single);
            outputs.push(model.forward_t(&part, true));
            kept.push(statistics(&single));
            restore(&single, &before);
        }
        restore(&single, &kept[0]);
        let expected = Tensor::cat(&outputs, 0);
        let found = parallel.forward_t(&xs, true);
        close("outputs", &[found.shallow_clone()], &[expected.shallow_clone()], 1e-12)?;
        close("statistics", &statistics(&store), &statistics(&single), 1e-12)?;
        expected.square().sum(Kind::Double).backward();
        found.square().sum(Kind::Double).backward();
        close("gradients", &gradients(&store), &gradients(&single), 1e-11)?;
        let (found, expected) = (parallel.forward_t(&xs, false), model.forward_t(&xs, false));
        close("evaluation", &[found], &[expected], 1e-12)?;
    }
    Ok(())
}

fn restore(store: &nn::VarStore, values: &[Tensor]) {
    let variables = store.variables();
    let names = ["bn.running_mean", "bn.running_var"];
    for (name, value) in names.into_iter().zip(values) {
        // Through `data`, of which the graph on its way knows nothing.
        variables[name].data().copy_(value);
    }
}

/// A tuple with a number in it goes in, one with a list and a loss a replica comes out.
fn nested() -> Result<()> {
    let ((_, model), (_, parallel)) = pair(2, net)?;
    let (xs, ys) = (images(5), Tensor::randn([5, 4], F64));
    let input = ((xs.copy(), ys.copy()), 0.5, vec![ys.copy()]);
    let (outputs, losses) = parallel.run(&input, |model, ((xs, ys), factor, more)| {
        let out = model.forward(&xs) * factor;
        let loss = (&out - &more[0]).square().sum(Kind::Double);
        Ok((vec![out.shallow_clone(), &out - ys], loss))
    })?;
    let expected = model.forward(&xs) * 0.5;
    let rest = &expected - &ys;
    let parts = rest.square().split_with_sizes([3, 2], 0);
    let sums: Vec<Tensor> = parts.iter().map(|part| part.sum(Kind::Double)).collect();
    close("lists", &outputs, &[expected, rest], 1e-12)?;
    close("losses", &[losses], &[Tensor::stack(&sums, 0)], 1e-12)
}

/// The replicas meet at a barrier, which is only passed together.
fn threads() -> Result<()> {
    let (_, (_, parallel)) = pair(3, net)?;
    let barrier = Barrier::new(3);
    let meet = |model: &nn::Sequential, xs: Tensor| {
        barrier.wait();
        Ok(model.forward(&xs))
    };
    let with = parallel.run(&images(6), meet)?;
    let without = tch::no_grad(|| parallel.run(&images(6), meet))?;
    ensure!(with.requires_grad() && !without.requires_grad(), "gradient mode is not the caller's");
    Ok(())
}

/// Two forwards before one backward, as for real and false samples; a write in between is refused, as on one device.
fn two_forwards() -> Result<()> {
    let ((single, model), (store, parallel)) = pair(3, normalised)?;
    let (a, b) = (Tensor::randn([6, 4], F64), Tensor::randn([7, 4], F64));
    let loss = |a: Tensor, b: Tensor| a.square().sum(Kind::Double) - b.tanh().sum(Kind::Double);
    loss(model.forward_t(&a, false), model.forward_t(&b, false)).backward();
    loss(parallel.forward_t(&a, false), parallel.forward_t(&b, false)).backward();
    close("gradients", &gradients(&store), &gradients(&single), 1e-12)?;
    let trained = || parallel.forward_t(&a, true).square().sum(Kind::Double);
    (trained() + trained()).backward();

    // On the replicas alone: what the first model saved would be noticed by libtorch in any case.
    let elsewhere = || {
        parallel.run(&a, |model, xs| {
            let thread = std::thread::current();
            match thread.name() {
                Some(name) if name.starts_with("replica ") => Ok(model.forward_t(&xs, false)),
                _ => Ok(xs.narrow(1, 0, 2)),
            }
        })
    };
    let early = elsewhere()?.square().sum(Kind::Double);
    for mut weight in store.trainable_variables() {
        let _ = tch::no_grad(|| weight.g_add_scalar_(0.1));
    }
    let late = elsewhere()?.square().sum(Kind::Double);
    match early.f_backward() {
        Ok(()) => bail!("a backward went through weights that had changed since its forward"),
        Err(error) => ensure!(error.to_string().contains("modified by an inplace"), "{error}"),
    }
    late.backward();
    Ok(())
}

fn two_heads(vs: &nn::Path) -> (nn::Linear, nn::Linear) {
    let head = |name: &str| nn::linear(vs / name, 4, 2, Default::default());
    (head("left"), head("right"))
}

fn unused() -> Result<()> {
    let mut store = double_store();
    let parallel = DataParallel::new(&store, &devices(3), two_heads)?;
    let xs = Tensor::randn([6, 4], F64);
    let left = |model: &(nn::Linear, nn::Linear), xs: Tensor| Ok(model.0.forward(&xs));
    let defined = |store: &nn::VarStore| -> Vec<bool> {
        gradients(store).iter().map(Tensor::defined).collect()
    };
    parallel.run(&xs, left)?.sum(Kind::Double).backward();
    ensure!(defined(&store) == [true, true, false, false], "{:?}", defined(&store));

    let left_bias = store.trainable_variables()[0].shallow_clone();
    let mut gradient = left_bias.grad();
    let _ = gradient.zero_();
    let _ = left_bias.set_requires_grad(false);
    parallel.run(&xs, left)?.sum(Kind::Double).backward();
    ensure!(gradient.abs().sum(Kind::Double).double_value(&[]) == 0.0, "a frozen one was reached");
    store.freeze();
    ensure!(!parallel.run(&xs, left)?.requires_grad(), "everything is frozen");
    store.unfreeze();
    parallel.run(&xs, left)?.sum(Kind::Double).backward();
    ensure!(gradient.double_value(&[0]) == 6.0, "a thawed one was not reached: {gradient:?}");
    Ok(())
}

fn random() -> Result<()> {
    let draw = |parallel: bool| -> Result<Vec<Tensor>> {
        tch::manual_seed(3);
        let store = double_store();
        if parallel {
            DataParallel::new(&store, &devices(3), net)?;
        } else {
            net(&store.root());
        }
        let mut drawn = store.trainable_variables();
        drawn.push(Tensor::rand([4], F64));
        Ok(drawn)
    };
    let (found, expected) = (draw(true)?, draw(false)?);
    ensure!(found == expected, "the replicas moved the generator on");
    Ok(())
}

fn failures() -> Result<()> {
    let (_, (_, parallel)) = pair(3, net)?;
    let fails = |at: f64, panics: bool| {
        let xs = Tensor::from_slice(&[0.0, 1.0, 2.0]);
        let result = parallel.run(&xs, |_, xs| {
            if xs.double_value(&[0]) < at {
                return Ok(xs);
            }
            assert!(!panics, "no luck with {at}");
            xs.f_matmul(&xs.view([1, 1, 1, 1]).expand([1, 1, 3, 1], true))
        });
        match result {
            Err(Error::Replica { replica, device: Device::Cpu, message }) => Ok((replica, message)),
            other => bail!("not the error of a replica: {other:?}"),
        }
    };
    for at in [0_u8, 1, 2] {
        let (replica, message) = fails(at.into(), true)?;
        ensure!(replica == usize::from(at) && message == format!("panicked: no luck with {at}"));
        let (replica, message) = fails(at.into(), false)?;
        ensure!(replica == usize::from(at) && message.contains("size"), "{replica}: {message}");
    }
    // After all this it still works.
    parallel.forward(&images(4)).sum(Kind::Double).backward();
    Ok(())
}

#[track_caller]
fn refusal<T>(result: ddp_runtime::Result<T>, text: &str) -> Result<()> {
    match result {
        Ok(_) => bail!("accepted, expected `{text}`"),
        Err(error) => {
            ensure!(error.to_string().contains(text), "{error}");
            Ok(())
        }
    }
}

fn refused() -> Result<()> {
    let store = double_store();
    refusal(DataParallel::new(&store, &[], net), "without devices")?;
    refusal(DataParallel::new(&store, &[Device::Cuda(0)], net), "whose first device is Cuda(0)")?;
    refusal(DataParallel::new(&store, &[Device::Cpu, Device::Mps], net), "on Mps")?;

    // Something computed from a parameter at the start would lead into a tensor that nobody looks at.
    let derived = |vs: &nn::Path| vs.randn_standard("weight", &[2, 2]).tr();
    refusal(
        DataParallel::new(&double_store(), &devices(2), derived),
        "is computed from its parameter `weight`",
    )?;
    // The second `weight` of a store is called otherwise.
    let weight = |vs: &nn::Path| vs.randn_standard("weight", &[2, 2]);
    let store = double_store();
    let _ = weight(&store.root());
    refusal(DataParallel::new(&store, &devices(2), weight), "a variable `weight` that the first")?;

    let sizes = std::cell::Cell::new(1);
    let growing = |vs: &nn::Path| {
        sizes.set(sizes.get() + 1);
        vs.randn_standard("weight", &[sizes.get()])
    };
    refusal(
        DataParallel::new(&double_store(), &devices(2), growing),
        "replica 1 on Cpu: its variable `weight` has the shape [3], the first model's [2]",
    )
}

fn functional() -> Result<()> {
    let store = double_store();
    let model = net(&store.root());
    let xs = images(5);
    let forward = |model: &nn::Sequential, xs: Tensor| Ok(model.forward(&xs));
    let found = data_parallel((&store, &model), &devices(3), net, &xs, forward)?;
    let expected = model.forward(&xs);
    close("outputs", &[found.shallow_clone()], &[expected.shallow_clone()], 1e-12)?;
    let parameters = store.trainable_variables();
    let expected =
        Tensor::run_backward(&[expected.square().sum(Kind::Double)], &parameters, false, false);
    found.square().sum(Kind::Double).backward();
    close("gradients", &gradients(&store), &expected, 1e-12)
}

fn kinds() -> Result<()> {
    let mut store = nn::VarStore::new(Device::Cpu);
    let parallel = DataParallel::new(&store, &devices(2), net)?;
    parallel.forward(&images(4).to_kind(Kind::Float)).sum(Kind::Float).backward();
    store.double();
    let out = parallel.forward(&images(4));
    ensure!(out.kind() == Kind::Double, "{:?}", out.kind());
    Ok(())
}

fn scope() -> Result<()> {
    let outside = DataParallel::new(&double_store(), &devices(2), net)?;
    let scope = ddp_runtime::init()?;
    let text = "inside a scope of several ranks";
    refusal(DataParallel::new(&double_store(), &devices(2), net), text)?;
    refusal(outside.run(&images(2), |model, xs| Ok(model.forward(&xs))), text)?;
    Ok(scope.finish()?)
}

pub(super) fn run(args: &[String]) -> Result<()> {
    tch::manual_seed(1);
    match args.first().map(String::as_str) {
        Some("gradients") => gradients_of_one_device(),
        Some("course") => course(),
        Some("buffers") => buffers(),
        Some("nested") => nested(),
        Some("threads") => threads(),
        Some("two-forwards") => two_forwards(),
        Some("unused") => unused(),
        Some("random") => random(),
        Some("failures") => failures(),
        Some("refused") => refused(),
        Some("functional") => functional(),
        Some("kinds") => kinds(),
        Some("scope") => scope(),
        other => bail!("no case {other:?}"),
    }
}
