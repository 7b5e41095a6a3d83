//! The replicas of a model: built beside it, and given its values before each forward.
//!
//! # Note [Replicas without leaves]
//!
//! A replica's layers hold tensors of their own, which were made as leaves. Before each forward these tensors take the data
//! and the history of a differentiable copy of the first model's parameters, in place: the layers see them as they are, and a
//! backward leads from them into the first model's accumulators, as through any operation. So gradients arrive there within
//! the backward itself, added up in the order of the replicas; replicas have no gradients, and nothing has to be moved
//! afterwards. PyTorch, whose modules can be copied with other tensors in them, does it with the same graph.
//!
//! Two forwards may precede one backward. The copies of the second then stand where the first's graph saved those of its own:
//! they are equal as long as nobody has written to the parameters in between. When somebody has, the copies' version moves on
//! with the source's, and the backward ends in libtorch's own error, as it does on one device. (libtorch's C++ optimizers write
//! past the version counter, on one device too: a step between a forward and its backward is seen by neither.)
use tch::nn::{Path, VarStore};
use tch::{Device, Tensor};

use super::failed;
use crate::bridge::{self, Copies};
use crate::error::{During, Error, Result};

/// A copy of the model on another device.
#[derive(Debug)]
pub(super) struct Replica<M> {
    pub(super) device: Device,
    pub(super) model: M,
    /// In the order of the sources.
    variables: Vec<Tensor>,
    /// The versions of the sources that were copied last.
    copied: Vec<i64>,
}

/// What is copied, and where to.
#[derive(Debug)]
pub(super) struct Replicas<M> {
    home: Device,
    /// The first model's variables, parameters and buffers, in the order of their names.
    sources: Vec<Tensor>,
    others: Vec<Replica<M>>,
}

/// The names of a store's variables, sorted.
pub(super) fn names(store: &VarStore) -> Vec<String> {
    let mut names: Vec<String> = store.variables().into_keys().collect();
    names.sort_unstable();
    names
}

/// Refuses what cannot be a list of devices for `store`.
pub(super) fn check_devices(store: &VarStore, devices: &[Device]) -> Result<()> {
    let home = store.device();
    match devices.first() {
        None => Err(Error::unsupported("a DataParallel without devices", "name at least one")),
        Some(&first) if first != home => Err(Error::unsupported(
            format!("a DataParallel whose first device is {first:?}, with a store on {home:?}"),
            "name the store's device first",
        )),
        Some(_) => {
            match devices.iter().find(|device| !matches!(device, Device::Cpu | Device::Cuda(_))) {
                Some(other) => Err(Error::unsupported(
                    format!("a DataParallel on {other:?}"),
                    "name GPUs of CUDA, or the CPU",
                )),
                None => Ok(()),
            }
        }
    }
}

impl<M> Replicas<M> {
    /// A replica on each device but the first, of the variables called `names` in `store`.
    pub(super) fn build(
        store: &VarStore,
        names: Vec<String>,
        devices: &[Device],
        build: impl Fn(&Path<'_>) -> M,
    ) -> Result<Self> {
        let mut found = store.variables();
        let sources: Vec<(String, Tensor)> = names
            .into_iter()
            .filter_map(|name| found.remove(&name).map(|tensor| (name, tensor)))
            .collect();
        let others = without_drawing(devices, || {
            let others = devices.iter().enumerate().skip(1);
            others
                .map(|(number, &device)| {
                    let mut own = VarStore::new(device);
                    own.set_kind(store.kind());
                    Replica::build(number, &own, &sources, &build)
                })
                .collect()
        })?;
        let sources = sources.into_iter().map(|(_, tensor)| tensor).collect();
        Ok(Self { home: store.device(), sources, others })
    }

    /// The devices, the first model's before the replicas'.
    pub(super) fn devices(&self) -> Vec<Device> {
        std::iter::once(self.home).chain(self.others.iter().map(|other| other.device)).collect()
    }

    /// Gives the first `count` replicas the sources' values. See Note [Replicas without leaves].
    pub(super) fn refresh(&mut self, count: usize) -> Result<&mut [Replica<M>]> {
        if let Some(moved) = self.sources.iter().find(|source| source.device() != self.home) {
            return Err(Error::unsupported(
                format!(
                    "the store of a DataParallel has moved from {:?} to {:?}",
                    self.home,
                    moved.device()
                ),
                "move it before the DataParallel is made",
            ));
        }
        let versions: Vec<i64> = self
            .sources
            .iter()
            .map(|source| bridge::version(source).during(super::REPLICATING))
            .collect::<Result<_>>()?;
        let others = &mut self.others[..count];
        let copies: Vec<Copies<'_>> = others
            .iter()
            .map(|other| Copies {
                device: other.device,
                tensors: &other.variables,
                changed: versions.iter().zip(&other.copied).map(|(new, old)| new != old).collect(),
            })
            .collect();
        bridge::replicate(&self.sources, &copies).during(super::REPLICATING)?;
        for other in &mut *others {
            other.copied.clone_from(&versions);
        }
        Ok(others)
    }
}

impl<M> Replica<M> {
    fn build(
        number: usize,
        store: &VarStore,
        sources: &[(String, Tensor)],
        build: impl Fn(&Path<'_>) -> M,
    ) -> Result<Self> {
        let device = store.device();
        let model = build(&store.root());
        let found = store.variables();
        if let Some(name) =
            names(store).into_iter().find(|name| sources.iter().all(|(known, _)| known != name))
        {
            return Err(failed(
                number,
                device,
                format!(
                    "it has a variable `{name}` that the first model has not; build the same model on every device, in an empty \
                 store or under paths of its own"
                ),
            ));
        }
        let variables: Vec<Tensor> = sources
            .iter()
            .map(|(name, source)| match found.get(name) {
                Some(variable) => checked(name, source, variable).map_err(|text| failed(number, device, text)),
                None => Err(failed(number, device, format!(
                    "it has no variable `{name}`, as the first model has; build the same model on every device"
                ))),
            })
            .collect::<Result<_>>()?;
        Ok(Self { device, model, variables, copied: vec![-1; sources.len()] })
    }
}

/// A replica's variable, made ready to become a copy.
fn checked(name: &str, source: &Tensor, variable: &Tensor) -> std::result::Result<Tensor, String> {
    let (own, first) = (variable.size(), source.size());
    if own != first {
        return Err(format!(
            "its variable `{name}` has the shape {own:?}, the first model's {first:?}; build the same model on every device"
        ));
    }
    // What was computed from it would go on leading into this tensor, whose gradient nobody looks at.
    if bridge::in_a_graph(variable).map_err(|error| error.to_string())? {
        return Err(format!(
            "something is computed from its parameter `{name}` while the model is built; compute it in the forward"
        ));
    }
    variable.f_set_requires_grad(false).map_err(|error| error.to_string())
}

/// Runs `body` and takes back what it drew of the random numbers of these devices and the CPU.
fn without_drawing<T>(devices: &[Device], body: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut devices = devices.to_vec();
    devices.push(Device::Cpu);
    let states: Vec<(Device, Vec<u8>)> = devices
        .into_iter()
        .map(|device| Ok((device, bridge::generator_state(device).during(super::REPLICATING)?)))
        .collect::<Result<_>>()?;
    let value = body();
    for (device, state) in states {
        bridge::set_generator_state(device, &state).during(super::REPLICATING)?;
    }
    value
}
