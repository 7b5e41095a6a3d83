//! Gradients that wait for a later backward to be averaged: those of a group, or of `no_sync`.
//!
//! # Note [Groups of backwards]
//!
//! With `accumulate = N` one backward in N averages, and with it what has accumulated before. Nobody tells where a program
//! steps. A step shows afterwards: in the versions of the parameters, which count writes in place, and, since libtorch's SGD writes
//! past them, in the values of a few small ones. So where a group is short (the last one of an epoch) its remainder is averaged
//! when the loop over the data ends, before a step that follows it; and a step that has taken gradients which were not averaged
//! ends in an error at the next thing that the ranks do together.
use std::collections::BTreeSet;

use tch::Tensor;

use crate::bridge::{checksum, tensor_state};
use crate::error::{During, Error, Result};
use crate::sync::leaf::LeafTable;

/// How far a group is.
pub(super) struct Accumulation {
    /// Backwards in a group.
    every: usize,
    /// Those of this group that have been.
    in_group: usize,
    /// Leaves whose gradients were not averaged.
    pending: BTreeSet<u32>,
    /// The parameters of this group's leaves, as they were.
    before: Vec<Seen>,
}

/// A parameter at one time.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    id: u32,
    version: i64,
    /// A hash of its values, for some.
    values: Option<u64>,
}

/// Of so many parameters, the smallest, values are looked at.
const SAMPLED: usize = 8;
/// And of so many elements of each.
const SAMPLED_ELEMENTS: i64 = 4096;

impl Seen {
    fn now(table: &LeafTable, id: u32, values: bool) -> Result<Self> {
        let operation = "accumulating gradients";
        let tensor = &table.get(id).tensor;
        let version = tensor_state(tensor).during(operation)?.version;
        let values = values.then(|| sampled(tensor)).transpose().during(operation)?;
        Ok(Self {
            id,
            version,
            values: values.map(|part| checksum(&part)).transpose().during(operation)?,
        })
    }
}

fn sampled(tensor: &Tensor) -> std::result::Result<Tensor, tch::TchError> {
    let flat = tensor.f_detach()?.f_reshape([-1])?;
    let length = (flat.numel() as i64).min(SAMPLED_ELEMENTS);
    flat.f_narrow(0, 0, length)
}

impl Accumulation {
    /// Groups of so many backwards.
    pub(super) fn new(every: usize) -> Self {
        Self { every, in_group: 0, pending: BTreeSet::new(), before: Vec::new() }
    }

    /// A backward begins. Whether it is to average; not if it is `muted`, which leaves the group as it is.
    ///
    /// # Errors
    /// When gradients that were not averaged have been used.
    pub(super) fn begin(&mut self, table: &LeafTable, muted: bool) -> Result<bool> {
        if self.stepped(table)?.is_some() {
            // After the remainder of a group was averaged; else the next line is an error.
            self.check(table)?;
            self.in_group = 0;
            self.before.clear();
        }
        if muted {
            return Ok(false);
        }
        self.in_group = (self.in_group + 1) % self.every;
        Ok(self.in_group == 0)
    }

    /// A backward that reached these leaves was not averaged.
    pub(super) fn keep(&mut self, table: &LeafTable, ids: &[u32]) -> Result<()> {
        self.pending.extend(ids);
        let mut by_size: Vec<u32> = self.pending.iter().copied().collect();
        by_size.sort_by_key(|&id| table.get(id).elements);
        let seen = by_size.iter().filter(|&&id| !table.get(id).gone);
        self.before = seen
            .enumerate()
            .map(|(index, &id)| Seen::now(table, id, index < SAMPLED))
            .collect::<Result<Vec<_>>>()?;
        Ok(())
    }

    /// The leaves whose gradients are to be averaged with those of the backward that begins, ascending. A gradient that was
    /// taken away since is none.
    pub(super) fn pending(&self, table: &LeafTable) -> Vec<u32> {
        let has_gradient = |id: &u32| {
            let leaf = table.get(*id);
            !leaf.gone && leaf.tensor.grad().defined()
        };
        self.pending.iter().copied().filter(has_gradient).collect()
    }

    /// Whether a group is under way whose gradients have not been averaged.
    pub(super) fn is_open(&self) -> bool {
        self.in_group > 0 && !self.pending.is_empty()
    }

    /// All gradients have been averaged.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
        if self.in_group == 0 {
            self.before.clear();
        }
    }

    /// An error if gradients that were not averaged have been used.
    pub(super) fn check(&self, table: &LeafTable) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        match self.stepped(table)? {
            None => Ok(()),
            Some(id) => Err(Error::unsupported(
                format!(
                    "`{}` was changed by gradients that had not been averaged yet: {}",
                    table.get(id).name,
                    self.place()
                ),
                "step after the backward that averages, or call `average_gradients` before a step that comes earlier",
            )),
        }
    }

    fn place(&self) -> String {
        match self.in_group {
            0 => "those of backwards inside `no_sync`".to_owned(),
            1 => format!("1 of the {} backwards of a group had been", self.every),
            n => format!("{n} of the {} backwards of a group had been", self.every),
        }
    }

    /// A leaf of this group that has been written to since.
    fn stepped(&self, table: &LeafTable) -> Result<Option<u32>> {
        for before in self.before.iter().filter(|before| !table.get(before.id).gone) {
            if Seen::now(table, before.id, before.values.is_some())? != *before {
                return Ok(Some(before.id));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;
    use crate::bridge::identity;

    fn parameter(table: &mut LeafTable) -> Tensor {
        let tensor = Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        table.add(identity(&tensor).unwrap(), &tensor, Some("w".to_owned()));
        tensor
    }

    /// As libtorch's SGD: past the version counter.
    fn step(parameter: &mut Tensor) {
        let mut values = crate::bridge::data_alias(parameter).unwrap();
        values -= 1.0;
    }

    #[test]
    fn p19_one_backward_in_a_group_averages() {
        let mut table = LeafTable::default();
        let mut w = parameter(&mut table);
        let mut group = Accumulation::new(3);
        for _ in 0..2 {
            let mut averages = Vec::new();
            for _ in 0..3 {
                averages.push(group.begin(&table, false).unwrap());
                match averages.last() {
                    Some(true) => group.clear(),
                    _ => group.keep(&table, &[0]).unwrap(),
                }
            }
            assert_eq!(averages, [false, false, true]);
            step(&mut w);
        }
    }

    #[test]
    fn p19_a_step_too_early_is_an_error_that_says_where() {
        let mut table = LeafTable::default();
        let mut w = parameter(&mut table);
        let mut group = Accumulation::new(3);
        assert!(!group.begin(&table, false).unwrap());
        group.keep(&table, &[0]).unwrap();
        assert!(group.check(&table).is_ok());
        step(&mut w);
        let error = group.begin(&table, false).unwrap_err().to_string();
        assert!(error.contains("`w` was changed") && error.contains("1 of the 3"), "{error}");
    }

    #[test]
    fn p19_a_remainder_that_was_averaged_ends_its_group_with_the_step() {
        let mut table = LeafTable::default();
        let mut w = parameter(&mut table);
        for stepped in [true, false] {
            let mut group = Accumulation::new(3);
            group.begin(&table, false).unwrap();
            group.keep(&table, &[0]).unwrap();
            group.clear();
            if stepped {
                step(&mut w);
            }
            assert!(!group.begin(&table, false).unwrap());
            group.keep(&table, &[0]).unwrap();
            assert_eq!(group.begin(&table, false).unwrap(), !stepped);
        }
    }
}
