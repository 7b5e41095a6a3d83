//! Who takes which places of an order: the rule for every sampler, every number of ranks and every place to begin at.

use std::iter::FusedIterator;

use super::batches::LastBatch;
use super::global::SplitPlan;
use super::part::Part;
use super::{DataError, Indices, Share};

/// What is done with the samples that the ranks cannot share evenly: fewer of them than there are ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Remainder {
    /// The order is repeated from its start until every rank has as many, as PyTorch's `DistributedSampler` does.
    #[default]
    Repeat,
    /// They are left out (`DistributedSampler(drop_last=True)`).
    Drop,
    /// The first ranks get one more. Every sample comes once, so a figure that is summed over samples and ranks is that
    /// of one process; but the ranks may differ in their number of batches, so no step and no collective may stand in the
    /// loop. For evaluation.
    Uneven,
}

/// The indices that one rank takes of an order: those at places `r`, `r + W`, `r + 2 W`, .. of `W` ranks. Needs no memory.
///
/// See [`Indices::of_rank`].
#[derive(Clone, Debug)]
#[must_use = "iterators do nothing unless they are iterated over"]
pub struct RankIndices {
    indices: Indices,
    stretch: Stretch,
    next: usize,
}

impl Indices {
    /// What rank `share.rank()` takes of this order.
    pub fn of_rank(&self, share: Share, remainder: Remainder) -> RankIndices {
        let count = rank_count(self.len(), share, remainder);
        let stretch = Stretch {
            start: share.rank(),
            step: share.world_size(),
            count,
            len: self.len(),
            part: None,
        };
        RankIndices { indices: self.clone(), stretch, next: 0 }
    }
}

impl Iterator for RankIndices {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let place = self.stretch.place(self.next)?;
        self.next += 1;
        self.indices.at(place)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.stretch.count - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for RankIndices {}

impl FusedIterator for RankIndices {}

/// How many of `len` samples a rank gets.
fn rank_count(len: usize, share: Share, remainder: Remainder) -> usize {
    match remainder {
        Remainder::Repeat => len.div_ceil(share.world_size()),
        Remainder::Drop => len / share.world_size(),
        Remainder::Uneven => len.saturating_sub(share.rank()).div_ceil(share.world_size()),
    }
}

/// The places that a batch takes, in turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stretch {
    start: usize,
    step: usize,
    pub(super) count: usize,
    /// The places of the order, which begins again after the last.
    len: usize,
    /// Which part of a batch it is, where the ranks share batches.
    pub(super) part: Option<Part>,
}

impl Stretch {
    /// The place of its `k`-th sample.
    pub(super) fn place(&self, k: usize) -> Option<usize> {
        (k < self.count).then(|| (self.start + k * self.step) % self.len)
    }
}

/// How batches fall to the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Every rank has batches of its own.
    PerRank(Remainder),
    /// The ranks share each batch.
    Global,
    /// Every rank has all batches.
    Whole,
}

/// The batches of one pass over an order, from some place on.
///
/// # Note [Where a pass goes on]
///
/// After `k` batches of `b` samples on each of `W` ranks the ranks have taken the first `k W b` places of the order, all of
/// them and no others, whichever rule deals them out (`k b` under [`Rule::Global`] and [`Rule::Whole`]). So a pass that was
/// left there goes on as a pass over the places from there on, with as many ranks and as large batches as it likes:
/// nothing comes twice and nothing is lost but what its own [`Remainder`] says. Places that are repeated to pad are taken
/// from the start of the whole order, as they would have been.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    len: usize,
    first: usize,
    batch: usize,
    share: Share,
    drop_last: bool,
    rule: Rule,
    /// Samples of this rank, or of all ranks where batches are shared.
    samples: usize,
}

impl Pass {
    /// A pass over `len` places from `first` on.
    ///
    /// # Errors
    /// [`DataError`] where one process would have a batch, but not every rank gets one, or not a row of it.
    pub(super) fn new(
        len: usize,
        first: usize,
        batch: usize,
        share: Share,
        drop_last: bool,
        rule: Rule,
    ) -> Result<Self, DataError> {
        let left = len.saturating_sub(first);
        let samples = match rule {
            // A pass that is over is not padded.
            Rule::PerRank(_) if left == 0 => 0,
            Rule::PerRank(remainder) => rank_count(left, share, remainder),
            Rule::Global | Rule::Whole => left,
        };
        let pass = Self { len, first, batch: batch.max(1), share, drop_last, rule, samples };
        let enough_alone = if drop_last { pass.batch } else { 1 };
        match rule {
            Rule::Global => drop(pass.split()?),
            Rule::PerRank(Remainder::Repeat | Remainder::Drop)
                if pass.batches() == 0 && left >= enough_alone =>
            {
                return Err(DataError::NotABatchEach {
                    samples: left as i64,
                    batch_size: batch as i64,
                    world_size: share.world_size(),
                });
            }
            _ => {}
        }
        Ok(pass)
    }

