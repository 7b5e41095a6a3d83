//! `mnist/mnist_conv.rs`: a convolutional net and `train_iter`. Unchanged; to follow, without its dropout, which draws for each
//! sample.
use tch::nn::{self, ModuleT, OptimizerConfig};

use super::*;

#[derive(Debug)]
struct Net {
    conv1: nn::Conv2D,
    conv2: nn::Conv2D,
    fc1: nn::Linear,
    fc2: nn::Linear,
    dropout: f64,
}

impl Net {
    fn new(vs: &nn::Path, dropout: f64) -> Net {
        let same = nn::ConvConfig { padding: 1, ..Default::default() };
        let conv1 = nn::conv2d(vs, 1, 6, 3, same);
        let conv2 = nn::conv2d(vs, 6, 12, 3, same);
        let fc1 = nn::linear(vs, 48, 32, Default::default());
        let fc2 = nn::linear(vs, 32, 10, Default::default());
        Net { conv1, conv2, fc1, fc2, dropout }
    }
}

impl ModuleT for Net {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        xs.view([-1, 1, 8, 8])
            .apply(&self.conv1)
            .max_pool2d_default(2)
            .apply(&self.conv2)
            .max_pool2d_default(2)
            .view([-1, 48])
            .apply(&self.fc1)
            .relu()
            .dropout(self.dropout, train)
            .apply(&self.fc2)
    }
}

program! {
    [batch = "global"]
    pub(in super::super) fn train(task: &Task) -> Result<Vec<Tensor>> {
        let m = &task.digits;
        let mut vs = nn::VarStore::new(Device::cuda_if_available());
        let net = Net::new(&vs.root(), task.dropout(0.5));
        vs.double();
        let mut opt = nn::Adam::default().build(&vs, 1e-3)?;
        for epoch in 1..1 + task.epochs {
            for (bimages, blabels) in m.train_iter(16).shuffle().to_device(vs.device()) {
                let loss = cross_entropy(&net.forward_t(&bimages, true), &blabels);
                opt.backward_step(&loss);
            }
            let test_accuracy =
                net.batch_accuracy_for_logits(&m.test_images, &m.test_labels, vs.device(), 16);
            println!("epoch: {:4} test acc: {:5.2}%", epoch, 100. * test_accuracy,);
        }
        Ok(vs.trainable_variables())
    }
}
