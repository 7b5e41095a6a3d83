//! Fifty steps of an optimizer, compared with what PyTorch's DistributedDataParallel wrote (`truth/optim.py`).
use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Tensor};

use super::compare::close;

type Arrays = BTreeMap<String, Tensor>;

fn read(path: &str) -> Result<Arrays> {
    Ok(Tensor::read_npz(path).with_context(|| format!("reading {path}"))?.into_iter().collect())
}

/// Linear layers with tanh between, as the script's.
struct Net {
    layers: Vec<(Tensor, Tensor)>,
}

impl Net {
    fn new(store: &nn::VarStore, arrays: &Arrays) -> Self {
        let root = store.root();
        let mut layers = Vec::new();
        while let (Some(weight), Some(bias)) = (
            arrays.get(&format!("layer{}.weight", layers.len())),
            arrays.get(&format!("layer{}.bias", layers.len())),
        ) {
            let layer = root.sub(format!("layer{}", layers.len()));
            layers.push((layer.var_copy("weight", weight), layer.var_copy("bias", bias)));
        }
        Self { layers }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let mut x = x.shallow_clone();
        for (index, (weight, bias)) in self.layers.iter().enumerate() {
            x = x.linear(weight, Some(bias));
            if index + 1 < self.layers.len() {
                x = x.tanh();
            }
        }
        x
    }
}

fn optimizer(name: &str, store: &nn::VarStore) -> Result<nn::Optimizer> {
    Ok(match name {
        "sgd" => nn::Sgd { momentum: 0.9, wd: 1e-4, ..Default::default() }.build(store, 0.05)?,
        "adam" => nn::Adam { wd: 0.0, ..Default::default() }.build(store, 1e-3)?,
        "adamw" => nn::AdamW { wd: 1e-2, ..Default::default() }.build(store, 1e-3)?,
        _ => bail!("no optimizer is called {name}"),
    })
}

/// The annotated training function: the helper around it knows nothing of ranks.
#[ddp_runtime::distributed]
fn train(
    store: &nn::VarStore,
    net: &Net,
    opt: &mut nn::Optimizer,
    x: &Tensor,
    y: &Tensor,
) -> Vec<f64> {
    let mut losses = Vec::new();
    #[ddp(each)]
    for step in 0..x.size()[0] {
        let loss = net.forward(&x.get(step)).mse_loss(&y.get(step), tch::Reduction::Mean);
        opt.backward_step(&loss);
        losses.push(loss.double_value(&[]));
    }
    losses
}

pub(super) fn run(args: &[String]) -> Result<()> {
    let [input, truth] = args else { bail!("expected input and truth, got {args:?}") };
    let (input, truth) = (read(input)?, read(truth)?);
    let (x, y) = (input.get("x").context("no x")?, input.get("y").context("no y")?);
    let (rank, world_size) = (ddp_runtime::rank() as i64, ddp_runtime::world_size() as i64);
    let share = x.size()[1] / world_size;
    let part = |t: &Tensor| t.narrow(1, rank * share, share);
    for name in ["sgd", "adam", "adamw"] {
        let mut store = nn::VarStore::new(Device::Cpu);
        let kind = x.kind();
        store.set_kind(kind);
        let net = Net::new(&store, &input);
        let mut opt = optimizer(name, &store)?;
        let losses = train(&store, &net, &mut opt, &part(x), &part(y));
        let expected = truth.get(&format!("{name}.loss")).context("no losses")?;
        let expected = expected.select(1, rank);
        close(&format!("{name} losses"), &[Tensor::from_slice(&losses)], &[expected], 1e-4)?;
        let mut weights = (Vec::new(), Vec::new());
        for (variable, tensor) in store.variables() {
            let expected = truth.get(&format!("{name}.{variable}"));
            weights.0.push(tensor);
            weights
                .1
                .push(expected.with_context(|| format!("no {name}.{variable}"))?.shallow_clone());
        }
        ensure!(!weights.0.is_empty(), "no weights to compare");
        close(&format!("{name} weights"), &weights.0, &weights.1, 1e-4)?;
    }
    Ok(())
}
