//! Synchronised batch normalisation: layers against PyTorch's results on the joined batch, and which layers it is.
use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use ddp_runtime::{Options, ReduceOp, Scope, Uneven};
use tch::nn::{self, BatchNorm, BatchNormConfig, ModuleT};
use tch::{Device, Kind, Tensor};

use super::compare::close;

const CHANNELS: i64 = 3;

/// A layer of the truth script.
struct Variant {
    name: &'static str,
    dimensions: usize,
    kind: Kind,
    config: BatchNormConfig,
    cumulative: bool,
}

fn variants() -> Vec<Variant> {
    let plain = BatchNormConfig::default();
    let variant = |name, dimensions| Variant {
        name,
        dimensions,
        kind: Kind::Double,
        config: plain,
        cumulative: false,
    };
    vec![
        variant("rows", 1),
        variant("sequences", 1),
        variant("images", 2),
        variant("channels_last", 2),
        variant("volumes", 3),
        Variant { config: BatchNormConfig { affine: false, ..plain }, ..variant("plain", 2) },
        Variant {
            config: BatchNormConfig { momentum: 0.01, eps: 1e-3, ..plain },
            ..variant("slow", 1)
        },
        Variant { cumulative: true, ..variant("cumulative", 1) },
        Variant { kind: Kind::Float, ..variant("single", 2) },
        Variant { kind: Kind::Float, ..variant("single_rows", 1) },
    ]
}

type Arrays = BTreeMap<String, Tensor>;

fn array<'a>(truth: &'a Arrays, variant: &Variant, key: &str) -> Result<&'a Tensor> {
    let name = format!("{}.{key}", variant.name);
    truth.get(&name).with_context(|| format!("no {name}"))
}

fn layer(variant: &Variant, truth: &Arrays) -> Result<(nn::VarStore, BatchNorm)> {
    let mut vs = nn::VarStore::new(Device::Cpu);
    let build = match variant.dimensions {
        1 => nn::batch_norm1d,
        2 => nn::batch_norm2d,
        _ => nn::batch_norm3d,
    };
    let norm = build(vs.root() / "bn", CHANNELS, variant.config);
    vs.set_kind(variant.kind);
    for (key, parameter) in [("weight", &norm.ws), ("bias", &norm.bs)] {
        if let Some(parameter) = parameter {
            let values = array(truth, variant, key)?;
            tch::no_grad(|| parameter.shallow_clone().copy_(values));
        }
    }
    Ok((vs, norm))
}

/// This rank's rows, laid out in memory as the variant says.
fn part(variant: &Variant, whole: &Tensor, start: i64, length: i64) -> Tensor {
    let rows = whole.narrow(0, start, length);
    if variant.name == "channels_last" {
        // Through a permuted copy: tch has no memory format.
        rows.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2])
    } else {
        rows.copy()
    }
}

/// Three training steps and an evaluation of one variant.
fn follow(scope: &Scope, variant: &Variant, truth: &Arrays, start: i64, length: i64) -> Result<()> {
    let (vs, norm) = layer(variant, truth)?;
    scope.register(&vs)?;
    let limit = if variant.kind == Kind::Double { 1e-10 } else { 2e-5 };
    let parameters: Vec<&Tensor> = norm.ws.iter().chain(&norm.bs).collect();
    let mut last = None;
    for step in 0..3 {
        let get = |key: &str| array(truth, variant, &format!("{step}.{key}"));
        let x = part(variant, get("x")?, start, length).set_requires_grad(true);
        let dy = part(variant, get("dy")?, start, length);
        let y = if variant.cumulative {
            let factor = 1.0 / f64::from(step + 1);
            let (mean, var) = (Some(&norm.running_mean), Some(&norm.running_var));
            let eps = variant.config.eps;
            x.f_batch_norm(norm.ws.as_ref(), norm.bs.as_ref(), mean, var, true, factor, eps, true)?
        } else {
            norm.forward_t(&x, true)
        };
        ensure!(y.is_contiguous() == x.is_contiguous(), "{}: another layout", variant.name);
        let loss = (&y * &dy).sum(variant.kind);
        let mut inputs = vec![&x];
        inputs.extend(&parameters);
        let gradients = Tensor::run_backward(&[loss], &inputs, false, false);
        let rows = |whole: &Tensor| whole.narrow(0, start, length);
        let mut found = vec![y, gradients[0].shallow_clone()];
        let mut expected = vec![rows(get("y")?), rows(get("dx")?)];
        for (gradient, key) in gradients[1..].iter().zip(["dw", "db"]) {
            scope.all_reduce(gradient, ReduceOp::Sum)?;
            found.push(gradient.shallow_clone());
            expected.push(get(key)?.shallow_clone());
        }
        found.extend([norm.running_mean.copy(), norm.running_var.copy()]);
        expected.extend([get("mean")?.shallow_clone(), get("var")?.shallow_clone()]);
        close(&format!("{} step {step}", variant.name), &found, &expected, limit)?;
        last = Some(x);
    }
    let last = last.context("no step")?;
    let evaluated = norm.forward_t(&last, false);
    let expected = array(truth, variant, "eval")?.narrow(0, start, length);
    close(&format!("{} evaluated", variant.name), &[evaluated], &[expected], limit)
}

