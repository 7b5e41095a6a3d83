//! Where a process stands among the processes of its job.

/// The place of one process: among all processes, among those of its host, and its host among the
/// hosts.
///
/// Made by [`Topology::new`] only, so that the numbers always fit each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    /// Position among all processes, from 0.
    pub rank: usize,
    /// Number of processes, at least 1.
    pub world_size: usize,
    /// Position among the processes of this host, from 0. The device of the rank is the one with
    /// this index.
    pub local_rank: usize,
    /// Number of processes on this host, at least 1.
    pub local_world_size: usize,
    /// Position of this host among the hosts, from 0.
    pub node_rank: usize,
    // Private, so that there is no way round the constructor.
    node_count: usize,
}

/// Numbers that cannot describe one process of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A position that is not below the number of positions.
    #[error(
        "{position_name} is {position}, but {size_name} is {size}; positions count from 0, so it \
         must be below"
    )]
    OutOfRange {
        /// What is too large.
        position_name: &'static str,
        /// Its value.
        position: usize,
        /// What bounds it.
        size_name: &'static str,
        /// Its value.
        size: usize,
    },
    /// More processes on one host than there are in all.
    #[error(
        "local_world_size is {local_world_size}, but world_size is {world_size}; a host cannot \
         run more processes than the job has"
    )]
    LargerThanWorld {
        /// Processes on this host.
        local_world_size: usize,
        /// Processes in all.
        world_size: usize,
    },
}

impl Topology {
    /// A process of a job whose hosts all run the same number of processes (the last one perhaps
    /// fewer).
    ///
    /// # Errors
    ///
    /// [`TopologyError`] when a rank is not below its size, or this host has more processes than
    /// the job.
    pub fn new(
        rank: usize,
        world_size: usize,
        local_rank: usize,
        local_world_size: usize,
        node_rank: usize,
    ) -> Result<Self, TopologyError> {
        below("rank", rank, "world_size", world_size)?;
        below("local_rank", local_rank, "local_world_size", local_world_size)?;
        if local_world_size > world_size {
            return Err(TopologyError::LargerThanWorld { local_world_size, world_size });
        }
        below("node_rank", node_rank, "world_size", world_size)?;
        // An uneven job can have more hosts than this one's size lets expect.
        let node_count = world_size.div_ceil(local_world_size).max(node_rank + 1);
        Ok(Self { rank, world_size, local_rank, local_world_size, node_rank, node_count })
    }

    /// The same process with the number of hosts that the launcher named, for jobs with uneven
    /// hosts.
    ///
    /// # Errors
    ///
    /// [`TopologyError::OutOfRange`] when [`node_rank`](Self::node_rank) is not below it.
    pub fn with_node_count(self, node_count: usize) -> Result<Self, TopologyError> {
        below("node_rank", self.node_rank, "node_count", node_count)?;
        Ok(Self { node_count, ..self })
    }

    /// The only process of a job.
    #[must_use]
    pub const fn single() -> Self {
        Self {
            rank: 0,
            world_size: 1,
            local_rank: 0,
            local_world_size: 1,
            node_rank: 0,
            node_count: 1,
        }
    }

    /// Whether this is rank 0, which prints and saves.
    #[must_use]
    pub const fn is_main(&self) -> bool {
        self.rank == 0
    }

    /// Whether this is the first process of its host, which fetches data for the host.
    #[must_use]
    pub const fn is_local_main(&self) -> bool {
        self.local_rank == 0
    }

    /// Number of hosts: what the launcher named, else what the sizes say.
    #[must_use]
    pub const fn node_count(&self) -> usize {
        self.node_count
    }
}

fn below(
    position_name: &'static str,
    position: usize,
    size_name: &'static str,
    size: usize,
) -> Result<(), TopologyError> {
    if position < size {
        return Ok(());
    }
    Err(TopologyError::OutOfRange { position_name, position, size_name, size })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_single_process_is_what_new_makes() {
        assert_eq!(Topology::new(0, 1, 0, 1, 0), Ok(Topology::single()));
        assert!(Topology::single().is_main() && Topology::single().is_local_main());
    }

    #[test]
    fn numbers_that_do_not_fit_are_named() {
        let text = Topology::new(2, 2, 0, 1, 0).unwrap_err().to_string();
        assert!(text.starts_with("rank is 2, but world_size is 2"), "{text}");
        let text = Topology::new(0, 2, 1, 1, 0).unwrap_err().to_string();
        assert!(text.starts_with("local_rank is 1, but local_world_size is 1"), "{text}");
        let text = Topology::new(0, 2, 0, 3, 0).unwrap_err().to_string();
        assert!(text.starts_with("local_world_size is 3, but world_size is 2"), "{text}");
        assert!(Topology::new(0, 0, 0, 0, 0).is_err());
    }

    #[test]
    fn an_uneven_job_keeps_the_number_of_hosts_it_was_told() {
        let topology = Topology::new(2, 3, 0, 1, 1).unwrap();
        assert_eq!(topology.node_count(), 3);
        assert_eq!(topology.with_node_count(2).unwrap().node_count(), 2);
        assert!(topology.with_node_count(1).is_err());
    }

    proptest! {
        #[test]
        fn what_is_accepted_is_consistent(
            rank in 0_usize..9, world in 0_usize..9, local in 0_usize..9, local_world in 0_usize..9,
            node in 0_usize..9,
        ) {
            if let Ok(t) = Topology::new(rank, world, local, local_world, node) {
                prop_assert!(t.rank < t.world_size && t.local_rank < t.local_world_size);
                prop_assert!(t.local_world_size <= t.world_size && t.node_rank < t.node_count());
            }
        }
    }
}
