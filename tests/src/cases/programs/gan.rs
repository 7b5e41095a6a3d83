//! `gan/main.rs`: two stores frozen in turn, transposed convolutions, batch normalisation, random batches in each step. Alone, as
//! the original: every rank draws its own batches and noise, from a stream that it seeds with its rank. To follow, rounds are
//! drawn for all ranks and shared with one mark, statistics are those of all ranks, and the relativistic loss compares pair by
//! pair: the original compares with the mean of the rank's batch, which is no mean over samples.
use ddp_runtime::SplitBatch;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tch::nn::{self, ModuleT, OptimizerConfig};

use super::*;

const LATENT_DIM: i64 = 6;
const BATCH_SIZE: i64 = 8;

fn tr2d(p: nn::Path, c_in: i64, c_out: i64, padding: i64, stride: i64) -> nn::ConvTranspose2D {
    let cfg = nn::ConvTransposeConfig { stride, padding, bias: false, ..Default::default() };
    nn::conv_transpose2d(p, c_in, c_out, 4, cfg)
}

fn conv2d(p: nn::Path, c_in: i64, c_out: i64, padding: i64, stride: i64) -> nn::Conv2D {
    let cfg = nn::ConvConfig { stride, padding, bias: false, ..Default::default() };
    nn::conv2d(p, c_in, c_out, 4, cfg)
}

fn generator(p: nn::Path) -> impl ModuleT + use<> {
    nn::seq_t()
        .add(tr2d(&p / "tr1", LATENT_DIM, 8, 0, 1))
        .add(nn::batch_norm2d(&p / "bn1", 8, Default::default()))
        .add_fn(|xs| xs.relu())
        .add(tr2d(&p / "tr2", 8, 1, 1, 2))
        .add_fn(|xs| xs.tanh())
}

fn leaky_relu(xs: &Tensor) -> Tensor {
    xs.maximum(&(xs * 0.2))
}

fn discriminator(p: nn::Path) -> impl ModuleT + use<> {
    nn::seq_t()
        .add(conv2d(&p / "conv1", 1, 6, 1, 2))
        .add(nn::batch_norm2d(&p / "bn1", 6, Default::default()))
        .add_fn(leaky_relu)
        .add(conv2d(&p / "conv2", 6, 1, 0, 1))
}

fn mse_loss(x: &Tensor, y: &Tensor) -> Tensor {
    let diff = x - y;
    (&diff * &diff).mean(Kind::Double)
}

/// How much more real the first are than the second, against `by`.
fn relativistic(task: &Task, real: &Tensor, fake: &Tensor, by: f64) -> Tensor {
    if task.follow {
        return mse_loss(&(real - fake), &(fake.zeros_like() + by));
    }
    mse_loss(real, &(fake.mean(Kind::Double) + by))
        + mse_loss(fake, &(real.mean(Kind::Double) - by))
}

/// What both steps of a round are taken on.
#[derive(SplitBatch)]
struct Round {
    images: [Tensor; 2],
    latent: [Tensor; 2],
}

/// Rounds of images and noise, without end.
fn rounds(task: &Task, seed: u64) -> impl Iterator<Item = Round> + use<> {
    let images = task.digits.train_images.view([-1, 1, 8, 8]) * 2.0 - 1.0;
    let mut stream = StdRng::seed_from_u64(seed);
    std::iter::from_fn(move || {
        let mut random_batch_images = || {
            let index: Vec<i64> =
                (0..BATCH_SIZE).map(|_| stream.random_range(0..TRAINING)).collect();
            images.index_select(0, &Tensor::from_slice(&index))
        };
        let images = [random_batch_images(), random_batch_images()];
        let mut rand_latent = || {
            let numbers: Vec<f64> =
                (0..BATCH_SIZE * LATENT_DIM).map(|_| stream.random_range(-1.0..1.0)).collect();
            Tensor::from_slice(&numbers).view([BATCH_SIZE, LATENT_DIM, 1, 1])
        };
        Some(Round { images, latent: [rand_latent(), rand_latent()] })
    })
}

/// To follow, one stream for all ranks; otherwise each has its own.
fn seed(task: &Task) -> u64 {
    if task.follow { 9 } else { 9 + ddp_runtime::rank() as u64 }
}

program! {
    [batch = "global", sync_batch_norm]
    pub(in super::super) fn train(task: &Task) -> Result<Vec<Tensor>> {
        let device = Device::cuda_if_available();
        let mut generator_vs = nn::VarStore::new(device);
        let generator = generator(generator_vs.root());
        generator_vs.double();
        let mut opt_g = nn::adam(0.5, 0.999, 0.).build(&generator_vs, 1e-3)?;

        let mut discriminator_vs = nn::VarStore::new(device);
        let discriminator = discriminator(discriminator_vs.root());
        discriminator_vs.double();
        let mut opt_d = nn::adam(0.5, 0.999, 0.).build(&discriminator_vs, 1e-3)?;

        let rounds = rounds(task, seed(task)).take(6 * task.epochs as usize);
        #[cfg_attr(any(), ddp(shard))]
        for (index, Round { images, latent }) in rounds.enumerate() {
            discriminator_vs.unfreeze();
            generator_vs.freeze();
            let discriminator_loss = {
                let y_pred = images[0].apply_t(&discriminator, true);
                let y_pred_fake = latent[0]
                    .apply_t(&generator, true)
                    .copy()
                    .detach()
                    .apply_t(&discriminator, true);
                relativistic(task, &y_pred, &y_pred_fake, 1.)
            };
            opt_d.backward_step(&discriminator_loss);

            discriminator_vs.freeze();
            generator_vs.unfreeze();
            let generator_loss = {
                let y_pred = images[1].apply_t(&discriminator, true);
                let y_pred_fake = latent[1].apply_t(&generator, true).apply_t(&discriminator, true);
                relativistic(task, &y_pred, &y_pred_fake, -1.)
            };
            opt_g.backward_step(&generator_loss);
            if index % 4 == 0 {
                println!("{index}")
            };
        }
        discriminator_vs.unfreeze();
        let mut trained = generator_vs.trainable_variables();
        trained.extend(discriminator_vs.trainable_variables());
        Ok(trained)
    }
}
