//! Which epoch it is where a shared iterator is made, whether or not somebody said so.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The epoch of each place where a shared iterator is made: its construction site.
///
/// * Told by [`tell`](Self::tell): the epoch told, so that a run resumed at epoch 7 gets the order of epoch 7.
/// * Never told: the site's own count of constructions, 0, 1, 2, ...
///
/// A site that makes several iterators within one told epoch, or goes through the told epochs a second time, gets
/// another number each time, since shuffling twice alike is the fault this clock is here to prevent. Such numbers
/// lie far above the epochs, from 2^32 on; the first pass of an epoch always has the epoch itself, so that its order
/// is that of PyTorch's sampler.
///
/// All ranks must make the same iterators in the same order, as they must take the same steps: the numbers are
/// counted, not exchanged.
///
/// ```
/// use ddp_runtime::data::EpochClock;
///
/// let mut clock = EpochClock::new();
/// assert_eq!([clock.epoch_at("train.rs:9"), clock.epoch_at("train.rs:9")], [0, 1]);
/// clock.tell(7);
/// assert_eq!(clock.epoch_at("train.rs:9"), 7);
/// ```
#[derive(Debug, Default)]
pub struct EpochClock {
    told: Option<u64>,
    sites: BTreeMap<&'static str, Passes>,
}

/// What is remembered of the passes through one source of data: those of a construction site, or of a loader.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passes {
    /// Passes while nobody had told the epoch.
    untold: u64,
    /// The last pass in a told epoch.
    lap: Option<Lap>,
}

impl Passes {
    /// The number of the pass that begins, in the epoch that was told, if one was. No two passes have the same.
    pub(crate) fn next(&mut self, told: Option<u64>) -> u64 {
        match told {
            Some(epoch) => {
                let lap = self.lap.map_or(Lap::first(epoch), |lap| lap.next(epoch));
                self.lap = Some(lap);
                lap.number()
            }
            None => {
                let epoch = self.untold;
                self.untold = epoch.wrapping_add(1);
                epoch
            }
        }
    }

    /// Goes on after the pass with this number, as if all before it had been made here.
    pub(crate) fn resume_after(&mut self, number: u64) {
        self.untold = number.wrapping_add(1);
        self.lap = Some(Lap::of_number(number));
    }
}

/// The epoch that the pass with this number belongs to.
pub(crate) fn of_pass(number: u64) -> u64 {
    Lap::of_number(number).epoch
}

/// A pass through the data in a told epoch. No two passes of a site are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lap {
    epoch: u64,
    /// Passes before this one in the same epoch.
    repeat: u64,
    /// How often the told epochs had gone back before this one.
    round: u64,
}

impl Lap {
    /// The bit from which repeats are counted: epochs themselves are taken to stay below it.
    const REPEATS: u32 = 32;
    /// The bit from which rounds are counted.
    const ROUNDS: u32 = 48;

    fn first(epoch: u64) -> Self {
        Self { epoch, repeat: 0, round: 0 }
    }

    /// The pass after this one, in the told epoch `epoch`.
    fn next(self, epoch: u64) -> Self {
        match epoch.cmp(&self.epoch) {
            std::cmp::Ordering::Greater => Self { epoch, repeat: 0, ..self },
            std::cmp::Ordering::Equal => Self { repeat: self.repeat.wrapping_add(1), ..self },
            std::cmp::Ordering::Less => {
                Self { epoch, repeat: 0, round: self.round.wrapping_add(1) }
            }
        }
    }

    /// One number for all three: the epoch for the first pass, and apart from all others up to 2^32 epochs,
    /// 2^16 repeats and 2^16 rounds.
    fn number(self) -> u64 {
        let above = (self.repeat << Self::REPEATS).wrapping_add(self.round << Self::ROUNDS);
        self.epoch.wrapping_add(above)
    }

    /// The pass with this number, within the limits of [`number`](Self::number).
    fn of_number(number: u64) -> Self {
        Self {
            epoch: number & ((1 << Self::REPEATS) - 1),
            repeat: (number >> Self::REPEATS) & 0xffff,
            round: number >> Self::ROUNDS,
        }
    }
}

impl EpochClock {
    /// A clock that nobody has told anything.
    pub const fn new() -> Self {
        Self { told: None, sites: BTreeMap::new() }
    }

    /// Says which epoch it is, until told otherwise.
    pub fn tell(&mut self, epoch: u64) {
        self.told = Some(epoch);
    }

