//! `transfer-learning/main.rs`: a store that is loaded and only evaluated, and a second one, trained on all features in each step.
//! Unchanged: every rank takes the steps of one process.
use tch::nn::{self, OptimizerConfig};

use super::*;

fn backbone(vs: &nn::Path) -> nn::SequentialT {
    let same = nn::ConvConfig { padding: 1, ..Default::default() };
    nn::seq_t()
        .add(nn::conv2d(vs / "conv1", 1, 6, 3, same))
        .add(nn::batch_norm2d(vs / "bn1", 6, Default::default()))
        .add_fn(|xs| xs.relu().max_pool2d_default(2).flat_view())
}

/// What somebody has trained before.
fn weights() -> Result<PathBuf> {
    let path = temporary("backbone.ot");
    let vs = nn::VarStore::new(Device::Cpu);
    let _net = backbone(&vs.root());
    vs.save(&path)?;
    Ok(path)
}

program! {
    [batch = "global"]
    pub(in super::super) fn train(task: &Task) -> Result<Vec<Tensor>> {
        let m = &task.digits;
        let weights = weights()?;
        // Create the model and load the weights from the file.
        let mut vs = nn::VarStore::new(Device::Cpu);
        let net = backbone(&vs.root());
        vs.load(&weights)?;
        std::fs::remove_file(&weights)?;

        // Pre-compute the final activations.
        let features = |images: &Tensor| {
            tch::no_grad(|| images.view([-1, 1, 8, 8]).to_kind(Kind::Float).apply_t(&net, false))
                .to_kind(Kind::Double)
        };
        let train_images = features(&m.train_images);
        let test_images = features(&m.test_images);

        let mut vs = nn::VarStore::new(Device::Cpu);
        let linear = nn::linear(vs.root(), 96, m.labels, Default::default());
        vs.double();
        let mut sgd = nn::Sgd::default().build(&vs, 0.1)?;
        for epoch_idx in 1..1 + 5 * task.epochs {
            let predicted = train_images.apply(&linear);
            let loss = cross_entropy(&predicted, &m.train_labels);
            sgd.backward_step(&loss);

            let test_accuracy = test_images.apply(&linear).accuracy_for_logits(&m.test_labels);
            println!("{} {:.2}%", epoch_idx, 100. * f64::try_from(test_accuracy)?);
        }
        Ok(vs.trainable_variables())
    }
}
