//! Rank arithmetic: pure functions of numbers.

/// CPU threads for one rank: the usable cores shared out over the ranks of the host, at least 1.
///
/// torchrun sets 1 for every rank whatever the machine has; sharing the cores out keeps all of them
/// busy and none contended.
///
/// ```
/// assert_eq!(ddp_env::plan::threads_per_rank(8, 3), 2);
/// assert_eq!(ddp_env::plan::threads_per_rank(2, 4), 1);
/// ```
#[must_use]
pub fn threads_per_rank(usable_cores: usize, local_world_size: usize) -> usize {
    (usable_cores / local_world_size.max(1)).max(1)
}

/// The rank of process `local_rank` on host `node_rank`, where every host runs `ranks_per_node` of
/// them.
///
/// `None` when `local_rank` is not one of the host's, or the number does not fit.
///
/// ```
/// assert_eq!(ddp_env::plan::global_rank(1, 4, 2), Some(6));
/// assert_eq!(ddp_env::plan::global_rank(0, 4, 4), None);
/// ```
#[must_use]
pub fn global_rank(node_rank: usize, ranks_per_node: usize, local_rank: usize) -> Option<usize> {
    if local_rank >= ranks_per_node {
        return None;
    }
    node_rank.checked_mul(ranks_per_node)?.checked_add(local_rank)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranks_of_all_nodes_count_through(nodes in 1_usize..20, per_node in 1_usize..20) {
            let ranks: Vec<_> = (0..nodes)
                .flat_map(|node| (0..per_node).map(move |local| global_rank(node, per_node, local)))
                .collect();
            let expected: Vec<_> = (0..nodes * per_node).map(Some).collect();
            prop_assert_eq!(ranks, expected);
        }

        #[test]
        fn threads_share_the_cores_out(cores in 0_usize..300, ranks in 0_usize..300) {
            let threads = threads_per_rank(cores, ranks);
            prop_assert!(threads >= 1);
            prop_assert!(threads == 1 || threads * ranks <= cores);
            prop_assert!(cores < (threads + 1) * ranks.max(1));
        }
    }

    #[test]
    fn a_number_that_does_not_fit_is_none() {
        assert_eq!(global_rank(usize::MAX, 2, 0), None);
    }
}
