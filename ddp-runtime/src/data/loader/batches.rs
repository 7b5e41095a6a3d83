//! One pass through a loader's batches.

use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::crew::Crew;
use super::error::LoaderError;
use super::source::{PassPlan, Reader};
use crate::control::Operation;
use crate::data::weight::Holder;
use crate::data::{LoaderState, Remainder, Share, shard};
use crate::scope::current_share;
use crate::session;
use crate::steps;

/// How far a pass has come, for the loader to tell.
pub(super) struct Progress {
    plan: Arc<PassPlan>,
    begun: LoaderState,
    given: AtomicUsize,
}

impl Progress {
    pub(super) fn new(plan: Arc<PassPlan>, begun: LoaderState) -> Self {
        Self { plan, begun, given: AtomicUsize::new(0) }
    }

    pub(super) fn state(&self) -> LoaderState {
        let given = self.given.load(Ordering::Relaxed);
        let mut state = self.begun.clone();
        state.taken = self.plan.pass.taken(given) as u64;
        state.finished = given >= self.plan.pass.batches();
        state
    }
}

/// Where the batches come from.
pub(super) enum Supply<B> {
    /// This thread makes them.
    Here(Box<dyn Reader<B>>),
    /// Workers make them.
    Crew(Crew<B>),
    /// There are none, for a reason that is told with the first.
    Failed(LoaderError),
    /// No more.
    Over,
}

/// What decides that a pass is over.
pub(super) enum End {
    /// A number of batches, the same on all ranks or by the loader's rule.
    Count(Numbered),
    /// The readers' end, on each rank for itself.
    Own,
    /// The first rank whose readers end, which all ranks hear of with each batch.
    Voted,
}

/// The pass of a loader that knows its batches.
pub(super) struct Numbered {
    pub(super) plan: Arc<PassPlan>,
    pub(super) progress: Arc<Progress>,
    /// Holds the part of the batch that was given last, where batches are shared.
    pub(super) holder: Option<Holder>,
}

/// The batches of one pass, in order: what [`DataLoader::iter`](super::DataLoader::iter) gives.
///
/// After an error it gives nothing more. Dropping it ends its workers, in the middle of a pass too: they finish the sample
/// that they are at, and one that has not after 5 seconds is left behind with a line on the error stream.
#[must_use = "iterators do nothing unless they are iterated over"]
pub struct Batches<B> {
    supply: Supply<B>,
    end: End,
    given: usize,
    /// They are this rank's alone.
    dealt_out: bool,
    /// All ranks draw as many, so that the scope is told of each.
    in_step: bool,
    /// An error that ended the pass while each rank took its part of what is drawn here, and how often it is still to be told:
    /// so that every rank hears of it, and not only the one whose turn it was.
    echo: Option<(String, usize)>,
}

impl<B: Send + 'static> Batches<B> {
    pub(super) fn new(supply: Supply<B>, end: End, share: Share, remainder: Remainder) -> Self {
        let dealt_out = !share.is_alone();
        let in_step = dealt_out && remainder != Remainder::Uneven;
        Self { supply, end, given: 0, dealt_out, in_step, echo: None }
    }

    pub(super) fn failed(error: LoaderError) -> Self {
        Self::new(Supply::Failed(error), End::Own, Share::ALONE, Remainder::Uneven)
    }

    /// The next batch, or `None` after the last.
    ///
    /// # Errors
    /// [`LoaderError`]; `None` follows.
    pub fn f_next(&mut self) -> Result<Option<B>, LoaderError> {
        if let Some((message, left)) = self.echo.take().filter(|(_, left)| *left > 0) {
            self.echo = Some((message.clone(), left - 1));
            return Err(LoaderError::Ended { message });
        }
        let next = self.advance();
        if let Err(error) = &next
            && shard::is_drawing()
        {
            self.echo = Some((error.to_string(), current_share().world_size() - 1));
        }
        match &next {
            Ok(Some(_)) => self.given += 1,
            Ok(None) | Err(_) => self.finish(),
        }
        next
    }

    /// Ends the workers.
    fn finish(&mut self) {
        self.supply = Supply::Over;
        if let End::Count(Numbered { holder: Some(holder), .. }) = &mut self.end {
            holder.release();
        }
    }

    fn advance(&mut self) -> Result<Option<B>, LoaderError> {
        if matches!(self.supply, Supply::Over) {
            return Ok(None);
        }
        if let End::Count(numbered) = &self.end
            && !matches!(self.supply, Supply::Failed(_))
            && self.given >= numbered.plan.pass.batches()
        {
            return Ok(None);
        }
        if self.dealt_out && shard::is_drawing() {
            return Err(LoaderError::SharedTwice);
        }
        let mut batch = self.draw()?;
        match &mut self.end {
            End::Count(numbered) => numbered.give(self.given)?,
            End::Own => {}
            End::Voted => {
                if anyone_is_over(batch.is_none())? {
                    batch = None;
                }
            }
        }
        Ok(batch)
    }

    fn draw(&mut self) -> Result<Option<B>, LoaderError> {
        /// Nobody interrupts a reader on the thread that waits for it.
        static GO_ON: AtomicBool = AtomicBool::new(false);
        match &mut self.supply {
            Supply::Here(reader) => reader.next(&GO_ON).transpose(),
            Supply::Crew(crew) => crew.next(),
            Supply::Failed(_) => match std::mem::replace(&mut self.supply, Supply::Over) {
                Supply::Failed(error) => Err(error),
                _ => Ok(None),
            },
            Supply::Over => Ok(None),
        }
    }
}

impl Numbered {
    /// Batch `number` is given out.
    fn give(&mut self, number: usize) -> Result<(), LoaderError> {
        let part = self.plan.pass.batch(number).and_then(|stretch| stretch.part);
        if let (Some(holder), Some(part)) = (&mut self.holder, part) {
            holder.hold(part)?;
        }
        self.progress.given.store(number + 1, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether the readers of any rank have ended. All ranks ask with each batch.
fn anyone_is_over(over: bool) -> Result<bool, LoaderError> {
    match session::current() {
        Some(session) => {
            let words = session.exchange(Operation::Vote, i64::from(over))?;
            Ok(words.iter().any(|&word| word != 0))
        }
        None => Ok(over),
    }
}

impl<B: Send + 'static> Iterator for Batches<B> {
    type Item = Result<B, LoaderError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.f_next();
        if let Ok(batch) = &next
            && self.in_step
        {
            steps::drawn(batch.is_some());
        }
        next.transpose()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match (&self.supply, &self.end) {
            (Supply::Over, _) => (0, Some(0)),
            (Supply::Failed(_), _) => (1, Some(1)),
            (_, End::Count(numbered)) => {
                let left = numbered.plan.pass.batches().saturating_sub(self.given);
                // An error may come instead of any of them, and is the last item.
                (left.min(1), Some(left))
            }
            _ => (0, None),
        }
    }
}

impl<B: Send + 'static> FusedIterator for Batches<B> {}

impl<B> fmt::Debug for Batches<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches").field("given", &self.given).finish_non_exhaustive()
    }
}
