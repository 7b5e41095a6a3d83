//! Evaluation beside training: every rank sees the whole set, and a pass that only validates takes no step.
use anyhow::{Result, ensure};
use ddp_runtime::{distributed, mean};
use tch::data::Iter2;
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::vision::dataset::Dataset;
use tch::{Device, Kind, Tensor};

use super::one_process::{Batch, Model, Net, alike, data, follows, items};

const BATCH: i64 = 4;
const TEST_ROWS: i64 = 48;

fn dataset() -> Dataset {
    let images = |rows| data(rows).0.to_kind(Kind::Float);
    let labels = |images: &Tensor| images.narrow(1, 0, 3).argmax(1, false);
    let (train, test) = (images(60), images(TEST_ROWS) * 0.9);
    Dataset {
        train_labels: labels(&train),
        test_labels: labels(&test),
        train_images: train,
        test_images: test,
        labels: 3,
    }
}

fn count_right(net: &nn::SequentialT, x: &Tensor, y: &Tensor) -> i64 {
    net.forward_t(x, false).argmax(1, false).eq_tensor(y).sum(Kind::Int64).int64_value(&[])
}

/// Of each epoch: accuracy by the library, loss without and with a graph, rows seen and right by hand.
#[distributed]
fn with_evaluation(data: &Dataset) -> Result<Vec<[f64; 5]>> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::seq_t()
        .add(nn::linear(vs.root() / "hidden", super::one_process::FEATURES, 8, Default::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(vs.root() / "out", 8, 3, Default::default()));
    let mut opt = nn::Adam::default().build(&vs, 1e-2)?;
    let mut figures = Vec::new();
    for _epoch in 0..3 {
        for (x, y) in data.train_iter(BATCH).shuffle() {
            opt.backward_step(&net.forward_t(&x, true).cross_entropy_for_logits(&y));
        }
        let (images, labels) = (&data.test_images, &data.test_labels);
        let accuracy = net.batch_accuracy_for_logits(images, labels, Device::Cpu, 16);
        let loss = tch::no_grad(|| net.forward_t(images, false).cross_entropy_for_logits(labels));
        let graph = net.forward_t(images, false).cross_entropy_for_logits(labels);
        ensure!(graph.requires_grad(), "this loss has its graph");
        let (mut right, mut seen) = (0, 0);
        for (x, y) in data.test_iter(16) {
            right += count_right(&net, &x, &y);
            seen += x.size()[0];
        }
        let losses = [f64::try_from(loss)?, f64::try_from(graph)?];
        figures.push([accuracy, losses[0], losses[1], seen as f64, right as f64]);
    }
    Ok(figures)
}

/// Trains with an optimizer, validates without one; the mean loss over all ranks.
#[distributed]
fn pass(
    vs: &nn::VarStore,
    net: &Net,
    (xs, ys): &Batch,
    mut opt: Option<&mut nn::Optimizer>,
) -> Result<f64> {
    let (mut sum, mut batches) = (0.0, 0);
    for (x, y) in Iter2::new(xs, ys, BATCH) {
        let loss = net.loss(&x, &y);
        if let Some(opt) = opt.as_mut() {
            opt.backward_step(&loss);
        }
        sum += f64::try_from(&loss)?;
        batches += 1;
    }
    ensure!(!vs.is_empty(), "a store without variables");
    Ok(mean(sum / f64::from(batches)))
}

pub(super) fn s39_evaluation(_: &[&str]) -> Result<()> {
    let figures = with_evaluation(&dataset())?;
    for [accuracy, loss, with_graph, seen, right] in &figures {
        ensure!(*seen == TEST_ROWS as f64, "this rank saw {seen} rows");
        ensure!((accuracy - right / seen).abs() < 1e-6, "{accuracy} is not {right} of {seen}");
        ensure!(loss == with_graph, "a graph changes {loss} to {with_graph}");
    }
    ensure!(figures[0][1] != figures[2][1], "nothing was learnt");
    alike("figures", &figures.concat())?;

    let (model, data) = (Model::seeded(), data(24));
    let mut opt = Model::adam(&model.vs)?;
    pass(&model.vs, &model.net, &data, Some(&mut opt))?;
    let joined = items(&data, BATCH * ddp_runtime::world_size() as i64);
    let rounds: Vec<Vec<Batch>> = joined.into_iter().map(|item| vec![item]).collect();
    follows("the pass that trains", &model.vs, &rounds)?;
    let loss = pass(&model.vs, &model.net, &data, None)?;
    follows("the pass that validates", &model.vs, &rounds)?;
    let whole = f64::try_from(model.net.loss(&data.0, &data.1))?;
    ensure!((loss - whole).abs() < 1e-12, "the mean of the shares is {loss}, the loss {whole}");
    alike("mean loss", &[loss])
}
