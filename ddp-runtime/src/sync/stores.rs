//! The variable stores of a scope: what is in them, and how they are made equal.
//!
//! A registration is bound to the store itself (tch keeps its variables behind an `Arc`), not to a name in the program, and
//! ends with it. Layers may be added and weights loaded after it: what is new is looked for at the head of each training
//! loop and at each backward.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tch::nn::{VarStore, Variables};
use tch::{Device, Kind, Tensor};

use crate::bridge::data_alias;
use crate::error::{During, Result};
use crate::group::Group;
use crate::sync::leaf::{LeafTable, describe, identity};

/// The largest number of bytes that one broadcast of values takes together.
const CHUNK_BYTES: usize = 25 << 20;

/// A store that the scope knows.
struct Registered {
    variables: Weak<Mutex<Variables>>,
    /// How many variables have been looked at.
    known: usize,
    buffers: Vec<(String, Tensor)>,
}

/// A variable that has not been made equal yet.
pub(crate) struct Fresh {
    /// Its name, dtype and shape.
    pub(crate) description: String,
    /// A handle to it.
    pub(crate) tensor: Tensor,
    /// Its number among the leaves, unless it is a buffer.
    pub(crate) leaf: Option<u32>,
}

/// All stores of a scope, in the order of registration.
#[derive(Default)]
pub(crate) struct StoreSet {
    stores: Vec<Registered>,
    fresh: Vec<Fresh>,
}

impl StoreSet {
    /// Adds a store, unless it is there already. Its variables are looked at later.
    pub(crate) fn register(&mut self, store: &VarStore) {
        let variables = Arc::downgrade(&store.variables_);
        if !self.stores.iter().any(|known| known.variables.ptr_eq(&variables)) {
            self.stores.push(Registered { variables, known: 0, buffers: Vec::new() });
        }
    }

    /// Whether variables were added since the last time.
    pub(crate) fn have_grown(&self) -> bool {
        self.stores.iter().any(|store| {
            let variables = store.variables.upgrade();
            variables.is_some_and(|variables| lock(&variables).named_variables.len() != store.known)
        })
    }

    /// Forgets the stores that are no more. Whether there were any.
    pub(crate) fn forget_dropped(&mut self) -> bool {
        let before = self.stores.len();
        self.stores.retain(|store| store.variables.strong_count() > 0);
        self.stores.len() < before
    }

    /// Looks for variables that were added since the last time, and numbers them.
    pub(crate) fn absorb(&mut self, table: &mut LeafTable) -> Result<()> {
        for store in &mut self.stores {
            let Some(variables) = store.variables.upgrade() else { continue };
            let variables = lock(&variables);
            if variables.named_variables.len() != store.known {
                self.fresh.extend(absorb_store(store, &variables, table)?);
            }
        }
        Ok(())
    }

    /// The variables not yet made equal, which the caller makes equal now.
    pub(crate) fn take_fresh(&mut self) -> Vec<Fresh> {
        std::mem::take(&mut self.fresh)
    }

    /// Copies one rank's buffers (running statistics) to all ranks.
    pub(crate) fn spread_buffers(&self, group: &Group, root: usize) -> Result<()> {
        spread(group, &self.buffers(), root, "making buffers equal")
    }

    fn buffers(&self) -> Vec<&Tensor> {
        self.named_buffers().map(|(_, tensor)| tensor).collect()
    }

    /// All buffers, in the order of the stores.
    pub(crate) fn named_buffers(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let buffers = self.stores.iter().flat_map(|store| &store.buffers);
        buffers.map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Whether there is any buffer to spread.
    pub(crate) fn has_buffers(&self) -> bool {
        self.stores.iter().any(|store| !store.buffers.is_empty())
    }
}

fn lock(variables: &Mutex<Variables>) -> MutexGuard<'_, Variables> {
    variables.lock().unwrap_or_else(PoisonError::into_inner)
}

