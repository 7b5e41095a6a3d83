//! `mnist/mnist_nn.rs`: all rows in each step. One change, for the ranks to share the work: the loop runs over the batch of each
//! epoch, under a mark. Unchanged, every rank would take the steps of one process, as in `mnist_linear`.
use tch::nn::{self, Module, OptimizerConfig};

use super::*;

fn net(vs: &nn::Path) -> impl Module + use<> {
    nn::seq()
        .add(nn::linear(vs / "layer1", 64, 24, Default::default()))
        .add_fn(|xs| xs.relu())
        .add(nn::linear(vs, 24, 10, Default::default()))
}

program! {
    [batch = "global"]
    pub(in super::super) fn train(task: &Task) -> Result<Vec<Tensor>> {
        let m = &task.digits;
        let mut vs = nn::VarStore::new(Device::Cpu);
        let net = net(&vs.root());
        vs.double();
        let mut opt = nn::Adam::default().build(&vs, 1e-3)?;
        #[cfg_attr(any(), ddp(shard))]
        for (epoch, images, labels) in epochs(m, 6 * task.epochs) {
            let loss = cross_entropy(&net.forward(&images), &labels);
            opt.backward_step(&loss);
            let test_accuracy = net.forward(&m.test_images).accuracy_for_logits(&m.test_labels);
            println!(
                "epoch: {:4} train loss: {:8.5} test acc: {:5.2}%",
                epoch,
                f64::try_from(&loss)?,
                100. * f64::try_from(&test_accuracy)?,
            );
        }
        Ok(vs.trainable_variables())
    }
}

/// All rows, once an epoch.
fn epochs(m: &Dataset, epochs: i64) -> impl Iterator<Item = (i64, Tensor, Tensor)> + use<> {
    let (images, labels) = (m.train_images.shallow_clone(), m.train_labels.shallow_clone());
    (1..1 + epochs).map(move |epoch| (epoch, images.shallow_clone(), labels.shallow_clone()))
}
