//! What the ranks settle among themselves before or after a backward: small messages on the control plane.
//!
//! All ranks call these together.
use std::collections::HashSet;

use tch::Tensor;

use crate::bridge::checksum;
use crate::control::Header;
use crate::data::weight::Counts;
use crate::error::{During, Error, Result};
use crate::group::Group;
use crate::sync::leaf::{LeafTable, first_difference};
use crate::sync::stores::StoreSet;

/// Requires that the batch that this backward belongs to, if the ranks share one, has as many rows on every rank.
pub(super) fn share_one_batch(headers: &[Header]) -> Result<()> {
    let rows = |rank: usize| match Counts::batch_of(headers[rank].extra) {
        0 => format!("rank {rank} steps outside of a shared batch"),
        rows => format!("rank {rank} steps on its part of {rows} samples"),
    };
    let mut present = (0..headers.len()).filter(|&rank| !headers[rank].aside);
    let Some(first) = present.next() else { return Ok(()) };
    let batch = |rank: usize| Counts::batch_of(headers[rank].extra);
    match present.find(|&rank| batch(rank) != batch(first)) {
        Some(rank) => Err(Error::mismatch(
            format!("{}, {}", rows(first), rows(rank)),
            "read the same data, in the same order and in batches of one size, on every rank",
        )),
        None => Ok(()),
    }
}

/// The leaves, of `known` ones, that any rank reached.
pub(super) fn union(group: &mut Group, known: usize, own: &[u32]) -> Result<Vec<u32>> {
    let mut bits = vec![0_u8; known.div_ceil(8)];
    for &id in own {
        bits[id as usize / 8] |= 1 << (id % 8);
    }
    let (control, watch) = group.control();
    for other in control.gather_bytes(watch, &bits)? {
        for (byte, other) in bits.iter_mut().zip(other) {
            *byte |= other;
        }
    }
    Ok((0..known as u32).filter(|&id| bits[id as usize / 8] & (1 << (id % 8)) != 0).collect())
}

/// Of these leaves, those that any rank has a gradient for; `own` are this rank's.
pub(super) fn with_gradient(group: &mut Group, ids: &[u32], own: &[u32]) -> Result<Vec<u32>> {
    let place = |id: &u32| ids.binary_search(id).ok().map(|place| place as u32);
    let own: Vec<u32> = own.iter().filter_map(place).collect();
    let places = union(group, ids.len(), &own)?;
    Ok(places.into_iter().map(|place| ids[place as usize]).collect())
}

/// Compares the values of those of these leaves that were never compared. Returns the ones that differ; none counts as
/// unequal after this.
pub(super) fn compare_values(
    group: &mut Group,
    table: &mut LeafTable,
    ids: &[u32],
) -> Result<Vec<u32>> {
    let new: Vec<u32> = ids.iter().copied().filter(|&id| !table.get(id).equal).collect();
    if new.is_empty() {
        return Ok(new);
    }
    let sums: Vec<i64> = new
        .iter()
        .map(|&id| checksum(&table.get(id).tensor).map(u64::cast_signed))
        .collect::<std::result::Result<_, _>>()
        .during("comparing parameters")?;
    let (control, watch) = group.control();
    let all = control.gather_words(watch, &sums)?;
    for &id in &new {
        table.get_mut(id).equal = true;
    }
    let differs = |index: usize| all.iter().any(|sums| sums[index] != all[0][index]);
    Ok(new.iter().enumerate().filter(|(index, _)| differs(*index)).map(|(_, &id)| id).collect())
}

/// Compares all parameters and buffers of the replicas, those excepted that stand aside, and names the first that differs.
pub(super) fn compare_replicas(
    group: &mut Group,
    table: &LeafTable,
    stores: &StoreSet,
) -> Result<()> {
    let operation = "comparing replicas";
    let leaves = (0..table.len() as u32).map(|id| table.get(id));
    let named: Vec<(&str, Option<&Tensor>)> = leaves
        .map(|leaf| (leaf.name.as_str(), (!leaf.gone).then_some(&leaf.tensor)))
        .chain(stores.named_buffers().map(|(name, tensor)| (name, Some(tensor))))
        .collect();
    let mut bytes = Vec::with_capacity(8 * named.len());
    for (_, tensor) in &named {
        // 0: nothing to compare.
        let sum = tensor.map_or(Ok(0), |tensor| checksum(tensor).during(operation))?;
        bytes.extend(sum.to_le_bytes());
    }
    let aside: HashSet<usize> = group.asides().collect();
    let backwards = group.backwards();
    let (control, watch) = group.control();
    let all = control.gather_bytes(watch, &bytes)?;
    let present: Vec<(usize, &[[u8; 8]])> = all
        .iter()
        .enumerate()
        .filter(|(rank, _)| !aside.contains(rank))
        .map(|(rank, bytes)| (rank, bytes.as_chunks().0))
        .collect();
    let Some(((first, reference), others)) = present.split_first() else { return Ok(()) };
    for (index, (name, _)) in named.iter().enumerate() {
        let differs = |sums: &[[u8; 8]]| {
            let pair = reference.get(index).zip(sums.get(index));
            pair.is_some_and(|(a, b)| a != b && *a != [0; 8] && *b != [0; 8])
        };
        let ranks: Vec<String> = others
            .iter()
            .filter(|(_, sums)| differs(sums))
            .map(|(rank, _)| rank.to_string())
            .collect();
        if !ranks.is_empty() {
            return Err(Error::mismatch(
                format!(
                    "in backward number {backwards} `{name}` has other values on rank {} than on rank {first}",
                    ranks.join(" and ")
                ),
                "look for what changes it on one rank alone, since the last comparison: a write under `main_only`, \
                 random numbers, a step on gradients that were not averaged",
            ));
        }
    }
    Ok(())
}

/// The leaves in `placed` in the order in which rank 0's gradients came; those that did not come follow.
pub(super) fn order_of_gradients(
    group: &mut Group,
    placed: &[u32],
    came: &[u32],
) -> Result<Vec<u32>> {
    let known: HashSet<u32> = placed.iter().copied().collect();
    let seen: HashSet<u32> = came.iter().copied().collect();
    let first = came.iter().filter(|id| known.contains(id));
    let rest = placed.iter().filter(|id| !seen.contains(id));
    let order: Vec<i64> = first.chain(rest).map(|&id| i64::from(id)).collect();
    let tensor = Tensor::from_slice(&order);
    let (control, watch) = group.control();
    control.broadcast(watch, &tensor, 0)?;
    let order = Vec::<i64>::try_from(tensor).during("agreeing on the order of buckets")?;
    Ok(order.iter().filter_map(|&id| u32::try_from(id).ok()).collect())
}

/// The error for ranks that know different parameters; `own` lists this rank's.
pub(super) fn different_parameters(group: &mut Group, own: &str) -> Result<Error> {
    let (control, watch) = group.control();
    let all = control.gather_texts(watch, own)?;
    let facts = first_difference(&all)
        .map_or_else(|| "their parameters differ".to_owned(), |(_, text)| text);
    Ok(Error::mismatch(
        facts,
        "build the same model, in the same order, on every rank, and register a store whose parts only some ranks use",
    ))
}