    fn split(&self) -> Result<SplitPlan, DataError> {
        let last = if self.drop_last { LastBatch::Dropped } else { LastBatch::Smaller };
        SplitPlan::new(self.samples as i64, self.batch as i64, self.share, last)
    }

    /// How many batches this rank gets.
    pub(super) fn batches(&self) -> usize {
        match self.drop_last {
            true => self.samples / self.batch,
            false => self.samples.div_ceil(self.batch),
        }
    }

    /// The places of batch `number`; `None` after the last.
    pub(super) fn batch(&self, number: usize) -> Option<Stretch> {
        if number >= self.batches() {
            return None;
        }
        let before = number * self.batch;
        let count = self.batch.min(self.samples - before);
        let (rank, ranks) = (self.share.rank(), self.share.world_size());
        let own = |start, step, count, part| Stretch {
            start: self.first + start,
            step,
            count,
            len: self.len,
            part,
        };
        Some(match self.rule {
            Rule::PerRank(_) => own(rank + before * ranks, ranks, count, None),
            Rule::Whole => own(before, 1, count, None),
            Rule::Global => {
                // The plan was made before, and has this batch.
                let part = self.split().ok()?.part(number as i64)?;
                own(part.start as usize, 1, part.rows as usize, Some(part))
            }
        })
    }

    /// Whether the ranks share each batch.
    pub(super) fn is_joint(&self) -> bool {
        self.rule == Rule::Global
    }

