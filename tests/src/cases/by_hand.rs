//! The attribute and the same calls written by hand: number for number the same.
use anyhow::{Result, bail, ensure};
use ddp_runtime::data::{DistributedSampler, Order, ShardedIter2};
use ddp_runtime::{DistributedDataParallel, distributed, mean};
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Tensor};

const EPOCHS: u64 = 3;
const BATCH: i64 = 5;

fn data() -> (Tensor, Tensor) {
    let xs = (Tensor::arange(22 * 4, (Kind::Double, Device::Cpu)) * 0.7).sin().view([22, 4]);
    let ys = xs.sum_dim_intlist(1, false, Kind::Double).gt(0.0).to_kind(Kind::Int64);
    (xs, ys)
}

fn net(vs: &nn::Path) -> nn::SequentialT {
    nn::seq_t()
        .add(nn::linear(vs / "in", 4, 8, Default::default()))
        .add(nn::batch_norm1d(vs / "bn", 8, Default::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(vs / "out", 8, 2, Default::default()))
}

/// What both have to show: the weights with the running statistics, and the figures on the way.
type Course = (Vec<Tensor>, Vec<f64>);

fn result(vs: &nn::VarStore, figures: Vec<f64>) -> Course {
    let mut variables: Vec<(String, Tensor)> = vs.variables().into_iter().collect();
    variables.sort_by(|a, b| a.0.cmp(&b.0));
    (variables.into_iter().map(|(_, tensor)| tensor.copy()).collect(), figures)
}

#[distributed]
fn by_attribute(xs: &Tensor, ys: &Tensor, path: &str) -> Result<Course> {
    tch::manual_seed(3);
    let mut vs = nn::VarStore::new(Device::Cpu);
    let model = net(&vs.root());
    vs.double();
    let mut opt = nn::AdamW::default().build(&vs, 1e-2)?;
    let mut figures = Vec::new();
    for _epoch in 0..EPOCHS {
        for (xs, ys) in tch::data::Iter2::new(xs, ys, BATCH).shuffle() {
            let loss = model.forward_t(&xs, true).cross_entropy_for_logits(&ys);
            opt.backward_step(&loss);
            figures.push(mean(f64::try_from(loss)?));
        }
    }
    vs.save(path)?;
    Ok(result(&vs, figures))
}

fn by_hand(xs: &Tensor, ys: &Tensor, path: &str) -> Result<Course> {
    let scope = ddp_runtime::init()?;
    ddp_runtime::manual_seed(3);
    let mut vs = nn::VarStore::new(Device::Cpu);
    let model = net(&vs.root());
    vs.double();
    let model = DistributedDataParallel::new(&scope, &vs, model)?;
    let mut opt = nn::AdamW::default().build(&vs, 1e-2)?;
    let mut figures = Vec::new();
    for epoch in 0..EPOCHS {
        scope.begin_epoch(epoch)?;
        let order = Order { seed: 0, epoch };
        for (xs, ys) in ShardedIter2::new(xs, ys, BATCH, scope.share(), order).shuffle() {
            let loss = model.forward_t(&xs, true).cross_entropy_for_logits(&ys);
            opt.backward_step(&loss);
            figures.push(mean(f64::try_from(loss)?));
        }
    }
    scope.save(&vs, path)?;
    let result = result(&vs, figures);
    scope.finish()?;
    Ok(result)
}

fn same_numbers(folder: &str) -> Result<()> {
    let (xs, ys) = data();
    let path = |name: &str| format!("{folder}/{name}-{}.safetensors", ddp_runtime::world_size());
    let (found, expected) =
        (by_hand(&xs, &ys, &path("hand"))?, by_attribute(&xs, &ys, &path("attribute"))?);
    ensure!(found.1 == expected.1 && !found.1.is_empty(), "{:?} and {:?}", found.1, expected.1);
    ensure!(found.0 == expected.0, "the weights differ");
    let files = (std::fs::read(path("hand"))?, std::fs::read(path("attribute"))?);
    ensure!(files.0 == files.1 && !files.0.is_empty(), "the files differ");
    Ok(())
}

/// How far this rank's gradients are from the mean of all ranks', at most.
fn spread(vs: &nn::VarStore) -> f64 {
    let distances = vs.trainable_variables().into_iter().map(|variable| {
        let gradient = variable.grad();
        (mean(&gradient) - gradient).abs().max().double_value(&[])
    });
    distances.fold(0.0, f64::max)
}

/// PyTorch's tutorial, line by line: a sampler, accumulation under `no_sync`, the module taken out of its handle.
fn tutorial() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let (xs, ys) = data();
    ddp_runtime::manual_seed(3);
    let vs = nn::VarStore::new(scope.device());
    let model = DistributedDataParallel::new(&scope, &vs, net(&vs.root()))?;
    let xs = xs.to_kind(Kind::Float);
    let mut sampler = DistributedSampler::new(22, scope.share()).seed(1);
    sampler.set_epoch(2);
    let indices = sampler.indices()?;
    let loss = |rows: &[i64]| {
        let rows = Tensor::from_slice(rows);
        let out = model.forward_t(&xs.index_select(0, &rows), true);
        out.cross_entropy_for_logits(&ys.index_select(0, &rows))
    };
    let (first, rest) = indices.split_at(indices.len() / 2);
    model.no_sync(|| loss(first).backward());
    ensure!(scope.world_size() == 1 || spread(&vs) > 1e-6, "no_sync has averaged");
    loss(rest).backward();
    ensure!(spread(&vs) < 1e-6, "the ranks' gradients differ");
    let module = model.into_module();
    module.forward_t(&xs, true).sum(Kind::Float).backward();
    Ok(scope.finish()?)
}

pub(super) fn run(args: &[String]) -> Result<()> {
    match args {
        [case, folder] if case == "same-numbers" => same_numbers(folder),
        [case] if case == "tutorial" => tutorial(),
        _ => bail!("no case {args:?}"),
    }
}