/// `path` is the truth; the ranks take `sizes` of its rows, one after another.
fn layers(path: &str, sizes: &str) -> Result<()> {
    let truth: Arrays =
        Tensor::read_npz(path).with_context(|| format!("reading {path}"))?.into_iter().collect();
    let sizes = sizes.split(',').map(str::parse).collect::<Result<Vec<i64>, _>>()?;
    let options = Options { sync_batch_norm: true, ..Options::default() };
    let scope = Scope::with_options("layers", options)?;
    ensure!(sizes.len() == scope.world_size(), "{sizes:?} for {} ranks", scope.world_size());
    let start = sizes[..scope.rank()].iter().sum();
    for variant in variants() {
        follow(&scope, &variant, &truth, start, sizes[scope.rank()])?;
    }
    Ok(scope.finish()?)
}

/// A batch of the rank's own.
fn batch(rank: usize) -> Tensor {
    let rows = 3 + rank as i64;
    let values: Vec<f64> =
        (0..rows * CHANNELS).map(|i| (i as f64 * 1.7 + rank as f64).sin() + rank as f64).collect();
    Tensor::from_slice(&values).view([rows, CHANNELS])
}

/// `x`, normalised by mean and variance of the rows of `of`.
fn normalised(x: &Tensor, of: &Tensor) -> Tensor {
    let mean = of.mean_dim(Some([0_i64].as_slice()), true, Kind::Double);
    let variance = (of - &mean).square().mean_dim(Some([0_i64].as_slice()), true, Kind::Double);
    (x - mean) / (variance + 1e-5).sqrt()
}

/// What normalising this rank's batch gives: with its own statistics, and with those of all ranks.
fn alone_and_together(scope: &Scope) -> (Tensor, Tensor) {
    let own = batch(scope.rank());
    let all: Vec<Tensor> = (0..scope.world_size()).map(batch).collect();
    (normalised(&own, &own), normalised(&own, &Tensor::cat(&all, 0)))
}

fn norm() -> (nn::VarStore, BatchNorm) {
    let mut vs = nn::VarStore::new(Device::Cpu);
    let config = BatchNormConfig { affine: false, ..Default::default() };
    let norm = nn::batch_norm1d(vs.root() / "bn", CHANNELS, config);
    vs.double();
    (vs, norm)
}

fn train(norm: &BatchNorm, scope: &Scope) -> Tensor {
    norm.forward_t(&batch(scope.rank()), true)
}

/// `batch_norm` of this rank's batch without running statistics.
fn stateless(scope: &Scope) -> Tensor {
    batch(scope.rank()).batch_norm(None::<Tensor>, None, None, None, true, 0.1, 1e-5, true)
}

fn instance_norm(running: Option<&(Tensor, Tensor)>, x: &Tensor) -> Tensor {
    let (mean, var) = (running.map(|pair| &pair.0), running.map(|pair| &pair.1));
    x.instance_norm(None, None, mean, var, true, 0.1, 1e-5, true)
}

