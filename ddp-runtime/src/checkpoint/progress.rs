//! How far a run has come, and the loops that go on from there.
//!
//! # Note [Going on in the middle of an epoch]
//!
//! A run that goes on in batch k of an epoch needs two states of the random numbers: the one before the epoch's batches were
//! put in order, so that the order is drawn once more and comes out the same, and the one after batch k - 1, from which
//! dropout and noise go on. [`Epochs`] puts the first back at the head of the epoch; [`Batches`] leaves out the batches that
//! were done, then puts the second back. What stands between the two (making the iterator) is thereby repeated exactly.
//!
//! A `pass` is one loop over batches. An epoch usually has one; where it has several, those that were done are run through
//! without a batch, and the state that the last of them left is put back at its end.
use std::cell::RefCell;

use serde::{Deserialize, Serialize};

use crate::data::epoch;
use crate::error::{Error, Result};
use crate::output;
use crate::random::{self, RngState};
use crate::scope::end_process;
use crate::session;

/// A place in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// Epochs done.
    pub(super) epoch: u64,
    /// Loops over batches done in this epoch.
    pub(super) pass: u64,
    /// Batches done in this pass.
    pub(super) done: u64,
    /// All batches of this pass, if that is known.
    pub(super) length: Option<u64>,
    /// Batches done in the whole run.
    pub(super) step: u64,
    /// Ranks of the job that counts like this.
    pub(super) ranks: usize,
    /// Whether its ranks share each batch (`batch = "global"`).
    pub(super) batches_are_shared: bool,
}

/// A place together with the random numbers that are needed to go on from it.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) position: Position,
    /// Before the pass.
    pub(super) start: RngState,
    /// At the place itself.
    pub(super) now: RngState,
}

/// How far a run has come: epochs, batches, steps.
///
/// It comes from [`Checkpoints::resume`](super::Checkpoints::resume), gives the run its two loops, and counts in them:
///
/// ```no_run
/// # fn batches() -> std::vec::IntoIter<u8> { Vec::new().into_iter() }
/// # fn main() -> ddp_runtime::Result<()> {
/// # let checkpoints = ddp_runtime::Checkpoints::new("runs/digits");
/// let progress = checkpoints.resume(|_saved| Ok(()))?;
/// for epoch in progress.epochs(20) {
///     for batch in progress.batches(batches()) {
///         // backward, step ..
///         if progress.step() % 500 == 0 {
///             checkpoints.save(&progress, |_to| Ok(()))?;
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// In a run that goes on, `epochs` begins with the epoch that was under way and `batches` with the batch after the last one
/// done, with the random numbers that an uninterrupted run has there.
pub struct Progress {
    state: RefCell<State>,
}

struct State {
    at: Position,
    /// Random numbers before the pass that is next or under way.
    start: Result<RngState>,
    /// Whether a loop of `epochs` counts the epochs.
    counts_epochs: bool,
    /// Whether a pass is under way.
    in_pass: bool,
    /// Whether a checkpoint was saved which says that this epoch is done.
    saved_as_done: bool,
    /// Where a run that was resumed goes on, until it does.
    target: Option<Mark>,
}

impl Progress {
    /// A run that begins on this many ranks.
    pub(super) fn new(ranks: usize, batches_are_shared: bool) -> Result<Self> {
        let state = State {
            at: Position { ranks, batches_are_shared, ..Position::default() },
            start: Ok(random::rng_state()?),
            counts_epochs: false,
            in_pass: false,
            saved_as_done: false,
            target: None,
        };
        Ok(Self { state: RefCell::new(state) })
    }

    /// A run that goes on from `target` on this many ranks.
    pub(super) fn resumed(target: Mark, ranks: usize, batches_are_shared: bool) -> Result<Self> {
        let progress = Self::new(ranks, batches_are_shared)?;
        {
            let state = &mut *progress.state.borrow_mut();
            let Position { epoch, step, .. } = target.position;
            state.at = Position { epoch, step, ..state.at };
            state.start = Ok(target.start.clone());
            state.target = Some(target);
        }
        Ok(progress)
    }

