//! What a backward tells the scope: it begins, a gradient is complete, it is over; and what a layer sends from inside it.
use tch::Tensor;

use super::{ALONE, OUT_OF_ALONE, Session};
use crate::bridge::{BackwardKind, BackwardObserver};
use crate::control::Operation;
use crate::data::weight;
use crate::error::{Error, Result};
use crate::inner::Inner;
use crate::trace;
use crate::vote;

impl Session {
    /// Every rank's values, from inside a forward or a backward. `layer` is the same on all ranks.
    pub(crate) fn exchange_in_pass(
        &self,
        operation: Operation,
        layer: &str,
        values: &[f64],
    ) -> Result<Vec<Vec<f64>>> {
        self.in_pass(operation, layer, |inner| {
            inner.group.exchange_in_pass(operation, layer, values)
        })
    }

    /// Of each rank that has values, `count` of them a channel, its `own` as a row, from inside a forward.
    pub(crate) fn gather_in_pass(&self, layer: &str, count: i64, own: &Tensor) -> Result<Tensor> {
        self.in_pass(Operation::NormForward, layer, |inner| inner.gather_in_pass(layer, count, own))
    }

    /// Adds up `sums` over all ranks, in place, from inside a backward.
    pub(crate) fn add_up_in_pass(&self, layer: &str, sums: &Tensor) -> Result<()> {
        self.in_pass(Operation::NormBackward, layer, |inner| inner.add_up_in_pass(layer, sums))
    }

    /// Runs a collective of a layer from inside a forward or a backward.
    fn in_pass<T>(
        &self,
        operation: Operation,
        layer: &str,
        body: impl FnOnce(&mut Inner) -> Result<T>,
    ) -> Result<T> {
        self.check_usable()?;
        // A backward runs on a thread of the engine where the device has one, and its start has been checked.
        let elsewhere =
            operation == Operation::NormForward && std::thread::current().id() != self.thread;
        let result = if vote::is_alone() {
            Err(Error::unsupported(ALONE, OUT_OF_ALONE))
        } else if elsewhere {
            Err(Error::unsupported(
                format!(
                    "the training of {layer}, which is synchronised, runs on a thread of its own"
                ),
                "run it on the thread that entered the scope, or keep its store local with `local_batch_norm`",
            ))
        } else {
            let inner = &mut *self.lock();
            let Inner { group, reducer } = inner;
            reducer.settle(group).and_then(|()| body(inner))
        };
        self.keep(result)
    }

    /// The result of a callback, as the engine takes it.
    fn in_backward<T>(&self, result: Result<T>) -> std::result::Result<T, String> {
        result.map_err(|error| {
            self.fail(&error);
            error.to_string()
        })
    }
}

impl BackwardObserver for Session {
    fn begin(
        &self,
        leaves: &[(usize, &Tensor)],
        kind: BackwardKind,
    ) -> std::result::Result<f64, String> {
        self.check_usable().map_err(|error| error.to_string())?;
        let refuse = |what: &str, cure: &str| self.in_backward(Err(Error::unsupported(what, cure)));
        if std::thread::current().id() != self.thread {
            return refuse(
                "this backward runs on a thread of its own",
                "step on the thread that entered the scope",
            );
        }
        if vote::is_alone() {
            return refuse(ALONE, OUT_OF_ALONE);
        }
        if kind.create_graph {
            return refuse(
                "a backward that stores gradients with a graph of their own cannot be averaged",
                "take second derivatives through `Tensor::run_backward`, which stores none",
            );
        }
        let Some(counts) = weight::of_step() else {
            return refuse(
                "this backward follows batches that were drawn ahead of it in parts of unequal size or of a sum, so how \
                 much each rank's gradient counts is not known",
                "step on a batch before the next one is drawn; where the loss is a mean, a batch size that the number of \
                 ranks divides, without the smaller last batch, does as well",
            );
        };
        trace::begin_backward();
        let result = {
            let inner = &mut *self.lock();
            inner.reducer.begin(&mut inner.group, leaves, counts, kind)
        };
        self.in_backward(result)
    }

    fn ready(&self, id: u32) -> std::result::Result<(), String> {
        let result = {
            let inner = &mut *self.lock();
            inner.reducer.ready(&mut inner.group, id)
        };
        self.in_backward(result)
    }

    fn end(&self, failed: bool) -> std::result::Result<(), String> {
        let result = {
            let inner = &mut *self.lock();
            inner.reducer.end(&mut inner.group, failed)
        };
        trace::end_backward();
        self.in_backward(result)?;
        self.weights_are_equal();
        Ok(())
    }
}
