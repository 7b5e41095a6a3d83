//! The backward may stand anywhere: each program is compiled twice, plain and with the attribute, and follows the same course.
use anyhow::{Result, bail};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

use super::compare::close;

const BATCH: i64 = 8;
const STEPS: i64 = 12;

/// Compiles `$helpers` and `$train` as they are, and again with the attribute on `$train`.
macro_rules! both {
    ($name:ident { $($helpers:tt)* } { $($train:tt)* }) => {
        mod $name {
            pub(super) mod plain {
                #[allow(unused_imports)]
                use super::super::*;
                $($helpers)*
                $($train)*
            }
            pub(super) mod shared {
                #[allow(unused_imports)]
                use super::super::*;
                $($helpers)*
                #[ddp_runtime::distributed]
                $($train)*
            }
        }
    };
}

/// A smooth model: rounding does not flip an activation.
struct Net {
    first: nn::Linear,
    second: nn::Linear,
}

impl Net {
    fn new(root: &nn::Path) -> Self {
        Self {
            first: nn::linear(root / "first", 5, 16, Default::default()),
            second: nn::linear(root / "second", 16, 1, Default::default()),
        }
    }

    fn loss(&self, x: &Tensor, y: &Tensor) -> Tensor {
        let out = self.second.forward(&self.first.forward(x).tanh());
        out.mse_loss(y, tch::Reduction::Mean)
    }
}

struct Data {
    x: Tensor,
    y: Tensor,
}

impl Data {
    fn new(samples: i64) -> Self {
        tch::manual_seed(3);
        let x = Tensor::randn([samples, 5], (Kind::Float, Device::Cpu));
        let y = x.sum_dim_intlist([1_i64].as_slice(), true, Kind::Float).sin();
        Self { x, y }
    }
}

both!(in_helper {
    fn update(net: &Net, opt: &mut nn::Optimizer, x: &Tensor, y: &Tensor) -> f64 {
        let loss = net.loss(x, y);
        opt.backward_step(&loss);
        loss.double_value(&[])
    }
} {
    pub(in super::super) fn train(vs: &nn::VarStore, net: &Net, data: &Data, batch: i64) -> Result<()> {
        let mut opt = nn::Sgd { momentum: 0.9, ..Default::default() }.build(vs, 0.05)?;
        for (x, y) in tch::data::Iter2::new(&data.x, &data.y, batch) {
            update(net, &mut opt, &x, &y);
        }
        Ok(())
    }
});

both!(in_method {
    struct Trainer<'a> {
        net: &'a Net,
        opt: nn::Optimizer,
    }
    impl Trainer<'_> {
        fn optimizer(&mut self) -> &mut nn::Optimizer {
            &mut self.opt
        }
        fn learn(&mut self, x: &Tensor, y: &Tensor) {
            let loss = self.net.loss(x, y);
            self.optimizer().backward_step_clip_norm(&loss, 0.5);
        }
    }
} {
    pub(in super::super) fn train(vs: &nn::VarStore, net: &Net, data: &Data, batch: i64) -> Result<()> {
        let mut trainer = Trainer { net, opt: nn::Adam::default().build(vs, 0.01)? };
        for (x, y) in tch::data::Iter2::new(&data.x, &data.y, batch) {
            trainer.learn(&x, &y);
        }
        Ok(())
    }
});

both!(in_closure {} {
    pub(in super::super) fn train(vs: &nn::VarStore, net: &Net, data: &Data, batch: i64) -> Result<()> {
        let mut opt = nn::AdamW::default().build(vs, 0.01)?;
        let mut step = |x: &Tensor, y: &Tensor| {
            opt.zero_grad();
            net.loss(x, y).backward();
            opt.step();
        };
        tch::data::Iter2::new(&data.x, &data.y, batch).for_each(|(x, y)| step(&x, &y));
        Ok(())
    }
});

both!(in_own_optimizer {
    struct SignDescent {
        variables: Vec<Tensor>,
        rate: f64,
    }
    impl SignDescent {
        fn step(&mut self, loss: &Tensor) {
            for variable in &mut self.variables {
                variable.zero_grad();
            }
            loss.backward();
            tch::no_grad(|| {
                for variable in &mut self.variables {
                    let change = variable.grad().tanh() * self.rate;
                    let _ = variable.subtract_(&change);
                }
            });
        }
    }
} {
    pub(in super::super) fn train(vs: &nn::VarStore, net: &Net, data: &Data, batch: i64) -> Result<()> {
        let mut own = SignDescent { variables: vs.trainable_variables(), rate: 0.05 };
        for (x, y) in tch::data::Iter2::new(&data.x, &data.y, batch) {
            own.step(&net.loss(&x, &y));
        }
        Ok(())
    }
});

type Train = fn(&nn::VarStore, &Net, &Data, i64) -> Result<()>;

pub(super) fn run(args: &[String]) -> Result<()> {
    let [name] = args else { bail!("expected a place for the step, got {args:?}") };
    let (plain, shared): (Train, Train) = match name.as_str() {
        "helper" => (in_helper::plain::train, in_helper::shared::train),
        "method" => (in_method::plain::train, in_method::shared::train),
        "closure" => (in_closure::plain::train, in_closure::shared::train),
        "own-optimizer" => (in_own_optimizer::plain::train, in_own_optimizer::shared::train),
        _ => bail!("no place is called {name}"),
    };
    let world_size = ddp_runtime::world_size() as i64;
    let data = Data::new(STEPS * BATCH * world_size);
    let (store, mut reference) = (nn::VarStore::new(Device::Cpu), nn::VarStore::new(Device::Cpu));
    let (net, reference_net) = (Net::new(&store.root()), Net::new(&reference.root()));
    reference.copy(&store)?;
    // Joined batches of the same rows, in the same order.
    plain(&reference, &reference_net, &data, BATCH * world_size)?;
    shared(&store, &net, &data, BATCH)?;
    close(name, &store.trainable_variables(), &reference.trainable_variables(), 1e-5)
}
