//! Several hosts with several ranks each: shared memory inside a host, Gloo between the first ranks of the hosts.
//!
//! Every operation goes up, across and down. A sum is taken on each host, then over the hosts' first ranks, then copied on each
//! host. So a bucket crosses the network once a host, and not once a rank.
//!
//! # Note [Orders]
//!
//! Transports match operations by the order in which a rank issues them, so that order must be the same on all
//! ranks. The first ranks go down when the network is done, the others at once, each between other operations that go up. Hence
//! there is one ring for up and one for down; on each of them, and across, no operation overtakes the one before it.
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ddp_env::Topology;
use tch::{Kind, Tensor};

use super::{Communicator, Gloo, GradientMemory, Host, ReduceOp, Shm, Work, lock, wait_within};
use crate::bridge::BridgeError;
use crate::control::Control;
use crate::error::Result as GroupResult;
use crate::watch::Watch;

type Result<T> = std::result::Result<T, BridgeError>;

/// The longest wait for one stage of the oldest operation, before looking at those behind it.
const NAP: Duration = Duration::from_micros(500);

/// How the ranks lie on the hosts: as many on each, one host after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    rank: usize,
    per_host: usize,
    pub(crate) hosts: usize,
}

impl Grid {
    /// `None` when one level does: on one host, with one rank a host, or with ranks that lie otherwise. The same on all ranks.
    pub(crate) fn find(
        control: &Control,
        watch: &Watch,
        topology: Topology,
    ) -> GroupResult<Option<Self>> {
        let Topology { rank, local_rank, local_world_size, node_rank, .. } = topology;
        let words = [node_rank, local_rank, local_world_size].map(|word| word as i64);
        let all = control.gather_words(watch, &words)?;
        Ok(Self::of(rank, &all))
    }

    /// From each rank's host, its position there, and the number of ranks there.
    fn of(rank: usize, all: &[Vec<i64>]) -> Option<Self> {
        let per_host = all.first().and_then(|words| usize::try_from(words[2]).ok())?;
        let hosts = all.len() / per_host.max(1);
        let regular = all.iter().enumerate().all(|(rank, words)| {
            words[..]
                == [rank / per_host.max(1), rank % per_host.max(1), per_host].map(|n| n as i64)
        });
        let wanted = per_host > 1 && hosts > 1 && regular && all.len() == per_host * hosts;
        wanted.then_some(Self { rank, per_host, hosts })
    }

    pub(crate) fn host(self) -> usize {
        self.rank / self.per_host
    }

    /// Whether this rank speaks for its host.
    pub(crate) fn leads(self) -> bool {
        self.rank.is_multiple_of(self.per_host)
    }

    pub(crate) fn place(self) -> Host {
        let first = self.host() * self.per_host;
        Host { rank: self.rank, ranks: first..first + self.per_host }
    }
}

/// The transport.
pub(crate) struct TwoLevel {
    state: Arc<Mutex<State>>,
}

impl TwoLevel {
    /// `across` connects the hosts' first ranks, and is there on those.
    pub(crate) fn new(grid: Grid, up: Shm, down: Shm, across: Option<Gloo>) -> Self {
        let state = State { grid, up, down, across, issued: 0, pending: VecDeque::new() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn issue(&self, tensor: &Tensor, task: Task) -> Result<Box<dyn Work>> {
        let mut state = lock(&self.state);
        let number = state.issued;
        state.issued += 1;
        let mut operation = Operation {
            number,
            task,
            tensor: tensor.shallow_clone(),
            stage: Stage::Up,
            work: None,
        };
        operation.work = state.start(&operation)?;
        state.pending.push_back(operation);
        state.advance()?;
        Ok(Box::new(TwoLevelWork { number, state: Arc::clone(&self.state) }))
    }
}

impl Communicator for TwoLevel {
    fn name(&self) -> &'static str {
        "shm+gloo"
    }

    fn all_reduce(&self, tensor: &Tensor, op: ReduceOp) -> Result<Box<dyn Work>> {
        self.issue(tensor, Task::Reduce(op, 1.0))
    }

    fn sum_scaled(&self, tensor: &Tensor, scale: f64) -> Result<Box<dyn Work>> {
        self.issue(tensor, Task::Reduce(ReduceOp::Sum, scale))
    }

    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Box<dyn Work>> {
        self.issue(tensor, Task::Broadcast { root })
    }

    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Work>> {
        self.issue(input, Task::Gather { output: output.shallow_clone() })
    }

    fn allocate(&self, elements: usize, kind: Kind) -> Result<Option<Tensor>> {
        lock(&self.state).up.allocate(elements, kind)
    }

    fn gradient_memory(&self) -> Option<Arc<GradientMemory>> {
        lock(&self.state).up.gradient_memory()
    }

    fn trim(&self) {
        let state = lock(&self.state);
        state.up.trim();
        state.down.trim();
    }

    fn progress(&self) -> Result<()> {
        lock(&self.state).advance()
    }
}

enum Task {
    /// With what this rank's tensor is multiplied with.
    Reduce(ReduceOp, f64),
    Broadcast {
        root: usize,
    },
    /// `output` has a row for each rank.
    Gather {
        output: Tensor,
    },
}

/// Where an operation is; what is later is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Up,
    Across,
    Down,
    Done,
}

impl Stage {
    fn next(self) -> Self {
        match self {
            Stage::Up => Stage::Across,
            Stage::Across => Stage::Down,
            Stage::Down | Stage::Done => Stage::Done,
        }
    }
}