    /// Sets what was told to `told`, and returns what it was: for a scope, which begins untold or as the scope
    /// around it, and leaves that one's epoch as it found it.
    pub fn replace_told(&mut self, told: Option<u64>) -> Option<u64> {
        std::mem::replace(&mut self.told, told)
    }

    /// The epoch that was told, if any.
    pub fn told(&self) -> Option<u64> {
        self.told
    }

    /// The epoch of the iterator now made at `site`; counts it as made.
    pub fn epoch_at(&mut self, site: &'static str) -> u64 {
        let told = self.told;
        self.sites.entry(site).or_default().next(told)
    }
}

/// The clock of this process.
static CLOCK: Mutex<EpochClock> = Mutex::new(EpochClock::new());

fn clock() -> MutexGuard<'static, EpochClock> {
    // A panic elsewhere leaves the clock whole: each change is one assignment.
    CLOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// [`EpochClock::tell`] for this process' clock.
pub fn tell(epoch: u64) {
    clock().tell(epoch);
}

/// [`EpochClock::replace_told`] for this process' clock.
pub fn replace_told(told: Option<u64>) -> Option<u64> {
    clock().replace_told(told)
}

/// [`EpochClock::told`] for this process' clock.
pub fn told() -> Option<u64> {
    clock().told()
}

/// [`EpochClock::epoch_at`] for this process' clock.
pub fn epoch_at(site: &'static str) -> u64 {
    clock().epoch_at(site)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::{EpochClock, Passes};

    #[test]
    fn p05_an_untold_site_counts_for_itself() {
        let mut clock = EpochClock::new();
        let seen: Vec<_> = ["a", "a", "b", "a", "b"].map(|site| clock.epoch_at(site)).into();
        assert_eq!(seen, [0, 1, 0, 2, 1]);
    }

    #[test]
    fn a_told_site_has_that_epoch_from_any_start() {
        let mut clock = EpochClock::new();
        for epoch in 5..9 {
            clock.tell(epoch);
            assert_eq!((clock.epoch_at("train"), clock.epoch_at("other")), (epoch, epoch));
        }
    }

    #[test]
    fn a_scope_leaves_the_epoch_as_it_was() {
        let mut clock = EpochClock::new();
        clock.tell(3);
        let outer = clock.replace_told(None);
        assert_eq!((outer, clock.epoch_at("inner")), (Some(3), 0));
        clock.replace_told(outer);
        assert_eq!((clock.told(), clock.epoch_at("outer")), (Some(3), 3));
    }

    #[test]
    fn a_resumed_run_repeats_the_epochs_numbers() {
        let two_each = |epochs: std::ops::Range<u64>| {
            let mut clock = EpochClock::new();
            let pass = |clock: &mut EpochClock, epoch| {
                clock.tell(epoch);
                [clock.epoch_at("train"), clock.epoch_at("train")]
            };
            epochs.map(|epoch| pass(&mut clock, epoch)).collect::<Vec<_>>()
        };
        assert_eq!(two_each(0..6)[4..], two_each(4..6));
    }

    #[test]
    fn the_process_clock_counts_across_threads() {
        let site = "epoch.rs: the_process_clock_counts_across_threads";
        let made = || std::thread::spawn(move || super::epoch_at(site)).join().unwrap();
        // Another test may not tell this clock an epoch, or the counts would not be these.
        assert_eq!([made(), made(), made()], [0, 1, 2]);
    }

    proptest! {
        /// A run that goes on after any pass has the numbers of one that was never interrupted.
        #[test]
        fn a_number_tells_its_pass(told in prop::collection::vec(0u64..6, 2..40), cut in 0usize..39) {
            let cut = cut % (told.len() - 1);
            let mut whole = Passes::default();
            let numbers: Vec<_> = told.iter().map(|&epoch| whole.next(Some(epoch))).collect();
            prop_assert_eq!(super::of_pass(numbers[cut]), told[cut]);
            let mut resumed = Passes::default();
            resumed.resume_after(numbers[cut]);
            let rest: Vec<_> = told[cut + 1..].iter().map(|&epoch| resumed.next(Some(epoch))).collect();
            prop_assert_eq!(&rest, &numbers[cut + 1..]);
        }

        /// Whatever is told, and however often: no order comes twice.
        #[test]
        fn no_pass_has_the_number_of_another(told in prop::collection::vec(0u64..6, 1..60)) {
            let mut clock = EpochClock::new();
            let mut seen = HashSet::new();
            for epoch in told {
                clock.tell(epoch);
                prop_assert!(seen.insert(clock.epoch_at("train")));
            }
        }
    }
}
