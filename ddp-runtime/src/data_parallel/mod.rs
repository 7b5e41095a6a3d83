//! One process, several devices: a model and its replicas share each batch, as PyTorch's `nn.DataParallel` does.
//!
//! `scatter` cuts the inputs, `replica` keeps the copies of the model, `gather` joins the outputs; this file runs them.
mod gather;
mod replica;
mod scatter;

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Builder;

use tch::nn::{Module, ModuleT, Path, VarStore};
use tch::{Device, TchError, Tensor};

use self::replica::{Replica, Replicas};
use crate::bridge::ThreadState;
use crate::error::{During, Error, Result};
use crate::session;

pub use gather::Gather;
pub use scatter::Scatter;

/// A model on several devices of this process, which share each batch.
///
/// A forward cuts its inputs along dimension 0 into one part a device (as `torch.chunk` does, so that a small batch may leave
/// devices idle), copies the variables of the first model to the replicas, runs all of them at the same time, one thread a
/// replica, and joins the outputs in the order of the parts. A backward adds the replicas' gradients up into those of the
/// first model. So a step computes what one device computes on the whole batch; only the first model's store is trained,
/// saved and loaded, and the optimizer knows nothing of the replicas.
///
/// Buffers (running statistics) are copied to the replicas as well; what the replicas do to theirs is lost, what the first
/// model does to its own stays. All this is what PyTorch's [`nn.DataParallel`] does.
///
/// **Hardly ever what you want.** All parameters travel to all devices in every forward and all outputs to one of them, one
/// process feeds all devices, and it ends at one host. One process a device ([`#[distributed]`](crate::distributed)) computes
/// the same faster on the same machine. It serves where a program cannot be started more than once.
///
/// ```no_run
/// use ddp_runtime::DataParallel;
/// use tch::nn::{self, OptimizerConfig};
/// use tch::{Device, Tensor};
///
/// fn net(vs: &nn::Path) -> nn::Sequential {
///     nn::seq()
///         .add(nn::linear(vs / "hidden", 784, 128, Default::default()))
///         .add_fn(Tensor::relu)
///         .add(nn::linear(vs / "digits", 128, 10, Default::default()))
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let devices = [Device::Cuda(0), Device::Cuda(1)];
/// let vs = nn::VarStore::new(devices[0]);
/// let model = DataParallel::new(&vs, &devices, net)?;
/// let mut opt = nn::Adam::default().build(&vs, 1e-3)?;
/// # let batches: Vec<(Tensor, Tensor)> = Vec::new();
/// for (xs, ys) in batches {
///     let loss = model.forward(&xs).cross_entropy_for_logits(&ys.to_device(vs.device()));
///     opt.backward_step(&loss);
/// }
/// # Ok(())
/// # }
/// ```
///
/// The loss is computed on the outputs of all devices together. A model that takes more than one tensor, or returns more
/// than one, goes through [`run`](Self::run).
///
/// [`nn.DataParallel`]: https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
#[derive(Debug)]
pub struct DataParallel<M> {
    model: M,
    output: Device,
    replicas: RefCell<Replicas<M>>,
}