fn absorb_store(
    store: &mut Registered,
    variables: &Variables,
    table: &mut LeafTable,
) -> Result<Vec<Fresh>> {
    let mut names: HashMap<usize, &str> = HashMap::new();
    for (name, tensor) in &variables.named_variables {
        names.insert(identity(tensor)?, name);
    }
    let mut fresh = Vec::new();
    for variable in &variables.trainable_variables {
        let identity = identity(&variable.tensor)?;
        let name = names.remove(&identity);
        if let Some(known) = table.find(identity) {
            // Seen before its store was; for messages.
            let leaf = table.get_mut(known);
            leaf.in_store = true;
            leaf.name = name.map_or_else(|| leaf.name.clone(), str::to_owned);
            continue;
        }
        let name = name.map(str::to_owned);
        let description =
            describe(name.as_deref().unwrap_or("a variable without name"), &variable.tensor);
        let leaf = table.add(identity, &variable.tensor, name);
        table.get_mut(leaf).in_store = true;
        let tensor = variable.tensor.shallow_clone();
        fresh.push(Fresh { description, tensor, leaf: Some(leaf) });
    }
    let mut rest: Vec<&str> = names.into_values().collect();
    rest.sort_unstable();
    for name in rest {
        let tensor = &variables.named_variables[name];
        if store.buffers.iter().any(|(known, _)| known == name) {
            continue;
        }
        store.buffers.push((name.to_owned(), tensor.shallow_clone()));
        let (description, tensor) = (describe(name, tensor), tensor.shallow_clone());
        table.note(description.clone());
        fresh.push(Fresh { description, tensor, leaf: None });
    }
    store.known = variables.named_variables.len();
    Ok(fresh)
}

/// Copies the root's values of all these tensors to all ranks, many tensors to a message.
pub(crate) fn spread(
    group: &Group,
    tensors: &[&Tensor],
    root: usize,
    operation: &str,
) -> Result<()> {
    for chunk in chunks(tensors) {
        if spread_in_one_launch(group, &chunk, operation)? {
            continue;
        }
        let flat: Vec<Tensor> = chunk
            .iter()
            .map(|tensor| data_alias(tensor).during(operation)?.f_reshape([-1]).during(operation))
            .collect::<Result<_>>()?;
        let joined = Tensor::f_cat(&flat, 0).during(operation)?;
        group.broadcast(&joined, root, operation)?;
        if group.topology().rank != root {
            copy_back(&joined, &chunk, operation)?;
        }
    }
    Ok(())
}

/// Copies rank 0's values straight into the tensors, where the transport can do that.
fn spread_in_one_launch(group: &Group, tensors: &[&Tensor], operation: &str) -> Result<bool> {
    let aliases: Vec<Tensor> = tensors
        .iter()
        .map(|tensor| data_alias(tensor))
        .collect::<std::result::Result<_, _>>()
        .during(operation)?;
    // The same tensor where it is contiguous already. Every rank broadcasts as many, whatever its own strides are.
    let dense: Vec<Tensor> = aliases
        .iter()
        .map(Tensor::f_contiguous)
        .collect::<std::result::Result<_, _>>()
        .during(operation)?;
    if !group.broadcast_all(&dense.iter().collect::<Vec<_>>(), 0, operation)? {
        return Ok(false);
    }
    for (mut alias, dense) in aliases.into_iter().zip(dense) {
        if !alias.is_contiguous() {
            alias.f_copy_(&dense).during(operation)?;
        }
    }
    Ok(true)
}

