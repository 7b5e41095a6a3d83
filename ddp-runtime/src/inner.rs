//! Group and reducer, which work together under the session's lock: announcing an operation, and accompanying the others where this
//! rank stands aside.
use tch::{Device, Kind, Tensor};

use crate::control::{Header, Operation};
use crate::error::{During, Error, Result};
use crate::group::{Brings, Group};
use crate::options::Options;
use crate::sync::Reducer;
use crate::uneven;

/// The parts that work together.
pub(crate) struct Inner {
    pub(crate) group: Group,
    pub(crate) reducer: Reducer,
}

impl Inner {
    /// Announces an operation, and returns when all ranks do the same. Where this rank stands aside (see
    /// [`uneven`](crate::uneven)) it accompanies the others until then.
    pub(crate) fn announce(
        &mut self,
        operation: Operation,
        subject: u64,
        extra: i64,
    ) -> Result<Vec<Header>> {
        let rank = self.group.topology().rank;
        if matches!(operation, Operation::Save | Operation::Leave) {
            self.reducer.check_accumulated()?;
        }
        loop {
            let header = Header {
                subject,
                table: self.reducer.table_hash(),
                extra,
                ..Header::new(operation, self.group.backwards())
            };
            let headers = self.group.announce_as(header)?;
            if matches!(headers[rank].operation, Operation::Save | Operation::Leave) {
                self.catch_up()?;
            }
            if !headers[rank].aside {
                return Ok(headers);
            }
            self.accompany(&headers, header)?;
        }
    }

    /// Before a save and at the end all ranks have the same: the weights of those that have not stood aside, and the lead's
    /// buffers, which a forward without a backward has changed on each rank in its own way.
    fn catch_up(&mut self) -> Result<()> {
        match self.group.course().take_stale() {
            Some(source) => self.reducer.spread_weights(&self.group, source),
            None => self.reducer.spread_buffers(&self.group),
        }
    }

    /// Of each rank that has values, `count` of them a channel, its `own` as a row, from inside a forward of `layer`.
    pub(crate) fn gather_in_pass(
        &mut self,
        layer: &str,
        count: i64,
        own: &Tensor,
    ) -> Result<Tensor> {
        if self.reducer.is_averaging() {
            // Buckets may have been launched that other ranks have not.
            return Err(Error::unsupported(
                format!("the training of {layer} on a GPU runs inside a backward"),
                "keep its store local with `local_batch_norm`",
            ));
        }
        self.group.gather_in_pass(layer, count, own)
    }

    /// Adds up `sums` over all ranks, in place, from inside a backward of `layer`. See Note [Buckets and layers].
    pub(crate) fn add_up_in_pass(&mut self, layer: &str, sums: &Tensor) -> Result<()> {
        let Self { group, reducer } = self;
        let complete = reducer.complete_runs() as i64;
        let headers =
            group.announce_layer(Operation::NormBackward, layer, Brings::of(sums), complete)?;
        reducer.launch_agreed(group, &headers)?;
        group.add_up_in_pass(sums)?;
        reducer.layer_is_through();
        Ok(())
    }

    /// Takes part in what the other ranks do, with nothing to add. `own` is what this rank has announced.
    fn accompany(&mut self, headers: &[Header], own: Header) -> Result<()> {
        let now = headers[uneven::lead(headers)];
        let group = &mut self.group;
        match now.operation {
            Operation::Backward => self.reducer.accompany(group, headers, own),
            Operation::NormForward | Operation::NormBackward => group.accompany_in_pass(headers),
            Operation::Vote | Operation::Barrier | Operation::Epoch => Ok(()),
            Operation::Save => {
                let (control, watch) = group.control();
                control.gather_bytes(watch, &[]).map(drop)
            }
            Operation::Shuffle => share_order(group, now.extra, None).map(drop),
            Operation::AllReduce => crate::collective::accompany_all_reduce(group),
            Operation::Gradients
            | Operation::Collective
            | Operation::Stores
            | Operation::Leave
            | Operation::Checkpoint
            | Operation::Resume => {
                let rank = group.topology().rank;
                let what = now.operation.describe(now.backwards);
                Err(Error::unsupported(
                    format!(
                        "rank {rank} has no more steps to take, and cannot take part while others are {what}"
                    ),
                    "add layers and call collectives, all-reduces excepted, where all ranks still train",
                ))
            }
        }
    }
}

/// The order of `n` places that the lead draws, on every rank.
pub(crate) fn share_order(
    group: &mut Group,
    n: i64,
    draw: Option<&mut dyn FnMut() -> Result<Tensor>>,
) -> Result<Tensor> {
    let order = match draw.filter(|_| group.is_lead()) {
        Some(draw) => draw()?,
        None => Tensor::f_zeros([n], (Kind::Int64, Device::Cpu)).during("shuffling data")?,
    };
    let lead = group.lead();
    if n > 0 {
        let (control, watch) = group.control();
        control.broadcast(watch, &order, lead)?;
    }
    Ok(order)
}

/// Refuses ranks whose options would have them do different things.
pub(crate) fn check_options(group: &mut Group, options: &Options) -> Result<()> {
    let own = options.shared();
    let (control, watch) = group.control();
    let all = control.gather_texts(watch, &own)?;
    for (rank, other) in all.iter().enumerate() {
        if let Some((first, other)) = all[0].lines().zip(other.lines()).find(|(a, b)| a != b) {
            return Err(Error::mismatch(
                format!("rank 0 has the option {first}, rank {rank} {other}"),
                "give all ranks the same options, in the attribute and in the environment",
            ));
        }
    }
    Ok(())
}
