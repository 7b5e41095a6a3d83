//! Where a loop over data tells the scope how far it is, and what a program says about its gradients.
//!
//! Two moments need it: the draw of a batch, when layers that were added since the last one can still be made equal before they
//! are used; and the end of the loop, when what has accumulated in a short group of backwards can still be averaged before a step
//! that follows. Neither sends a message unless there is such a layer or group.
use tch::Tensor;

use crate::error::Result;
use crate::scope::end_process;
use crate::session;

/// A loop over data has got a batch, or found that there are no more.
pub(crate) fn drawn(batch: bool) {
    if let Some(session) = session::current() {
        or_end(if batch { session.step_begins() } else { session.loop_ends() });
    }
}

fn or_end(result: Result<()>) {
    if let Err(error) = result {
        end_process(&error);
    }
}

/// The items of a loop, as they are, with the scope told where it stands.
#[derive(Clone, Debug)]
pub struct Steps<I> {
    items: I,
}

impl<I> Steps<I> {
    pub(crate) fn new(items: I) -> Self {
        Self { items }
    }
}

impl<I: Iterator> Iterator for Steps<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        let item = self.items.next();
        drawn(item.is_some());
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

impl<I: ExactSizeIterator> ExactSizeIterator for Steps<I> {}

/// Averages the gradients that backwards have left to each rank: those of a group of [`accumulate`](crate::Options::accumulate)
/// backwards that is not complete, and those of [`Scope::no_sync`](crate::Scope::no_sync). For a step that comes earlier than the
/// backward that would average them.
///
/// All ranks must call it. What was averaged before stays as it is. With one rank, or outside a scope, it does nothing. When the
/// other ranks cannot be asked, the process ends with the error.
pub fn average_gradients() {
    if let Some(session) = session::current() {
        or_end(session.average_pending());
    }
}

/// Says that a leaf outside any store is data and no parameter: an input whose gradient is wanted, an activation that was
/// detached to be taken up again. Its value and its gradient stay each rank's own, until the scope ends.
///
/// A leaf that nobody says this about is a parameter, which is equal on all ranks and has the mean gradient.
///
/// ```
/// use tch::{Device, Kind, Tensor};
///
/// let x = Tensor::randn([8, 3], (Kind::Float, Device::Cpu)).set_requires_grad(true);
/// ddp_runtime::ignore(&x);
/// x.square().sum(Kind::Float).backward();
/// let adversarial = &x + x.grad().sign() * 0.1;
/// # assert_eq!(adversarial.size(), [8, 3]);
/// ```
pub fn ignore(leaf: &Tensor) {
    if let Some(session) = session::current() {
        or_end(session.ignore(leaf));
    }
}