struct Operation {
    number: u64,
    task: Task,
    tensor: Tensor,
    stage: Stage,
    /// What this stage waits for, if it is anything to this rank.
    work: Option<Box<dyn Work>>,
}

struct State {
    grid: Grid,
    up: Shm,
    down: Shm,
    across: Option<Gloo>,
    issued: u64,
    /// Issued and not ended, in order.
    pending: VecDeque<Operation>,
}

impl State {
    /// Begins the stage that the operation is at.
    fn start(&self, operation: &Operation) -> Result<Option<Box<dyn Work>>> {
        let Operation { task, tensor, stage, .. } = operation;
        let grid = self.grid;
        let (host, per_host) = (grid.host(), grid.per_host);
        let work = match (stage, task, &self.across) {
            (Stage::Up, Task::Reduce(ReduceOp::Sum, scale), _) => {
                self.up.sum_scaled(tensor, *scale)?
            }
            (Stage::Up, Task::Reduce(op, _), _) => self.up.all_reduce(tensor, *op)?,
            (Stage::Up, Task::Broadcast { root }, _) if root / per_host == host => {
                self.up.broadcast(tensor, root % per_host)?
            }
            (Stage::Up, Task::Gather { output }, _) => {
                self.up.all_gather(&rows_of(output, host, grid.hosts)?, tensor)?
            }
            (Stage::Across, Task::Reduce(op, _), Some(across)) => across.all_reduce(tensor, *op)?,
            (Stage::Across, Task::Broadcast { root }, Some(across)) => {
                across.broadcast(tensor, root / per_host)?
            }
            (Stage::Across, Task::Gather { output }, Some(across)) => {
                let own = rows_of(output, host, grid.hosts)?;
                let own =
                    own.f_detach_copy().map_err(|error| BridgeError::new(error.to_string()))?;
                across.all_gather(output, &own)?
            }
            (Stage::Down, Task::Reduce(..), _) => self.down.broadcast(tensor, 0)?,
            (Stage::Down, Task::Broadcast { root }, _) if root / per_host != host => {
                self.down.broadcast(tensor, 0)?
            }
            (Stage::Down, Task::Gather { output }, _) => self.down.broadcast(output, 0)?,
            (Stage::Up | Stage::Down, Task::Broadcast { .. }, _)
            | (Stage::Across, _, None)
            | (Stage::Done, ..) => return Ok(None),
        };
        Ok(Some(work))
    }

    /// Does what can be done without waiting. See Note [Orders].
    fn advance(&mut self) -> Result<()> {
        let mut ahead = Stage::Done;
        for index in 0..self.pending.len() {
            loop {
                let operation = &mut self.pending[index];
                if let Some(work) = &operation.work
                    && !work.is_done()?
                {
                    break;
                }
                operation.work = None;
                let next = operation.stage.next();
                if operation.stage == Stage::Done || next > ahead {
                    break;
                }
                operation.stage = next;
                self.pending[index].work = self.start(&self.pending[index])?;
            }
            ahead = self.pending[index].stage;
        }
        while self.pending.front().is_some_and(|oldest| oldest.stage == Stage::Done) {
            let _ = self.pending.pop_front();
        }
        Ok(())
    }

    fn ended(&self, number: u64) -> bool {
        self.pending.front().is_none_or(|oldest| oldest.number > number)
    }
}

/// The rows of one host in a tensor with a row for each rank.
fn rows_of(output: &Tensor, host: usize, hosts: usize) -> Result<Tensor> {
    let part = output.numel() as i64 / hosts as i64;
    output
        .f_view([-1])
        .and_then(|flat| flat.f_narrow(0, host as i64 * part, part))
        .map_err(|error| BridgeError::new(error.to_string()))
}

/// An operation, for whoever waits for it.
struct TwoLevelWork {
    number: u64,
    state: Arc<Mutex<State>>,
}

impl Work for TwoLevelWork {
    fn is_done(&self) -> Result<bool> {
        self.wait(Duration::ZERO)
    }

    fn wait(&self, limit: Duration) -> Result<bool> {
        let mut state = lock(&self.state);
        wait_within(limit, |left| {
            // The oldest one is never held up by another one, so it waits for something of its own.
            if !left.is_zero()
                && let Some(work) = state.pending.front().and_then(|oldest| oldest.work.as_ref())
            {
                let _ = work.wait(left.min(NAP))?;
            }
            state.advance()?;
            Ok(state.ended(self.number))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(sizes: &[i64]) -> Vec<Vec<i64>> {
        let each = |(host, size): (usize, &i64)| {
            let size = *size;
            (0..size).map(move |local| vec![host as i64, local, size])
        };
        sizes.iter().enumerate().flat_map(each).collect()
    }

    #[test]
    fn two_levels_are_for_equal_hosts_with_several_ranks() {
        let grid = Grid::of(4, &hosts(&[3, 3, 3])).unwrap();
        assert_eq!((grid.hosts, grid.host(), grid.leads()), (3, 1, false));
        assert_eq!(grid.place().ranks, 3..6);
        assert!(Grid::of(3, &hosts(&[3, 3])).unwrap().leads());
        for sizes in [&[4][..], &[1, 1, 1], &[2, 3], &[3, 2, 1]] {
            assert_eq!(Grid::of(0, &hosts(sizes)), None, "{sizes:?}");
        }
        // Ranks dealt out to the hosts in turn.
        let dealt: Vec<Vec<i64>> = (0..4).map(|rank| vec![rank % 2, rank / 2, 2]).collect();
        assert_eq!(Grid::of(0, &dealt), None);
    }
}