    /// The places that are taken once `batches` have been, by all ranks together, counted from the start of the order.
    pub(super) fn taken(&self, batches: usize) -> usize {
        let each = batches.saturating_mul(self.batch);
        let (each, ranks) = match self.rule {
            // The ranks' own counts differ here, and all must come to the same answer.
            Rule::PerRank(Remainder::Uneven) => (each, self.share.world_size()),
            Rule::PerRank(_) => (each.min(self.samples), self.share.world_size()),
            Rule::Global | Rule::Whole => (each, 1),
        };
        self.first.saturating_add(each.saturating_mul(ranks)).min(self.len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Pass, Remainder, Rule};
    use crate::data::{DataError, DistributedSampler, EvalSampler, Indices, Share};

    fn share(rank: usize, world: usize) -> Share {
        Share::new(rank, world).unwrap()
    }

    const RULES: [Rule; 5] = [
        Rule::PerRank(Remainder::Repeat),
        Rule::PerRank(Remainder::Drop),
        Rule::PerRank(Remainder::Uneven),
        Rule::Global,
        Rule::Whole,
    ];

    /// The places of every batch of a rank.
    fn batches(pass: &Pass) -> Vec<Vec<usize>> {
        let places = |number| {
            let stretch = pass.batch(number).unwrap();
            (0..stretch.count).map(|k| stretch.place(k).unwrap()).collect()
        };
        (0..pass.batches()).map(places).collect()
    }

    #[test]
    fn a_rank_takes_what_pytorchs_sampler_gives_it() {
        for (len, world) in [(10, 3), (2, 5), (8, 4), (1, 1)] {
            for rank in 0..world {
                let theirs = |drop_last| {
                    let sampler = DistributedSampler::new(len, share(rank, world));
                    sampler.shuffle(false).drop_last(drop_last).indices().unwrap_or_default()
                };
                let ours = |remainder| {
                    let mine = Indices::sequential(len).of_rank(share(rank, world), remainder);
                    assert_eq!(mine.len(), mine.clone().count());
                    mine.map(|index| index as i64).collect::<Vec<_>>()
                };
                assert_eq!(ours(Remainder::Repeat), theirs(false));
                assert_eq!(ours(Remainder::Drop), theirs(true));
                let evaluated = EvalSampler::new(len, share(rank, world)).indices();
                assert_eq!(ours(Remainder::Uneven), evaluated);
            }
        }
    }

    #[test]
    fn p02_a_last_batch_is_the_same_size_on_all_ranks() {
        for rank in 0..3 {
            let rule = Rule::PerRank(Remainder::Repeat);
            let pass = Pass::new(13, 0, 2, share(rank, 3), false, rule).unwrap();
            let sizes: Vec<_> = batches(&pass).iter().map(Vec::len).collect();
            assert_eq!(sizes, [2, 2, 1]);
            let dropped = Pass::new(13, 0, 2, share(rank, 3), true, rule).unwrap();
            assert_eq!(dropped.batches(), 2);
        }
    }

    #[test]
    fn training_on_nothing_is_refused() {
        let error = Pass::new(7, 0, 4, share(0, 2), true, Rule::PerRank(Remainder::Drop));
        assert!(matches!(error, Err(DataError::NotABatchEach { samples: 7, .. })));
        let error = Pass::new(1, 0, 4, share(0, 2), false, Rule::PerRank(Remainder::Drop));
        assert!(matches!(error, Err(DataError::NotABatchEach { samples: 1, .. })));
        assert!(Pass::new(3, 0, 2, share(0, 4), false, Rule::Global).is_err());
        for rule in RULES {
            // One process has no batch of these either.
            assert_eq!(Pass::new(0, 0, 4, share(0, 2), false, rule).unwrap().batches(), 0);
            assert_eq!(Pass::new(3, 0, 4, share(0, 1), true, rule).unwrap().batches(), 0);
        }
    }

    #[test]
    fn p06_uneven_shares_hold_every_sample_once() {
        let mut seen: Vec<usize> = (0..4)
            .flat_map(|rank| {
                let rule = Rule::PerRank(Remainder::Uneven);
                batches(&Pass::new(10, 0, 2, share(rank, 4), false, rule).unwrap()).concat()
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }

    /// What all ranks see up to batch `until`.
    fn seen(passes: &[Pass], until: usize) -> Vec<usize> {
        passes.iter().flat_map(|pass| batches(pass).into_iter().take(until).flatten()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Left after any batch, and gone on with by another number of ranks and another batch size: nothing is seen twice
        /// or lost in the epoch, up to the rule for what the ranks of the second run cannot share.
        #[test]
        fn a_pass_goes_on_with_any_number_of_ranks(
            len in 1usize..300, batch in 1usize..7, other_batch in 1usize..7,
            world in 1usize..6, other in 1usize..6, stop in 0usize..40, rule in prop::sample::select(&RULES[..]),
        ) {
            let pass = |first, world, batch| -> Result<Vec<Pass>, DataError> {
                (0..world).map(|rank| Pass::new(len, first, batch, share(rank, world), false, rule)).collect()
            };
            let Ok(before) = pass(0, world, batch) else { return Ok(()) };
            // A batch that every rank takes.
            let stop = before.iter().map(Pass::batches).min().unwrap().min(stop);
            let first = before[0].taken(stop);
            prop_assert!(before.iter().all(|pass| pass.taken(stop) == first));
            let Ok(after) = pass(first, other, other_batch) else { return Ok(()) };
            let count = |seen: Vec<usize>| {
                let mut counts = vec![0_usize; len];
                seen.into_iter().for_each(|place| counts[place] += 1);
                counts
            };
            let (early, late) = (count(seen(&before, stop)), count(seen(&after, usize::MAX)));
            let copies = |world| if rule == Rule::Whole { world } else { 1 };
            for (place, &times) in early.iter().enumerate() {
                if place < first {
                    prop_assert!(times >= copies(world), "place {} was taken", place);
                } else {
                    prop_assert!(times == 0, "place {} was not", place);
                }
            }
            let missed = (first..len).filter(|&place| late[place] < copies(other)).count();
            let repeats = late.iter().sum::<usize>() - (len - first - missed) * copies(other);
            match rule {
                Rule::PerRank(Remainder::Repeat) => prop_assert!(missed == 0 && repeats < other),
                Rule::PerRank(Remainder::Drop) => prop_assert!(missed < other && repeats == 0),
                _ => prop_assert!(missed == 0 && repeats == 0),
            }
        }

        /// The k-th batches of all ranks are one stretch of the order, of which each knows its part where a batch is shared.
        #[test]
        fn joint_batches_are_stretches(len in 1usize..200, batch in 1usize..9, world in 1usize..6, first in 0usize..50) {
            prop_assume!(first < len);
            for rule in [Rule::PerRank(Remainder::Drop), Rule::Global] {
                let passes: Result<Vec<_>, _> =
                    (0..world).map(|rank| Pass::new(len, first, batch, share(rank, world), false, rule)).collect();
                let Ok(passes) = passes else { continue };
                for number in 0..passes[0].batches() {
                    let mut joint: Vec<usize> =
                        passes.iter().flat_map(|pass| batches(pass).swap_remove(number)).collect();
                    joint.sort_unstable();
                    let start = passes[0].taken(number);
                    prop_assert_eq!(&joint, &(start..start + joint.len()).collect::<Vec<_>>());
                    let parts = passes.iter().filter_map(|pass| pass.batch(number).unwrap().part);
                    let rows: Vec<i64> = parts.clone().map(|part| part.rows).collect();
                    prop_assert!(parts.clone().all(|part| part.batch == rows.iter().sum::<i64>()));
                    prop_assert_eq!(rows.len(), if rule == Rule::Global { world } else { 0 });
                }
            }
        }
    }
}
