//! The models that both sides of the benchmark build alike, each with its batch.

use clap::ValueEnum;
use tch::nn::{self, Module};
use tch::{Device, Kind, Tensor};

/// What is trained.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Model {
    /// 26.8 million parameters in 8 linear layers, batch 64
    Mlp,
    /// Two convolutions and two linear layers on 28x28 images, batch 256
    Conv,
    /// 200 linear layers of 64x64, batch 32
    Layers,
    /// 4 transformer blocks of width 256, 8 sequences of 64 tokens
    Transformer,
    /// An embedding of 200,000 x 64, averaged over 16 tokens, batch 256
    Embedding,
}

/// A net with a batch of its inputs and classes.
pub(crate) struct Subject {
    pub(crate) net: Box<dyn Module>,
    pub(crate) xs: Tensor,
    pub(crate) ys: Tensor,
}

const FLOATS: (Kind, Device) = (Kind::Float, Device::Cpu);
const WHOLE: (Kind, Device) = (Kind::Int64, Device::Cpu);

impl Model {
    /// Builds the model and draws its batch.
    pub(crate) fn build(self, vs: nn::Path) -> Subject {
        let rows = |batch, features| Tensor::randn([batch, features], FLOATS);
        let tokens = |high, shape: [i64; 2]| Tensor::randint(high, shape, WHOLE);
        let (net, xs, classes): (Box<dyn Module>, _, _) = match self {
            Self::Mlp => {
                let sizes = [784, 2048, 2048, 2048, 2048, 2048, 2048, 2048, 10];
                (Box::new(chain(vs, &sizes, Tensor::relu)), rows(64, 784), 10)
            }
            Self::Conv => (Box::new(conv(vs)), rows(256, 784), 10),
            Self::Layers => (Box::new(chain(vs, &[64; 201], Tensor::tanh)), rows(32, 64), 64),
            Self::Transformer => {
                (Box::new(transformer(&vs)), tokens(VOCABULARY, [8, LENGTH]), VOCABULARY)
            }
            Self::Embedding => (Box::new(bag(&vs)), tokens(200_000, [256, 16]), 10),
        };
        let count = match self {
            Self::Transformer => 8 * LENGTH,
            _ => xs.size()[0],
        };
        Subject { net, xs, ys: Tensor::randint(classes, [count], WHOLE) }
    }
}

/// Linear layers with an activation between.
fn chain(vs: nn::Path, sizes: &[i64], activation: fn(&Tensor) -> Tensor) -> nn::Sequential {
    let mut net = nn::seq();
    for (k, pair) in sizes.windows(2).enumerate() {
        if k > 0 {
            net = net.add_fn(activation);
        }
        net = net.add(nn::linear(&vs / k, pair[0], pair[1], Default::default()));
    }
    net
}

/// Two 5x5 convolutions with pooling, two linear layers.
fn conv(vs: nn::Path) -> nn::Sequential {
    nn::seq()
        .add_fn(|xs| xs.view([-1, 1, 28, 28]))
        .add(nn::conv2d(&vs / "conv1", 1, 32, 5, Default::default()))
        .add_fn(|xs| xs.max_pool2d_default(2))
        .add(nn::conv2d(&vs / "conv2", 32, 64, 5, Default::default()))
        .add_fn(|xs| xs.max_pool2d_default(2).view([-1, 1024]))
        .add(nn::linear(&vs / "fc1", 1024, 1024, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(&vs / "fc2", 1024, 10, Default::default()))
}

const VOCABULARY: i64 = 4096;
const LENGTH: i64 = 64;
const WIDTH: i64 = 256;
const HEADS: i64 = 4;

/// Tokens and places embedded, blocks, a norm and a linear layer to the vocabulary.
fn transformer(vs: &nn::Path) -> nn::Sequential {
    let tokens = nn::embedding(vs / "tokens", VOCABULARY, WIDTH, Default::default());
    let places = nn::embedding(vs / "places", LENGTH, WIDTH, Default::default());
    let mut net = nn::seq().add_fn(move |xs| {
        tokens.forward(xs) + places.forward(&Tensor::arange(LENGTH, (Kind::Int64, xs.device())))
    });
    for k in 0..4 {
        net = net.add(block(&(vs / "blocks" / k)));
    }
    net.add(nn::layer_norm(vs / "norm", vec![WIDTH], Default::default()))
        .add(nn::linear(vs / "head", WIDTH, VOCABULARY, Default::default()))
        .add_fn(|xs| xs.view([-1, VOCABULARY]))
}

/// Attention and a perceptron, each behind a norm and beside a residual.
fn block(vs: &nn::Path) -> nn::Func<'static> {
    let norm = |name: &str| nn::layer_norm(vs / name, vec![WIDTH], Default::default());
    let linear = |name: &str, from, to| nn::linear(vs / name, from, to, Default::default());
    let (norm1, norm2) = (norm("norm1"), norm("norm2"));
    let (qkv, out) = (linear("qkv", WIDTH, 3 * WIDTH), linear("out", WIDTH, WIDTH));
    let (up, down) = (linear("up", WIDTH, 4 * WIDTH), linear("down", 4 * WIDTH, WIDTH));
    nn::func(move |xs| {
        let heads = qkv
            .forward(&norm1.forward(xs))
            .view([-1, LENGTH, 3, HEADS, WIDTH / HEADS])
            .permute([2, 0, 3, 1, 4])
            .unbind(0);
        let attended = Tensor::scaled_dot_product_attention::<Tensor>(
            &heads[0], &heads[1], &heads[2], None, 0.0, true, None, false,
        );
        let attended = attended.transpose(1, 2).reshape([-1, LENGTH, WIDTH]);
        let xs = xs + out.forward(&attended);
        let inner = up.forward(&norm2.forward(&xs)).gelu("none");
        &xs + down.forward(&inner)
    })
}

/// The mean of a bag of embedded tokens, and a linear layer.
fn bag(vs: &nn::Path) -> nn::Sequential {
    nn::seq()
        .add(nn::embedding(vs / "tokens", 200_000, 64, Default::default()))
        .add_fn(|xs| xs.mean_dim(1, false, Kind::Float))
        .add(nn::linear(vs / "out", 64, 10, Default::default()))
}
