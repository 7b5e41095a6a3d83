//! The parameters that this rank knows, in an order that all ranks share.
//!
//! A leaf is numbered when it is first seen: the trainable variables of a store in the order of their creation (a Vec in
//! tch), a leaf outside any store when a backward first reaches it, in the order of the graph. Never a hash map's order.
use std::collections::HashMap;

use tch::{Device, Kind, Tensor};

use crate::bridge::{Leaf as Watched, tensor_state};
use crate::error::{During, Result};
use crate::hash::hash_of;
use crate::sync::bucket::Item;

/// A parameter.
pub(crate) struct Leaf {
    /// Its name in the store, or its shape when it is in none.
    pub(crate) name: String,
    /// A handle to it.
    pub(crate) tensor: Tensor,
    /// Its dtype.
    pub(crate) kind: Kind,
    /// Its device.
    pub(crate) device: Device,
    /// Its elements.
    pub(crate) elements: usize,
    /// Whether its value is known to be equal on all ranks.
    pub(crate) equal: bool,
    /// Whether a registered store holds it.
    pub(crate) in_store: bool,
    /// Whether the program has let go of it, and its memory is freed. Its number stays.
    pub(crate) gone: bool,
    /// The place of its gradient: the bucket, and the view there.
    pub(crate) place: Option<Place>,
    watched: Option<Watched>,
}

/// Where a gradient lies.
pub(crate) struct Place {
    /// The bucket.
    pub(crate) bucket: usize,
    /// The part of it with the parameter's sizes and strides. None while a bucket for one gradient has no memory.
    pub(crate) view: Option<Tensor>,
}

/// All leaves, by number.
#[derive(Default)]
pub(crate) struct LeafTable {
    leaves: Vec<Leaf>,
    by_identity: HashMap<usize, u32>,
    lines: Vec<String>,
    hash: u64,
    /// Leaves that are each rank's own.
    ignored: HashMap<usize, Tensor>,
}

impl LeafTable {
    pub(crate) fn len(&self) -> usize {
        self.leaves.len()
    }