impl<M> DataParallel<M> {
    /// Builds the model in `store`, and a replica on each of the other devices.
    ///
    /// `build` is called once a device, with the root of a store there, and must create the same variables each time. The
    /// random numbers that the replicas draw are given back: the program goes on as it would with one device. A device may be
    /// named more than once; the CPU is one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when `devices` is empty, does not begin with the store's device, or when this is inside a scope
    /// of several ranks, where each rank has its own device. [`Error::Replica`] names the variable in which a replica differs
    /// from the first model, and a parameter that something was computed from while the model was built.
    pub fn new(
        store: &VarStore,
        devices: &[Device],
        build: impl Fn(&Path<'_>) -> M,
    ) -> Result<Self> {
        refuse_in_scope()?;
        replica::check_devices(store, devices)?;
        let before = replica::names(store);
        let model = build(&store.root());
        let mut names = replica::names(store);
        names.retain(|name| !before.contains(name));
        let replicas = Replicas::build(store, names, devices, build)?;
        Ok(Self { model, output: store.device(), replicas: RefCell::new(replicas) })
    }

    /// The device that the outputs are gathered on; without this, the first one.
    #[must_use]
    pub fn output_device(mut self, device: Device) -> Self {
        self.output = device;
        self
    }

    /// The model on the first device.
    #[must_use]
    pub fn module(&self) -> &M {
        &self.model
    }

    /// The model's forward, shared among the devices.
    ///
    /// # Panics
    /// As tch's own, where [`run`](Self::run) returns an error.
    pub fn forward(&self, xs: &Tensor) -> Tensor
    where
        M: Module,
    {
        self.run(xs, |model, xs| Ok(model.forward(&xs))).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs `forward` on a part of `input` on each device, and joins what it returns.
    ///
    /// Tensors in `input` are cut along dimension 0, numbers and texts go to every replica as they are; see [`Scatter`] and
    /// [`Gather`]. Gradient mode and autocast are the caller's on all threads.
    ///
    /// # Errors
    /// [`Error::Replica`] with the position and device of the first replica that failed, whether libtorch refused something or
    /// it panicked. [`Error::Unsupported`] when the inputs cannot be cut, and inside a scope of several ranks.
    pub fn run<I, O>(
        &self,
        input: &I,
        forward: impl Fn(&M, I) -> std::result::Result<O, TchError> + Sync,
    ) -> Result<O>
    where
        M: Send,
        I: Scatter + Send,
        O: Gather + Send,
    {
        let mut replicas = self.replicas.try_borrow_mut().map_err(|_| {
            Error::unsupported(
                "a forward of a DataParallel was called within one of its own",
                "call the model that the closure is given",
            )
        })?;
        apply(&self.model, &mut replicas, input, &forward, self.output)
    }
}

/// [`DataParallel::run`] once, for a model that exists: PyTorch's functional `data_parallel`.
///
/// The replicas are built for this one call, and `model` is that of the first device, with its variables in `store`.
///
/// # Errors
/// As [`DataParallel::new`] and [`DataParallel::run`].
pub fn data_parallel<M, I, O>(
    (store, model): (&VarStore, &M),
    devices: &[Device],
    build: impl Fn(&Path<'_>) -> M,
    input: &I,
    forward: impl Fn(&M, I) -> std::result::Result<O, TchError> + Sync,
) -> Result<O>
where
    M: Send,
    I: Scatter + Send,
    O: Gather + Send,
{
    refuse_in_scope()?;
    replica::check_devices(store, devices)?;
    let mut replicas = Replicas::build(store, replica::names(store), devices, build)?;
    apply(model, &mut replicas, input, &forward, store.device())
}

impl<M: ModuleT> ModuleT for DataParallel<M> {
    /// # Panics
    /// As tch's own, where [`run`](DataParallel::run) returns an error.
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        self.run(xs, |model, xs| Ok(model.forward_t(&xs, train)))
            .unwrap_or_else(|error| panic!("{error}"))
    }
}

fn refuse_in_scope() -> Result<()> {
    if session::current().is_some() {
        return Err(Error::unsupported(
            "a DataParallel inside a scope of several ranks: each of them has one device",
            "start one rank a device, and train the model as it is",
        ));
    }
    Ok(())
}

/// Cuts, copies, runs, joins.
fn apply<M, I, O>(
    model: &M,
    replicas: &mut Replicas<M>,
    input: &I,
    forward: &(impl Fn(&M, I) -> std::result::Result<O, TchError> + Sync),
    output: Device,
) -> Result<O>
where
    M: Send,
    I: Scatter + Send,
    O: Gather + Send,
{
    refuse_in_scope()?;
    let devices = replicas.devices();
    let mut parts = scatter::parts(input, &devices)?.into_iter();
    let Some(first) = parts.next() else {
        return Err(Error::unsupported("an input of no parts", "pass at least one row"));
    };
    let home = devices[0];
    let own = || outcome(0, home, catch_unwind(AssertUnwindSafe(|| forward(model, first))));
    if devices.len() == 1 {
        return own()?.moved(output);
    }
    let others = replicas.refresh(parts.len())?;
    let outputs = if others.is_empty() {
        vec![own()?]
    } else {
        let state = ThreadState::current().during(REPLICATING)?;
        together(others, parts, &state, forward, own)?
    };
    O::gather(outputs, output)
}

const REPLICATING: &str = "copying a model to its replicas";

/// Runs all replicas, the first one on this thread. The outputs in the order of the replicas, or the first error in it.
fn together<M: Send, I: Send, O: Send>(
    others: &mut [Replica<M>],
    parts: impl Iterator<Item = I>,
    state: &ThreadState,
    forward: &(impl Fn(&M, I) -> std::result::Result<O, TchError> + Sync),
    own: impl FnOnce() -> Result<O>,
) -> Result<Vec<O>> {
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (at, (replica, part)) in others.iter_mut().zip(parts).enumerate() {
            let (number, device) = (at + 1, replica.device);
            let model = &mut replica.model;
            let body = move || state.within(device, || forward(model, part));
            let thread = Builder::new().name(format!("replica {number} on {device:?}"));
            running.push((number, device, thread.spawn_scoped(scope, body)));
        }
        let mut outputs = vec![own()];
        outputs.extend(running.into_iter().map(|(number, device, thread)| {
            let thread = thread.map_err(|error| failed(number, device, error))?;
            let joined =
                thread.join().map(|within| within.map_err(|error| failed(number, device, error)));
            match joined {
                Ok(result) => outcome(number, device, Ok(result?)),
                Err(panic) => outcome(number, device, Err(panic)),
            }
        }));
        outputs.into_iter().collect()
    })
}

fn failed(replica: usize, device: Device, message: impl ToString) -> Error {
    let message = message.to_string();
    // libtorch's texts go on with a C++ backtrace; in a panic of tch's they stand escaped.
    let end = message.find("Exception raised from").unwrap_or(message.len());
    let message = message[..end].trim_end_matches("\\n").trim_end().to_owned();
    Error::Replica { replica, device, message }
}

/// What a replica returned, or why it returned nothing.
fn outcome<O>(
    replica: usize,
    device: Device,
    result: std::result::Result<std::result::Result<O, TchError>, Box<dyn Any + Send>>,
) -> Result<O> {
    match result {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(error)) => Err(failed(replica, device, error)),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let text =
                text.unwrap_or_else(|| "it panicked with a value that is no text".to_owned());
            Err(failed(replica, device, format!("panicked: {text}")))
        }
    }
}