    /// The epoch that is under way, or next: what [`epochs`](Self::epochs) gave last or gives first.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.state.borrow().at.epoch
    }

    /// Batches that [`batches`](Self::batches) has given, in the whole run: with one step for each batch, the number of
    /// steps.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.state.borrow().at.step
    }

    /// Whether the run goes on from a checkpoint.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        let state = self.state.borrow();
        state.target.is_some() || state.at.step > 0
    }

    /// The epochs that are left: from the one under way up to and without `end`.
    ///
    /// Its variable tells the samplers the epoch, also where the loop is written by hand.
    pub fn epochs<N: EpochNumber>(&self, end: N) -> Epochs<'_, N> {
        Epochs { progress: self, end, begun: false }
    }

    /// The batches that are left of a loop over `batches`; in a run that goes on without those that are done, which are drawn
    /// but not computed on. (The shared iterators of this crate skip them without gathering a row.)
    ///
    /// A batch counts as done from the moment it is given out: save after its step. What shortens or numbers the loop
    /// belongs inside, `batches(data.train_iter(64).take(100).enumerate())`, as this iterator begins in the middle.
    pub fn batches<I: IntoIterator>(&self, batches: I) -> Batches<'_, I::IntoIter> {
        self.begin_pass();
        Batches { progress: self, items: batches.into_iter(), stage: Stage::New }
    }

    /// What is to be saved now.
    pub(super) fn mark(&self) -> Result<Mark> {
        let state = &mut *self.state.borrow_mut();
        if let Some(target) = &state.target {
            // Nothing has been done since it was resumed.
            return Ok(target.clone());
        }
        let now = random::rng_state()?;
        let position = state.at;
        if state.counts_epochs && !state.in_pass && position.pass > 0 {
            state.saved_as_done = true;
            let position = Position { epoch: position.epoch + 1, pass: 0, done: 0, ..position };
            return Ok(Mark { position, start: now.clone(), now });
        }
        Ok(Mark { position, start: state.start.clone()?, now })
    }

    fn begin_pass(&self) {
        let state = &mut *self.state.borrow_mut();
        if state.saved_as_done {
            end_process(&Error::unsupported(
                "a checkpoint was saved between two loops over the batches of one epoch; it says that the epoch is done, \
                 which it is not",
                "save inside one of these loops, or after the last of them",
            ));
        }
        state.in_pass = true;
        state.at.done = 0;
        state.at.length = None;
    }

    /// The pass has run to its end.
    fn end_pass(&self) {
        let state = &mut *self.state.borrow_mut();
        state.in_pass = false;
        state.at.pass += 1;
        state.at.done = 0;
        state.at.length = None;
        let left = match &state.target {
            None => None,
            // The last of the passes that were done: its successor begins as it did.
            Some(target) if target.position.pass == state.at.pass => Some(&target.start),
            Some(_) => return,
        };
        state.start = match left {
            Some(left) => random::set_rng_state(left).map(|()| left.clone()),
            None => random::rng_state(),
        };
    }

    /// The batches of the pass that begins are `length`, if that is known. How many of them to leave out.
    fn enter_pass(&self, length: Option<u64>) -> Entry {
        let state = &mut *self.state.borrow_mut();
        state.at.length = length;
        let Some(target) = state.target.take() else { return Entry::At { skip: 0, random: None } };
        if state.at.pass < target.position.pass {
            state.target = Some(target);
            return Entry::Done;
        }
        let skip = batches_done(&target.position, &state.at);
        state.at.done = skip;
        // Where no batch was done, the order was not drawn yet: the numbers of its pass stand already.
        let random = (target.position.done > 0).then_some(target.now);
        Entry::At { skip, random }
    }
}

/// How a pass begins.
enum Entry {
    /// All its batches are done.
    Done,
    /// After so many batches, with these random numbers.
    At { skip: u64, random: Option<RngState> },
}

/// How many of the batches that this rank has in the pass `here` were done when `saved` was.
///
/// Where the pass has as many batches as it had, these are the same batches. Where it has not, the samples are shared among
/// another number of ranks: the ranks' k-th batches together are a stretch of the order, so that the same samples are done
/// after `k * ranks then / ranks now` batches, rounded down.
fn batches_done(saved: &Position, here: &Position) -> u64 {
    let same_batches =
        saved.length == here.length || saved.length.is_none() || here.length.is_none();
    if saved.ranks == here.ranks || same_batches {
        return saved.done;
    }
    let order_differs = (here.ranks == 1 || saved.ranks == 1) && !saved.batches_are_shared;
    if order_differs && saved.done > 0 {
        output::notice(format_args!(
            "resumed in the middle of epoch {} on another number of ranks ({} were {}): a single process puts its batches in \
             another order, so the rest of this epoch may repeat samples and leave others out",
            saved.epoch, here.ranks, saved.ranks
        ));
    }
    saved.done.saturating_mul(saved.ranks as u64) / (here.ranks as u64).max(1)
}

