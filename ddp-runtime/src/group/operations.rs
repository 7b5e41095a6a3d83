//! What a group does with tensors, once all ranks have announced it.
use tch::{Kind, Tensor};

use super::Group;
use crate::comm::{ReduceOp, Work};
use crate::error::{During, Error, Result};
use crate::trace;

/// An all-reduce under way.
pub(crate) struct Started {
    work: Box<dyn Work>,
    /// The transport only adds.
    divide: bool,
}

impl Group {
    /// Waits for an operation of the data plane.
    pub(crate) fn wait(&self, work: &dyn Work, operation: &str) -> Result<()> {
        let _span = trace::span(trace::Kind::Wait);
        self.watch.wait(work, operation)
    }

    /// Combines a contiguous tensor over all ranks, in place. All ranks have announced it.
    pub(crate) fn all_reduce(&self, tensor: &Tensor, op: ReduceOp, operation: &str) -> Result<()> {
        let started = self.start_all_reduce(tensor, op, operation)?;
        self.finish_all_reduce(&started, tensor, operation)
    }

    /// As [`all_reduce`](Self::all_reduce), without waiting.
    pub(crate) fn start_all_reduce(
        &self,
        tensor: &Tensor,
        op: ReduceOp,
        operation: &str,
    ) -> Result<Started> {
        // The transport counts all ranks, also those that stand aside.
        let some_aside = self.asides().next().is_some();
        let divide = op == ReduceOp::Avg && (some_aside || !self.data.averages(tensor));
        let op = if divide { ReduceOp::Sum } else { op };
        let work = self
            .data
            .all_reduce(tensor, op)
            .map_err(|error| self.watch.explain(operation, &error))?;
        Ok(Started { work, divide })
    }

    /// Waits for what [`start_all_reduce`](Self::start_all_reduce) began on this tensor.
    pub(crate) fn finish_all_reduce(
        &self,
        started: &Started,
        tensor: &Tensor,
        operation: &str,
    ) -> Result<()> {
        self.wait(started.work.as_ref(), operation)?;
        if started.divide {
            let ranks = self.topology().world_size - self.asides().count();
            let _ = tensor.shallow_clone().f_div_scalar_(ranks as f64).during(operation)?;
        }
        Ok(())
    }

    /// Copies the root's contiguous tensor over everyone else's. All ranks have announced it.
    pub(crate) fn broadcast(&self, tensor: &Tensor, root: usize, operation: &str) -> Result<()> {
        let work = self
            .data
            .broadcast(tensor, root)
            .map_err(|error| self.watch.explain(operation, &error))?;
        self.wait(work.as_ref(), operation)
    }

    /// As [`broadcast`](Self::broadcast), for several tensors of one device in one launch, where the transport can do that.
    pub(crate) fn broadcast_all(
        &self,
        tensors: &[&Tensor],
        root: usize,
        operation: &str,
    ) -> Result<bool> {
        let work = self
            .data
            .broadcast_all(tensors, root)
            .map_err(|error| self.watch.explain(operation, &error))?;
        match work {
            Some(work) => self.wait(work.as_ref(), operation).map(|()| true),
            None => Ok(false),
        }
    }

    /// Fills `output` with the ranks' inputs, all contiguous. All ranks have announced it.
    pub(crate) fn all_gather(
        &self,
        output: &Tensor,
        input: &Tensor,
        operation: &str,
    ) -> Result<()> {
        let work = self
            .data
            .all_gather(output, input)
            .map_err(|error| self.watch.explain(operation, &error))?;
        self.wait(work.as_ref(), operation)
    }
}

/// An error if the ranks' numbers of this kind cannot be combined so.
pub(crate) fn check_mean(op: ReduceOp, kind: Kind, operation: &str) -> Result<()> {
    let is_fraction = matches!(
        kind,
        Kind::Half
            | Kind::BFloat16
            | Kind::Float
            | Kind::Double
            | Kind::ComplexHalf
            | Kind::ComplexFloat
            | Kind::ComplexDouble
    );
    if op != ReduceOp::Avg || is_fraction {
        return Ok(());
    }
    Err(Error::unsupported(
        format!("{operation}: the mean of tensors of kind {kind:?}"),
        "convert them to Float or Double first, or take their sum",
    ))
}