/// Inputs and parameters of 16 bits, and parameters of 32 beside inputs of 16.
fn reduced() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let (rank, ranks) = (scope.rank(), scope.world_size());
    for (input, parameters) in [
        (Kind::Half, Kind::Half),
        (Kind::Half, Kind::Float),
        (Kind::BFloat16, Kind::BFloat16),
        (Kind::BFloat16, Kind::Float),
    ] {
        let mut vs = nn::VarStore::new(Device::Cpu);
        let config = BatchNormConfig { ws_init: nn::Init::Const(1.5), ..Default::default() };
        let norm = nn::batch_norm1d(vs.root() / "bn", CHANNELS, config);
        vs.set_kind(parameters);
        ddp_runtime::sync_batch_norm(&vs);
        let parts: Vec<Tensor> = (0..ranks).map(|rank| batch(rank).to_kind(input)).collect();
        let own = parts[rank].copy().set_requires_grad(true);
        let found = norm.forward_t(&own, true);
        ensure!(found.kind() == input, "{input:?} became {:?}", found.kind());
        let weights = |x: &Tensor| (x.to_kind(Kind::Double) * 0.7).cos().detach();
        let loss = (found.to_kind(Kind::Double) * weights(&own)).sum(Kind::Double);
        let dx = Tensor::run_backward(&[loss], &[&own], false, false);

        let all = Tensor::cat(&parts, 0).to_kind(Kind::Double).set_requires_grad(true);
        let expected = normalised(&all, &all) * 1.5;
        let loss = (&expected * weights(&all)).sum(Kind::Double);
        let whole = Tensor::run_backward(&[loss], &[&all], false, false);
        let start: i64 = parts[..rank].iter().map(|part| part.size()[0]).sum();
        let rows = |whole: &Tensor| whole.narrow(0, start, own.size()[0]).detach();
        let mean = all.mean_dim(Some([0_i64].as_slice()), false, Kind::Double).detach() * 0.1;
        let found: Vec<Tensor> = [found.detach(), dx[0].detach(), norm.running_mean.copy()]
            .iter()
            .map(|tensor| tensor.to_kind(Kind::Double))
            .collect();
        let what = format!("{input:?} beside {parameters:?}");
        // Beside parameters of 16 bits the CPU's kernels take statistics of 16 bits too.
        let limit = if input == Kind::Half { 5e-3 } else { 4e-2 };
        close(&what, &found, &[rows(&expected), rows(&whole[0]), mean], limit)?;
    }
    Ok(scope.finish()?)
}

/// With the option: all layers but those of a store that is kept local, and neither evaluation nor `instance_norm`.
fn everywhere() -> Result<()> {
    let x = Tensor::cat(&[batch(1), batch(1)], 0).view([2, 4, CHANNELS]).transpose(1, 2);
    let running = || {
        let of = |value| Tensor::full([CHANNELS], value, (Kind::Double, Device::Cpu));
        (of(0.0), of(1.0))
    };
    let before = running();
    let plain = [instance_norm(None, &x), instance_norm(Some(&before), &x)];

    let scope =
        Scope::with_options("everywhere", Options { sync_batch_norm: true, ..Options::default() })?;
    let (alone, together) = alone_and_together(&scope);
    let ((vs, known), (kept_vs, kept), (_hidden_vs, hidden)) = (norm(), norm(), norm());
    scope.register(&vs)?;
    ddp_runtime::local_batch_norm(&kept_vs);
    let found =
        [train(&known, &scope), train(&hidden, &scope), stateless(&scope), train(&kept, &scope)];
    let expected = [together.copy(), together.copy(), together.copy(), alone.copy()];
    close("with the option", &found, &expected, 1e-12)?;
    // The last rank alone: none of these is a collective.
    if scope.rank() + 1 == scope.world_size() {
        let after = running();
        let found = [instance_norm(None, &x), instance_norm(Some(&after), &x)];
        ensure!(found.iter().zip(&plain).all(|(a, b)| a.equal(b)), "another instance_norm");
        ensure!(after.0.equal(&before.0) && after.1.equal(&before.1), "other running statistics");
        let _ = known.forward_t(&batch(0), false);
        let _ = train(&kept, &scope);
    }
    ddp_runtime::sync_batch_norm(&kept_vs);
    ddp_runtime::local_batch_norm(&vs);
    let found = [train(&kept, &scope), train(&known, &scope)];
    close("chosen again", &found, &[together.copy(), alone.copy()], 1e-12)?;
    scope.finish()?;
    close(
        "after the scope",
        &[hidden.forward_t(&batch(ddp_runtime::rank()), true)],
        &[alone],
        1e-12,
    )
}

/// Without the option: the layers of one store.
fn one_store() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let (alone, together) = alone_and_together(&scope);
    let ((vs, chosen), (_other_vs, other)) = (norm(), norm());
    close("before", &[train(&chosen, &scope)], std::slice::from_ref(&alone), 1e-12)?;
    ddp_runtime::sync_batch_norm(&vs);
    let late = nn::batch_norm1d(
        vs.root() / "late",
        CHANNELS,
        BatchNormConfig { affine: false, ..Default::default() },
    );
    let found = [
        train(&chosen, &scope),
        late.forward_t(&batch(scope.rank()).to_kind(Kind::Float), true),
        train(&other, &scope),
        stateless(&scope),
    ];
    close("one store", &found[..2], &[together.copy(), together.copy()], 1e-6)?;
    close("others", &found[2..], &[alone.copy(), alone.copy()], 1e-12)?;
    Ok(scope.finish()?)
}

