//! Gradients on W ranks equal those of one process on the joined batch, which libtorch itself computes.
use anyhow::{Result, bail, ensure};
use ddp_runtime::{Scope, dist};
use tch::nn::{self, Module, ModuleT, RNN};
use tch::{Device, Kind, Tensor};

use super::compare::close;

/// Samples a rank gets.
const BATCH: i64 = 6;

/// Of inputs and targets; a mean over samples.
type Loss = Box<dyn Fn(&Tensor, &Tensor) -> Tensor>;

/// A model.
struct Model {
    store: nn::VarStore,
    loss: Loss,
    input: Vec<i64>,
}

/// As tch's `cross_entropy_for_logits`, which always computes in f32, but in the dtype of the logits.
fn cross_entropy(logits: &Tensor, y: &Tensor) -> Tensor {
    logits.log_softmax(-1, logits.kind()).nll_loss(y)
}

fn mlp() -> Model {
    let store = nn::VarStore::new(Device::Cpu);
    let root = &store.root();
    let net = nn::seq()
        .add(nn::linear(root / "in", 20, 64, Default::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(root / "mid", 64, 64, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(root / "out", 64, 5, Default::default()));
    let loss = move |x: &Tensor, y: &Tensor| cross_entropy(&net.forward(x), y);
    Model { store, loss: Box::new(loss), input: vec![20] }
}

/// Several buckets of any size that is chosen.
fn wide() -> Model {
    let store = nn::VarStore::new(Device::Cpu);
    let root = &store.root();
    let net = nn::seq()
        .add(nn::linear(root / "in", 20, 900, Default::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(root / "mid1", 900, 900, Default::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(root / "mid2", 900, 900, Default::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(root / "out", 900, 5, Default::default()));
    let loss = move |x: &Tensor, y: &Tensor| cross_entropy(&net.forward(x), y);
    Model { store, loss: Box::new(loss), input: vec![20] }
}

fn conv() -> Model {
    let store = nn::VarStore::new(Device::Cpu);
    let root = &store.root();
    let same = nn::ConvConfig { padding: 1, ..Default::default() };
    let net = nn::seq_t()
        .add(nn::conv2d(root / "c1", 3, 8, 3, same))
        .add_fn(Tensor::relu)
        .add_fn(|x| x.max_pool2d_default(2))
        .add(nn::conv2d(root / "c2", 8, 16, 3, same))
        .add_fn(|x| x.relu().adaptive_avg_pool2d([2, 2]).flatten(1, -1))
        .add(nn::linear(root / "fc", 64, 5, Default::default()));
    let loss = move |x: &Tensor, y: &Tensor| cross_entropy(&net.forward_t(x, true), y);
    Model { store, loss: Box::new(loss), input: vec![3, 12, 12] }
}

fn lstm() -> Model {
    let store = nn::VarStore::new(Device::Cpu);
    let root = &store.root();
    let net =
        nn::lstm(root / "lstm", 10, 24, nn::RNNConfig { num_layers: 2, ..Default::default() });
    let head = nn::linear(root / "head", 24, 5, Default::default());
    let loss = move |x: &Tensor, y: &Tensor| {
        let (steps, _) = net.seq(x);
        cross_entropy(&head.forward(&steps.select(1, -1)), y)
    };
    Model { store, loss: Box::new(loss), input: vec![7, 10] }
}

fn transformer() -> Model {
    let store = nn::VarStore::new(Device::Cpu);
    let root = &store.root();
    let (width, heads) = (32, 4);
    let linear = |name: &str, from, to| nn::linear(root / name, from, to, Default::default());
    let norm = |name: &str| nn::layer_norm(root / name, vec![width], Default::default());
    let (qkv, out) = (linear("qkv", width, 3 * width), linear("out", width, width));
    let (up, down, head) = (
        linear("up", width, 4 * width),
        linear("down", 4 * width, width),
        linear("head", width, 5),
    );
    let (norm1, norm2) = (norm("norm1"), norm("norm2"));
    let loss = move |x: &Tensor, y: &Tensor| {
        let (batch, time) = (x.size()[0], x.size()[1]);
        let parts = qkv.forward(&norm1.forward(x)).chunk(3, -1);
        let split = |part: &Tensor| part.view([batch, time, heads, width / heads]).transpose(1, 2);
        let (q, k, v) = (split(&parts[0]), split(&parts[1]), split(&parts[2]));
        let weights = (q.matmul(&k.transpose(-2, -1)) / ((width / heads) as f64).sqrt())
            .softmax(-1, q.kind());
        let mixed = weights.matmul(&v).transpose(1, 2).reshape([batch, time, width]);
        let x = x + out.forward(&mixed);
        let x = &x + down.forward(&up.forward(&norm2.forward(&x)).gelu("none"));
        let mean = x.mean_dim(Some([1_i64].as_slice()), false, x.kind());
        cross_entropy(&head.forward(&mean), y)
    };
    Model { store, loss: Box::new(loss), input: vec![9, width] }
}

/// The whole batch, the same on all ranks.
fn joined_batch(model: &Model, world_size: i64, kind: Kind) -> (Tensor, Tensor) {
    tch::manual_seed(11);
    let samples = BATCH * world_size;
    let mut size = vec![samples];
    size.extend(&model.input);
    let x = Tensor::randn(&size, (kind, Device::Cpu));
    let y = Tensor::randint(5, [samples], (Kind::Int64, Device::Cpu));
    (x, y)
}

fn gradients(model: &Model) -> Vec<Tensor> {
    model.store.trainable_variables().iter().map(|variable| variable.grad().copy()).collect()
}

fn zero(model: &Model) {
    for mut variable in model.store.trainable_variables() {
        variable.zero_grad();
    }
}

pub(super) fn run(args: &[String]) -> Result<()> {
    // Small buckets, so that the models here fill several.
    let (name, kind, bucket_bytes) = match args {
        [name, kind] => (name, kind, Some(4096)),
        [name, kind, chosen] if chosen == "chosen" => (name, kind, None),
        _ => bail!("expected a model and a dtype, got {args:?}"),
    };
    let build: fn() -> Model = match name.as_str() {
        "mlp" => mlp,
        "wide" => wide,
        "conv" => conv,
        "lstm" => lstm,
        "transformer" => transformer,
        _ => bail!("no model is called {name}"),
    };
    let (kind, limit) = match kind.as_str() {
        "f32" => (Kind::Float, 1e-5),
        "f64" => (Kind::Double, 1e-12),
        _ => bail!("no dtype is called {kind}"),
    };
    let (mut model, mut reference) = (build(), build());
    if kind == Kind::Double {
        model.store.double();
        reference.store.double();
    }
    let options = ddp_runtime::Options { bucket_bytes, ..Default::default() };
    let scope = Scope::with_options("gradients", options)?;
    same_buckets(bucket_bytes)?;
    scope.register(&model.store)?;
    reference.store.copy(&model.store)?;
    let (x, y) = joined_batch(&model, scope.world_size() as i64, kind);
    let rows = |t: &Tensor, round: i64| {
        // Another part of the data in each round.
        let rank = (scope.rank() as i64 + round) % scope.world_size() as i64;
        t.narrow(0, rank * BATCH, BATCH)
    };
    let expected = reference_gradients(&reference, &x, &y);
    for round in 0..3 {
        zero(&model);
        (model.loss)(&rows(&x, round), &rows(&y, round)).backward();
        close(&format!("{name} round {round}"), &gradients(&model), &expected, limit)?;
    }
    // A second backward adds to the average of the first.
    (model.loss)(&rows(&x, 1), &rows(&y, 1)).backward();
    let twice: Vec<Tensor> = expected.iter().map(|gradient| gradient * 2).collect();
    close(&format!("{name} accumulated"), &gradients(&model), &twice, limit)?;
    scope.finish()?;
    Ok(())
}

/// All ranks have buckets of one size, the one asked for where one was.
fn same_buckets(asked: Option<usize>) -> Result<()> {
    let all = dist::all_gather_object(&dist::bucket_bytes())?;
    let right = |found: &Option<usize>| match asked {
        Some(_) => *found == asked,
        None => found.is_some_and(|bytes| (25 << 20..=64 << 20).contains(&bytes)),
    };
    ensure!(all.iter().all(|found| *found == all[0] && right(found)), "sizes of buckets: {all:?}");
    println!("buckets of {:?}", all[0]);
    Ok(())
}

/// What one process computes on the joined batch. `run_backward` stores no gradient, so it is not averaged.
fn reference_gradients(model: &Model, x: &Tensor, y: &Tensor) -> Vec<Tensor> {
    let variables = model.store.trainable_variables();
    Tensor::run_backward(&[(model.loss)(x, y)], &variables, false, false)
}
