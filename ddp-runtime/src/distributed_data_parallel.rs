//! The handle that PyTorch's tutorials hold: a model whose store is registered with a scope.
use std::marker::PhantomData;

use tch::Tensor;
use tch::nn::{Module, ModuleT, VarStore};

use crate::error::Result;
use crate::scope::{self, Scope};

/// A model whose gradients are averaged over all ranks: PyTorch's [`DistributedDataParallel`], for programs that are written
/// without the attribute.
///
/// Making one gives all ranks rank 0's parameters and buffers. It is a thin handle: what averages the gradients is the scope,
/// which sees every backward, so a forward through [`module`](Self::module), or through no handle at all, does the same. That is
/// where it differs from PyTorch, whose hooks belong to the wrapper, and who must not go around it.
///
/// ```no_run
/// # use tch::nn::{self, OptimizerConfig};
/// # use tch::Tensor;
/// use ddp_runtime::DistributedDataParallel;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scope = ddp_runtime::init()?;
/// let vs = nn::VarStore::new(scope.device());
/// let net = nn::linear(vs.root(), 784, 10, Default::default());
/// let model = DistributedDataParallel::new(&scope, &vs, net)?;
/// let mut opt = nn::Adam::default().build(&vs, 1e-3)?;
/// # let batches: Vec<(Tensor, Tensor)> = Vec::new();
/// for (xs, ys) in batches {
///     opt.backward_step(&model.forward(&xs).cross_entropy_for_logits(&ys));
/// }
/// scope.finish()?;
/// # Ok(())
/// # }
/// ```
///
/// | PyTorch | here |
/// | --- | --- |
/// | `DistributedDataParallel(module)` | [`DistributedDataParallel::new`]; the store holds what `module.parameters()` gives |
/// | `device_ids`, `output_device` | the store's device; one a rank |
/// | `broadcast_buffers` | always: running statistics are rank 0's after each step |
/// | `find_unused_parameters` | not needed: each backward's parameters are known before it runs |
/// | `gradient_as_bucket_view` | always |
/// | `static_graph` | not needed |
/// | `bucket_cap_mb` | [`Options::bucket_bytes`](crate::Options); chosen by a measurement unless it is said |
/// | `process_group` | the scope's |
/// | `model.module` | [`module`](Self::module) |
/// | `model.no_sync()` | [`no_sync`](Self::no_sync) |
///
/// [`DistributedDataParallel`]: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
#[derive(Debug)]
pub struct DistributedDataParallel<'s, M> {
    module: M,
    // Not the scope itself, which stays on its thread: a model may move.
    scope: PhantomData<&'s ()>,
}

impl<'s, M> DistributedDataParallel<'s, M> {
    /// Registers the module's store with the scope, and makes it equal on all ranks.
    ///
    /// # Errors
    /// As [`Scope::register`].
    pub fn new(scope: &'s Scope, store: &VarStore, module: M) -> Result<Self> {
        scope.register(store)?;
        Ok(Self { module, scope: PhantomData })
    }

    /// The model itself.
    #[must_use]
    pub fn module(&self) -> &M {
        &self.module
    }

    /// The model, without the handle. Its gradients go on being averaged.
    #[must_use]
    pub fn into_module(self) -> M {
        self.module
    }

    /// Runs `body` without averaging, as [`Scope::no_sync`]: for all but the last backward of an accumulation. Unlike PyTorch's
    /// it acts on every model of the scope.
    pub fn no_sync<T>(&self, body: impl FnOnce() -> T) -> T {
        scope::no_sync(body)
    }

    /// The module's forward.
    pub fn forward(&self, xs: &Tensor) -> Tensor
    where
        M: Module,
    {
        self.module.forward(xs)
    }
}

impl<M: ModuleT> ModuleT for DistributedDataParallel<'_, M> {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        self.module.forward_t(xs, train)
    }
}