/// Two layers, and what their inputs depend on.
fn two() -> (nn::VarStore, [BatchNorm; 2], Tensor) {
    let mut vs = nn::VarStore::new(Device::Cpu);
    let build = |name: &str| nn::batch_norm1d(vs.root() / name, CHANNELS, Default::default());
    let norms = [build("first"), build("second")];
    let scale = vs.root().ones("scale", &[CHANNELS]);
    vs.double();
    (vs, norms, scale)
}

/// Under `uneven = "join"` a rank that has returned has no part in the statistics of the others.
fn join() -> Result<()> {
    let options = Options { sync_batch_norm: true, uneven: Uneven::Join, ..Options::default() };
    let scope = Scope::with_options("join", options)?;
    let (vs, [norm, _], scale) = two();
    scope.register(&vs)?;
    let steps = |rank: usize| 2 + rank;
    let own = batch(scope.rank());
    for step in 0..steps(scope.rank()) {
        let present = (0..scope.world_size()).filter(|&rank| steps(rank) > step);
        let all = Tensor::cat(&present.map(batch).collect::<Vec<_>>(), 0);
        let expected = normalised(&own, &all).detach();
        let (Some(weight), Some(bias)) = (&norm.ws, &norm.bs) else { bail!("no weight") };
        let y = norm.forward_t(&(&own * &scale), true);
        close(&format!("step {step}"), &[y.detach()], &[expected * weight + bias], 1e-12)?;
        y.square().sum(Kind::Double).f_backward()?;
    }
    Ok(scope.finish()?)
}

/// Ranks that differ in what they train: each ends in an error.
fn differ(how: &str) -> Result<()> {
    let scope =
        Scope::with_options("differ", Options { sync_batch_norm: true, ..Options::default() })?;
    let (vs, [first, second], scale) = two();
    scope.register(&vs)?;
    let odd = scope.rank() == 1;
    let forward = |norm: &BatchNorm, training: bool| {
        norm.forward_t(&(batch(scope.rank()) * &scale), training)
    };
    let step = || forward(&first, true).square().sum(Kind::Double).f_backward();
    step()?;
    match how {
        "extra-forward" if odd => drop(tch::no_grad(|| forward(&first, true))),
        "evaluation" if odd => {
            forward(&first, false).square().sum(Kind::Double).f_backward()?;
        }
        "order" => {
            let norms = if odd { [&second, &first] } else { [&first, &second] };
            let _ = norms.map(|norm| forward(norm, true));
        }
        "loss" => {
            let (a, b) = (forward(&first, true), forward(&second, true));
            let loss = if odd { a.square() } else { a.square() + b.square() };
            loss.sum(Kind::Double).f_backward()?;
        }
        "unequal" => {
            let start = nn::Init::Const(1.0 + scope.rank() as f64);
            let own = vs.root().var("late", &[CHANNELS], start);
            let y = first.forward_t(&(batch(scope.rank()) * own), true);
            y.square().sum(Kind::Double).f_backward()?;
        }
        "leaves" if odd => return Ok(scope.finish()?),
        "alone" => drop(ddp_runtime::main_only(|| forward(&first, true))),
        "thread" => {
            let (x, mean) = (batch(scope.rank()), first.running_mean.shallow_clone());
            let train = move || {
                x.f_batch_norm(None::<Tensor>, None, Some(mean), None, true, 0.1, 1e-5, true)
            };
            match std::thread::spawn(train).join() {
                Ok(result) => drop(result?),
                Err(_) => bail!("the thread panicked"),
            }
        }
        "one-value" => {
            let rows = i64::from(!odd);
            let _ = first.forward_t(&batch(0).narrow(0, 0, rows), true);
        }
        "second-derivative" => {
            let x = batch(scope.rank()).set_requires_grad(true);
            let loss = first.forward_t(&x, true).square().sum(Kind::Double);
            let gradient = Tensor::f_run_backward(&[loss], &[&x], true, true)?;
            ensure!(gradient.is_empty(), "there are second derivatives");
        }
        "dead" if odd => std::process::exit(3),
        "extra-forward" | "evaluation" | "leaves" | "dead" | "nothing" => {}
        _ => bail!("no difference is called {how}"),
    }
    step()?;
    step()?;
    Ok(scope.finish()?)
}

pub(super) fn run(args: &[String]) -> Result<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["layers", path, sizes] => layers(path, sizes),
        ["everywhere"] => everywhere(),
        ["one-store"] => one_store(),
        ["reduced"] => reduced(),
        ["join"] => join(),
        ["differ", how] => differ(how),
        _ => bail!("no case of batch-norm is called {args:?}"),
    }
}