/// The epochs of a run; see [`Progress::epochs`].
#[must_use = "iterators do nothing unless they are iterated over"]
pub struct Epochs<'a, N> {
    progress: &'a Progress,
    end: N,
    begun: bool,
}

impl<N: EpochNumber> Iterator for Epochs<'_, N> {
    type Item = N;

    fn next(&mut self) -> Option<N> {
        let number = {
            let state = &mut *self.progress.state.borrow_mut();
            if self.begun {
                state.at = Position {
                    epoch: state.at.epoch + 1,
                    pass: 0,
                    done: 0,
                    length: None,
                    ..state.at
                };
            }
            state.saved_as_done = false;
            state.in_pass = false;
            N::from_epoch(state.at.epoch).filter(|number| *number < self.end)
        };
        self.progress.begin_epoch(number.is_some(), !self.begun);
        self.begun = true;
        number
    }
}

impl Progress {
    fn begin_epoch(&self, goes_on: bool, is_first: bool) {
        let state = &mut *self.state.borrow_mut();
        state.counts_epochs = goes_on;
        if !goes_on {
            return;
        }
        if !is_first {
            // It lies in an epoch that the program has gone through without its batches.
            state.target = None;
        }
        state.start = match &state.target {
            Some(target) if target.position.pass == 0 => {
                random::set_rng_state(&target.start).map(|()| target.start.clone())
            }
            Some(target) => Ok(target.start.clone()),
            None => random::rng_state(),
        };
        if session::current().is_some() {
            epoch::tell(state.at.epoch);
        }
    }
}

/// The batches of a pass; see [`Progress::batches`].
#[must_use = "iterators do nothing unless they are iterated over"]
pub struct Batches<'a, I> {
    progress: &'a Progress,
    items: I,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    New,
    Under,
    Over,
}

impl<I: Iterator> Batches<'_, I> {
    /// Leaves out what is done. Whether there is anything left to ask for.
    fn begin(&mut self) -> bool {
        let length = match self.items.size_hint() {
            (low, Some(high)) if low == high => Some(low as u64),
            _ => None,
        };
        match self.progress.enter_pass(length) {
            Entry::Done => false,
            Entry::At { skip, random } => {
                if let Some(last) = skip.checked_sub(1) {
                    // What ends here ends again below.
                    let _ = usize::try_from(last).ok().and_then(|last| self.items.nth(last));
                }
                if let Some(random) = random
                    && let Err(error) = random::set_rng_state(&random)
                {
                    end_process(&error);
                }
                true
            }
        }
    }

    fn end(&mut self) -> Option<I::Item> {
        self.stage = Stage::Over;
        self.progress.end_pass();
        None
    }
}

impl<I: Iterator> Iterator for Batches<'_, I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        match self.stage {
            Stage::Over => return None,
            Stage::Under => {}
            Stage::New => {
                self.stage = Stage::Under;
                if !self.begin() {
                    return self.end();
                }
            }
        }
        let Some(item) = self.items.next() else { return self.end() };
        let state = &mut *self.progress.state.borrow_mut();
        state.at.done += 1;
        state.at.step += 1;
        Some(item)
    }

    /// What is left, or before the first batch at most that.
    fn size_hint(&self) -> (usize, Option<usize>) {
        match self.stage {
            Stage::New => (0, self.items.size_hint().1),
            Stage::Under => self.items.size_hint(),
            Stage::Over => (0, Some(0)),
        }
    }
}

/// An integer that can count epochs.
pub trait EpochNumber: Copy + PartialOrd {
    /// The number of an epoch, if it fits.
    #[doc(hidden)]
    fn from_epoch(epoch: u64) -> Option<Self>;
}

macro_rules! epoch_numbers {
    ($($int:ty),*) => {$(
        impl EpochNumber for $int {
            fn from_epoch(epoch: u64) -> Option<Self> {
                <$int>::try_from(epoch).ok()
            }
        }
    )*};
}
epoch_numbers!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize);
