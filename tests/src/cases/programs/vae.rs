//! `vae/main.rs`: a loss that is a sum over the batch (`loss = "sum"`), and noise for each sample. The original draws its noise
//! inside the model, a number for each sample that the rank happens to have. To follow, the noise belongs to the batch: it is
//! drawn for all of it, from a stream that is seeded alike everywhere, and a batch type of its own is shared with one mark.
use ddp_runtime::SplitBatch;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tch::Reduction;
use tch::nn::{self, Module, OptimizerConfig};

use super::*;

const LATENT: i64 = 4;

struct Vae {
    fc1: nn::Linear,
    fc21: nn::Linear,
    fc22: nn::Linear,
    fc3: nn::Linear,
    fc4: nn::Linear,
}

impl Vae {
    fn new(vs: &nn::Path) -> Self {
        Vae {
            fc1: nn::linear(vs / "fc1", 64, 24, Default::default()),
            fc21: nn::linear(vs / "fc21", 24, LATENT, Default::default()),
            fc22: nn::linear(vs / "fc22", 24, LATENT, Default::default()),
            fc3: nn::linear(vs / "fc3", LATENT, 24, Default::default()),
            fc4: nn::linear(vs / "fc4", 24, 64, Default::default()),
        }
    }

    fn encode(&self, xs: &Tensor) -> (Tensor, Tensor) {
        let h1 = xs.apply(&self.fc1).relu();
        (self.fc21.forward(&h1), self.fc22.forward(&h1))
    }

    fn decode(&self, zs: &Tensor) -> Tensor {
        zs.apply(&self.fc3).relu().apply(&self.fc4).sigmoid()
    }

    fn forward(&self, xs: &Tensor, eps: &Tensor) -> (Tensor, Tensor, Tensor) {
        let (mu, logvar) = self.encode(&xs.view([-1, 64]));
        let std = (&logvar * 0.5).exp();
        (self.decode(&(&mu + eps * std)), mu, logvar)
    }
}

// Reconstruction + KL divergence losses summed over all elements and batch dimension.
fn loss(recon_x: &Tensor, x: &Tensor, mu: &Tensor, logvar: &Tensor) -> Tensor {
    let bce = recon_x.binary_cross_entropy::<Tensor>(&x.view([-1, 64]), None, Reduction::Sum);
    let kld = -0.5 * (1i64 + logvar - mu.pow_tensor_scalar(2) - logvar.exp()).sum(Kind::Double);
    bce + kld
}

/// A batch, and the noise of each of its samples.
#[derive(SplitBatch)]
struct Noisy {
    images: Tensor,
    eps: Tensor,
}

fn noisy(images: Tensor, stream: &mut StdRng) -> Noisy {
    let samples = images.size()[0];
    // Box and Muller's way to normal numbers.
    let mut uniform = || -> Vec<f64> {
        (0..samples * LATENT).map(|_| stream.random_range(f64::EPSILON..1.0)).collect()
    };
    let (radius, angle) = (Tensor::from_slice(&uniform()), Tensor::from_slice(&uniform()));
    let eps = (radius.log() * -2.0).sqrt() * (angle * std::f64::consts::TAU).cos();
    Noisy { images, eps: eps.view([samples, LATENT]) }
}

program! {
    [batch = "global", loss = "sum"]
    pub(in super::super) fn train(task: &Task) -> Result<Vec<Tensor>> {
        let m = &task.digits;
        let mut vs = nn::VarStore::new(Device::cuda_if_available());
        let vae = Vae::new(&vs.root());
        vs.double();
        let mut opt = nn::Sgd { momentum: 0.5, ..Default::default() }.build(&vs, 1e-4)?;
        let mut stream = StdRng::seed_from_u64(5);
        for epoch in 1..1 + task.epochs {
            let mut train_loss = 0f64;
            let mut samples = 0f64;
            #[cfg_attr(any(), ddp(shard))]
            for Noisy { images: bimages, eps } in m
                .train_iter(16)
                .shuffle()
                .return_smaller_last_batch()
                .to_device(vs.device())
                .map(|(images, _)| noisy(images, &mut stream))
            {
                let (recon_batch, mu, logvar) = vae.forward(&bimages, &eps);
                let loss = loss(&recon_batch, &bimages, &mu, &logvar);
                opt.backward_step(&loss);
                train_loss += f64::try_from(&loss)?;
                samples += bimages.size()[0] as f64;
            }
            println!("Epoch: {}, loss: {}", epoch, train_loss / samples);
        }
        Ok(vs.trainable_variables())
    }
}
