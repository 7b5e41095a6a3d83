//! `cifar/main.rs`: a residual net with batch normalisation and a schedule. Unchanged; to follow, the statistics of a batch are
//! those of all ranks (`sync_batch_norm`), and the augmentation is off, which draws for each sample from a generator that is not seeded.
use tch::nn::{self, FuncT, ModuleT, OptimizerConfig, SequentialT};

use super::*;

fn conv_bn(vs: &nn::Path, c_in: i64, c_out: i64) -> SequentialT {
    let conv2d_cfg = nn::ConvConfig { padding: 1, bias: false, ..Default::default() };
    nn::seq_t()
        .add(nn::conv2d(vs, c_in, c_out, 3, conv2d_cfg))
        .add(nn::batch_norm2d(vs, c_out, Default::default()))
        .add_fn(|x| x.relu())
}

fn layer<'a>(vs: &nn::Path, c_in: i64, c_out: i64) -> FuncT<'a> {
    let pre = conv_bn(&vs.sub("pre"), c_in, c_out);
    let block1 = conv_bn(&vs.sub("b1"), c_out, c_out);
    let block2 = conv_bn(&vs.sub("b2"), c_out, c_out);
    nn::func_t(move |xs, train| {
        let pre = xs.apply_t(&pre, train).max_pool2d_default(2);
        let ys = pre.apply_t(&block1, train).apply_t(&block2, train);
        pre + ys
    })
}

fn fast_resnet(vs: &nn::Path) -> SequentialT {
    nn::seq_t()
        .add(conv_bn(&vs.sub("pre"), 1, 4))
        .add(layer(&vs.sub("layer1"), 4, 8))
        .add(conv_bn(&vs.sub("inter"), 8, 8))
        .add_fn(|x| x.max_pool2d_default(2).flat_view())
        .add(nn::linear(vs.sub("linear"), 32, 10, Default::default()))
        .add_fn(|x| x * 0.125)
}

fn learning_rate(epoch: i64) -> f64 {
    if epoch < 2 { 0.1 } else { 0.01 }
}

program! {
    [batch = "global", sync_batch_norm]
    pub(in super::super) fn train(task: &Task) -> Result<Vec<Tensor>> {
        let m = pictures(&task.digits);
        let mut vs = nn::VarStore::new(Device::cuda_if_available());
        let net = fast_resnet(&vs.root());
        vs.double();
        let mut opt =
            nn::Sgd { momentum: 0.9, dampening: 0., wd: 5e-4, nesterov: true }.build(&vs, 0.)?;
        for epoch in 1..1 + task.epochs {
            opt.set_lr(learning_rate(epoch));
            for (bimages, blabels) in m.train_iter(16).shuffle().to_device(vs.device()) {
                let bimages = if task.augment { augmented(&bimages) } else { bimages };
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

fn augmented(images: &Tensor) -> Tensor {
    tch::vision::dataset::augmentation(images, true, 1, 2)
}

fn pictures(digits: &Dataset) -> Dataset {
    Dataset {
        train_images: digits.train_images.view([-1, 1, 8, 8]),
        train_labels: digits.train_labels.shallow_clone(),
        test_images: digits.test_images.view([-1, 1, 8, 8]),
        test_labels: digits.test_labels.shallow_clone(),
        labels: digits.labels,
    }
}