    pub(crate) fn get(&self, id: u32) -> &Leaf {
        &self.leaves[id as usize]
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> &mut Leaf {
        &mut self.leaves[id as usize]
    }

    /// Adds a line to what two ranks compare: a leaf, or a buffer, which has no number.
    pub(crate) fn note(&mut self, line: String) {
        self.hash = hash_of(&(self.hash, &line));
        self.lines.push(line);
    }

    /// A hash of all names, shapes and dtypes, in order: equal on two ranks when they know the same parameters.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The number of a leaf, by what tells it apart.
    pub(crate) fn find(&self, identity: usize) -> Option<u32> {
        self.by_identity.get(&identity).copied()
    }

    /// Numbers a leaf. `name` is its name in a store; without one its shape has to do.
    pub(crate) fn add(&mut self, identity: usize, tensor: &Tensor, name: Option<String>) -> u32 {
        let id = self.leaves.len() as u32;
        let name = name.unwrap_or_else(|| format!("a leaf outside any store, {:?}", tensor.size()));
        self.note(describe(&name, tensor));
        self.leaves.push(Leaf {
            name,
            kind: tensor.kind(),
            device: tensor.device(),
            elements: tensor.numel(),
            tensor: tensor.shallow_clone(),
            equal: false,
            in_store: false,
            gone: false,
            place: None,
            watched: None,
        });
        self.by_identity.insert(identity, id);
        id
    }

    /// Leaves this leaf out: it is each rank's own.
    pub(crate) fn ignore(&mut self, tensor: &Tensor) -> Result<()> {
        for identity in self.unused_ignored()? {
            self.ignored.remove(&identity);
        }
        self.ignored.insert(identity(tensor)?, tensor.shallow_clone());
        Ok(())
    }

    fn unused_ignored(&self) -> Result<Vec<usize>> {
        let mut unused = Vec::new();
        for (identity, tensor) in &self.ignored {
            if tensor_state(tensor).during("looking at a leaf")?.holders == 1 {
                unused.push(*identity);
            }
        }
        Ok(unused)
    }

    /// Whether any leaf is a variable of a registered store.
    pub(crate) fn knows_a_store(&self) -> bool {
        self.leaves.iter().any(|leaf| leaf.in_store)
    }

    /// Whether this leaf is left out.
    pub(crate) fn is_ignored(&self, identity: usize) -> bool {
        self.ignored.contains_key(&identity)
    }

    /// Frees the leaves that nobody but this table holds any more, and returns their numbers.
    pub(crate) fn sweep(&mut self) -> Result<Vec<u32>> {
        let mut swept = Vec::new();
        for (id, leaf) in self.leaves.iter_mut().enumerate().filter(|(_, leaf)| !leaf.gone) {
            // The handle here, and the accumulator that carries the hook.
            let own = 1 + i64::from(leaf.watched.is_some());
            if tensor_state(&leaf.tensor).during("looking at a leaf")?.holders <= own {
                leaf.gone = true;
                (leaf.watched, leaf.place) = (None, None);
                leaf.tensor = Tensor::new();
                swept.push(id as u32);
            }
        }
        self.by_identity.retain(|_, id| !swept.contains(id));
        Ok(swept)
    }

    /// Makes sure that a backward tells when this leaf's gradient is complete.
    pub(crate) fn watch(&mut self, id: u32) -> Result<()> {
        let leaf = self.get_mut(id);
        if leaf.watched.is_none() {
            leaf.watched = Some(Watched::watch(&leaf.tensor, id).during("watching a parameter")?);
        }
        Ok(())
    }

    /// What the bucket assignment needs to know of a leaf.
    pub(crate) fn item(&self, id: u32) -> Item {
        let leaf = self.get(id);
        let Leaf { elements, kind, device, .. } = *leaf;
        Item { leaf: id, elements, kind, device, alone: false }
    }

    /// One line a leaf or buffer: what is compared when two ranks know different ones.
    pub(crate) fn describe(&self) -> String {
        self.lines.join("\n")
    }
}

/// "conv1.weight [8, 1, 3, 3] Float"
pub(crate) fn describe(name: &str, tensor: &Tensor) -> String {
    format!("{name} {:?} {:?}", tensor.size(), tensor.kind())
}

/// What tells two tensors apart: the object that every handle to it shares.
pub(crate) fn identity(tensor: &Tensor) -> Result<usize> {
    crate::bridge::identity(tensor).during("telling tensors apart")
}

/// The first line in which two ranks' descriptions differ, for an error.
pub(crate) fn first_difference(descriptions: &[String]) -> Option<(usize, String)> {
    let reference: Vec<&str> = descriptions.first()?.lines().collect();
    for (rank, description) in descriptions.iter().enumerate().skip(1) {
        let lines: Vec<&str> = description.lines().collect();
        let length = reference.len().max(lines.len());
        for index in 0..length {
            let (first, other) = (reference.get(index), lines.get(index));
            if first != other {
                let name = |line: Option<&&str>| {
                    line.map_or_else(|| "no parameter".to_owned(), |line| format!("`{line}`"))
                };
                return Some((
                    rank,
                    format!(
                        "parameter {index} is {} on rank 0 and {} on rank {rank}",
                        name(first),
                        name(other)
                    ),
                ));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_names_parameter_and_rank() {
        let lists =
            ["a [1] Float\nb [2] Float", "a [1] Float\nb [2] Float", "a [1] Float\nc [2] Float"];
        let found = first_difference(&lists.map(str::to_owned)).unwrap();
        assert_eq!(found.0, 2);
        assert_eq!(found.1, "parameter 1 is `b [2] Float` on rank 0 and `c [2] Float` on rank 2");
        let shorter = ["a [1] Float", ""].map(str::to_owned);
        assert!(first_difference(&shorter).unwrap().1.ends_with("no parameter on rank 1"));
        assert!(first_difference(&["x".to_owned(), "x".to_owned()]).is_none());
    }

    #[test]
    fn a_leaf_is_swept_when_the_program_has_let_go_of_it() {
        let options = (Kind::Float, Device::Cpu);
        let tensor = Tensor::ones([2], options).set_requires_grad(true);
        let other = Tensor::ones([3], options).set_requires_grad(true);
        let mut table = LeafTable::default();
        for (index, leaf) in [&tensor, &other].into_iter().enumerate() {
            table.add(identity(leaf).unwrap(), leaf, None);
            table.watch(index as u32).unwrap();
            (leaf * 2.0).sum(Kind::Float).backward();
        }
        let hash = table.hash();
        assert_eq!(table.sweep().unwrap(), [] as [u32; 0]);
        let address = identity(&tensor).unwrap();
        drop(tensor);
        assert_eq!((table.sweep().unwrap(), table.find(address)), (vec![0], None));
        assert_eq!((table.len(), table.hash(), table.get(1).gone), (2, hash, false));
    }

    #[test]
    fn the_hash_depends_on_order_names_and_shapes() {
        let tensor = |n| Tensor::zeros([n], (Kind::Float, Device::Cpu));
        let hash = |parts: &[(&str, i64)]| {
            let mut table = LeafTable::default();
            for (index, (name, size)) in parts.iter().enumerate() {
                table.add(index, &tensor(*size), Some((*name).to_owned()));
            }
            table.hash()
        };
        assert_eq!(hash(&[("a", 1), ("b", 2)]), hash(&[("a", 1), ("b", 2)]));
        assert_ne!(hash(&[("a", 1), ("b", 2)]), hash(&[("b", 2), ("a", 1)]));
        assert_ne!(hash(&[("a", 1)]), hash(&[("a", 2)]));
    }
}