/// Tensors of one dtype and device together, up to a size, in the order given.
fn chunks<'a>(tensors: &[&'a Tensor]) -> Vec<Vec<&'a Tensor>> {
    let mut chunks: Vec<(Kind, Device, usize, Vec<&Tensor>)> = Vec::new();
    for &tensor in tensors {
        let (kind, device) = (tensor.kind(), tensor.device());
        let bytes = tensor.numel() * kind.elt_size_in_bytes();
        match chunks.iter_mut().rev().find(|chunk| (chunk.0, chunk.1) == (kind, device)) {
            Some(chunk) if chunk.2 + bytes <= CHUNK_BYTES => {
                chunk.2 += bytes;
                chunk.3.push(tensor);
            }
            _ => chunks.push((kind, device, bytes, vec![tensor])),
        }
    }
    chunks.into_iter().map(|chunk| chunk.3).collect()
}

fn copy_back(joined: &Tensor, tensors: &[&Tensor], operation: &str) -> Result<()> {
    let mut start = 0;
    for tensor in tensors {
        let length = tensor.numel() as i64;
        let part = joined.f_narrow(0, start, length).during(operation)?;
        // Autograd must not see the write: the tensor may be saved by a graph that is yet to run.
        let mut target = data_alias(tensor).during(operation)?;
        let part = part.f_reshape(target.size()).during(operation)?;
        target.f_copy_(&part).during(operation)?;
        start += length;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tch::nn;

    use super::*;

    /// In a hash map, which has another order in each process, they would come in this one once in 24 factorial times.
    #[test]
    fn p34_buffers_are_in_the_order_of_their_names() {
        let store = VarStore::new(Device::Cpu);
        for layer in 0..12 {
            let _ = nn::batch_norm1d(store.root() / layer, 1, Default::default());
        }
        let (mut set, mut table) = (StoreSet::default(), LeafTable::default());
        set.register(&store);
        set.absorb(&mut table).unwrap();
        let names: Vec<&str> = set.named_buffers().map(|(name, _)| name).collect();
        assert!(names.len() == 24 && names.is_sorted(), "{names:?}");
        let parameters = table.len();
        let fresh = set.take_fresh();
        let fresh = fresh[parameters..].iter().map(|fresh| &fresh.description);
        assert!(fresh.is_sorted(), "what the ranks compare has another order");
    }

    #[test]
    fn p34_variables_are_numbered_in_the_order_of_creation_and_only_once() {
        let store = VarStore::new(Device::Cpu);
        let root = store.root();
        let _ = nn::linear(&root / "second", 2, 3, Default::default());
        let _ = nn::batch_norm1d(&root / "first", 3, Default::default());
        let (mut set, mut table) = (StoreSet::default(), LeafTable::default());
        set.register(&store);
        set.register(&store);
        set.absorb(&mut table).unwrap();
        let names: Vec<String> =
            set.take_fresh().into_iter().map(|fresh| fresh.description).collect();
        assert_eq!(
            names,
            [
                "second.bias [3] Float",
                "second.weight [3, 2] Float",
                "first.weight [3] Float",
                "first.bias [3] Float",
                "first.running_mean [3] Float",
                "first.running_var [3] Float",
            ]
        );
        assert_eq!((table.len(), set.has_buffers()), (4, true));
        set.absorb(&mut table).unwrap();
        assert!(set.take_fresh().is_empty());
        let _ = nn::linear(&root / "late", 1, 1, Default::default());
        set.absorb(&mut table).unwrap();
        assert_eq!((set.take_fresh().len(), table.len()), (2, 6));
    }

    #[test]
    fn a_registration_ends_with_its_store() {
        let (mut set, mut table) = (StoreSet::default(), LeafTable::default());
        let store = VarStore::new(Device::Cpu);
        set.register(&store);
        drop(store);
        assert!(set.forget_dropped());
        set.absorb(&mut table).unwrap();
        assert!(set.stores.is_empty());
    }

    #[test]
    fn chunks_keep_kinds_apart_and_stay_below_the_limit() {
        let big = Tensor::zeros([5 << 20], (Kind::Float, Device::Cpu));
        let double = Tensor::zeros([4], (Kind::Double, Device::Cpu));
        let sizes: Vec<usize> =
            chunks(&[&big, &double, &big, &big, &double]).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1, 2, 1, 1]);
    }
}
