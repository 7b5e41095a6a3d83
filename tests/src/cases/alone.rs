//! One process without a launcher: the annotated program does what the plain one does, and nothing else.
use anyhow::{Result, bail, ensure};
use tch::nn::{self, Module, OptimizerConfig};
use tch::vision::dataset::Dataset;
use tch::{Device, Kind, Tensor};

fn data() -> Dataset {
    tch::manual_seed(5);
    let images = |n| Tensor::randn([n, 12], (Kind::Float, Device::Cpu));
    let labels = |images: &Tensor| images.argmax(1, false).remainder(4);
    let (train, test) = (images(90), images(30));
    Dataset {
        train_labels: labels(&train),
        test_labels: labels(&test),
        train_images: train,
        test_images: test,
        labels: 4,
    }
}

/// The same tokens, plain and annotated.
macro_rules! program {
    ($($attribute:meta)?) => {
        $(#[$attribute])?
        pub(super) fn train(data: &Dataset, path: &std::path::Path) -> Result<f64> {
            tch::manual_seed(9);
            let device = Device::cuda_if_available();
            let vs = nn::VarStore::new(device);
            let net = nn::seq()
                .add(nn::linear(&vs.root() / "a", 12, 16, Default::default()))
                .add_fn(|x| x.relu())
                .add(nn::linear(&vs.root() / "b", 16, 4, Default::default()));
            let mut opt = nn::Adam::default().build(&vs, 1e-2)?;
            for epoch in 1..=4 {
                let mut sum = 0.0;
                for (x, y) in data.train_iter(16).shuffle().return_smaller_last_batch().to_device(device) {
                    let loss = net.forward(&x.dropout(0.1, true)).cross_entropy_for_logits(&y);
                    opt.backward_step(&loss);
                    sum += f64::try_from(&loss)?;
                }
                print!("epoch {epoch}: ");
                println!("{sum:.9} {}", Tensor::rand([1], (Kind::Double, device)).double_value(&[0]));
                eprintln!("to the error stream");
            }
            vs.save(path)?;
            let accuracy = net.forward(&data.test_images).accuracy_for_logits(&data.test_labels);
            println!();
            Ok(f64::try_from(accuracy)?)
        }
    };
}

mod plain {
    use super::*;
    program!();
}
mod annotated {
    use super::*;
    program!(ddp_runtime::distributed);
}

/// Descriptors of this process that are sockets.
fn sockets() -> Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        // The listing's own descriptor is gone by now.
        if let Ok(target) = std::fs::read_link(entry?.path()) {
            count += usize::from(target.to_string_lossy().starts_with("socket:"));
        }
    }
    Ok(count)
}

fn threads() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}

pub(super) fn run(args: &[String]) -> Result<()> {
    let [which, path] = args else { bail!("expected a program and a path, got {args:?}") };
    let data = data();
    // libtorch's own pools are there after a first backward.
    Tensor::ones([4], (Kind::Float, Device::Cpu))
        .set_requires_grad(true)
        .sum(Kind::Float)
        .backward();
    let before = threads()?;
    let accuracy = match which.as_str() {
        "plain" => plain::train(&data, path.as_ref())?,
        "annotated" => annotated::train(&data, path.as_ref())?,
        _ => bail!("no program is called {which}"),
    };
    println!("{accuracy:.9}");
    ensure!(sockets()? == 0, "a socket is open");
    ensure!(threads()? <= before, "a thread was started");
    Ok(())
}
