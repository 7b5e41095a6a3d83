//! Shares the items of any iterator among the ranks, one to each in turn.

use std::cell::Cell;
use std::fmt;
use std::iter::FusedIterator;
use std::sync::Once;

use super::Share;
use crate::output;
use crate::steps;
use crate::trace;

/// Gives this rank its part of `items`: of `W` ranks, rank `r` takes items `r`, `r + W`, `r + 2 W`, ...
///
/// Every rank gets the same number. An item is given out once its round is complete, that is once there is one
/// for each rank; the items of an incomplete last round, fewer than `W`, are dropped. A rank draws the others'
/// items too, and drops them: the source must be the same on all ranks, and what it costs to make an item is
/// paid `W` times. A source that already differs by rank needs no sharing.
///
/// Items stay whole. An item that *is* a batch is one rank's, so a round of them is a step on `W` batches; to give each rank
/// its part of every batch instead, which `batch = "global"` means, there is [`split`](super::split).
///
/// Items are drawn when they are asked for, a round at a time. For one rank these are the items as they are. When a
/// source has items but not one for each rank, so that nobody gets any, the main rank says so once.
///
/// ```
/// use ddp_runtime::data::{Share, shard};
///
/// let mine: Vec<_> = shard("abcdefg".chars(), Share::new(1, 3)?).collect();
/// assert_eq!(mine, ['b', 'e']); // `g` has no round of its own
/// # Ok::<(), ddp_runtime::data::ShareError>(())
/// ```
pub fn shard<I: IntoIterator>(items: I, share: Share) -> Shard<I::IntoIter> {
    Shard { items: items.into_iter(), share, drawn: 0, ended: false }
}

/// One rank's part of an iterator; see [`shard`].
#[derive(Clone)]
#[must_use = "iterators do nothing unless they are iterated over"]
pub struct Shard<I> {
    items: I,
    share: Share,
    /// Items drawn, for all ranks.
    drawn: usize,
    /// The source has ended; it is not asked again.
    ended: bool,
}

impl<I: Iterator> Shard<I> {
    /// Draws one item for each rank and keeps this rank's; `None` if the source ends before.
    fn next_round(&mut self) -> Option<I::Item> {
        let mut mine = None;
        for rank in 0..self.share.world_size() {
            let item = self.items.next()?;
            self.drawn = self.drawn.saturating_add(1);
            if rank == self.share.rank() {
                mine = Some(item);
            }
        }
        mine
    }

    /// Whether there were items, and no rank got one.
    fn shared_nothing(&self) -> bool {
        self.ended && (1..self.share.world_size()).contains(&self.drawn)
    }
}

thread_local! {
    static DRAWING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread draws items of which each rank takes its part: what is drawn must be the same on all ranks.
pub(super) fn is_drawing() -> bool {
    DRAWING.get()
}

/// While it lasts, several ranks draw what each takes its part of.
pub(super) struct Drawing(bool);

impl Drawing {
    pub(super) fn begin(share: Share) -> Self {
        Self(DRAWING.replace(DRAWING.get() || !share.is_alone()))
    }
}

impl Drop for Drawing {
    fn drop(&mut self) {
        DRAWING.set(self.0);
    }
}

/// Says, once in a process, that a loop ran on no rank.
fn notice_nothing_shared(items: usize, ranks: usize) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        output::notice(format_args!(
            "a shared loop had fewer items ({items}) than there are ranks ({ranks}), so no rank got any; \
             use fewer ranks, or smaller items"
        ));
    });
}

impl<I: Iterator> Iterator for Shard<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        if self.ended {
            return None;
        }
        let mine = {
            let _span = trace::span(trace::Kind::Data);
            let _drawing = Drawing::begin(self.share);
            self.next_round()
        };
        self.ended = mine.is_none();
        if self.shared_nothing() {
            notice_nothing_shared(self.drawn, self.share.world_size());
        }
        if !self.share.is_alone() {
            steps::drawn(mine.is_some());
        }
        mine
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.ended {
            return (0, Some(0));
        }
        let rounds = |items| items / self.share.world_size();
        let (low, high) = self.items.size_hint();
        (rounds(low), high.map(rounds))
    }
}

impl<I: ExactSizeIterator> ExactSizeIterator for Shard<I> {}

impl<I: Iterator> FusedIterator for Shard<I> {}

impl<I> fmt::Debug for Shard<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard")
            .field("share", &self.share)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::{is_drawing, shard};
    use crate::data::Share;

    fn share(rank: usize, world: usize) -> Share {
        Share::new(rank, world).unwrap()
    }

    #[test]
    fn each_rank_takes_its_turn() {
        let of = |rank| shard(0..8, share(rank, 3)).collect::<Vec<_>>();
        assert_eq!([of(0), of(1), of(2)], [vec![0, 3], vec![1, 4], vec![2, 5]]);
    }

    #[test]
    fn one_rank_takes_all_and_waits_for_none() {
        let drawn = Cell::new(0);
        let items = (0..3).inspect(|_| drawn.set(drawn.get() + 1));
        let mut mine = shard(items, Share::ALONE);
        assert_eq!((mine.next(), drawn.get()), (Some(0), 1));
        assert_eq!(mine.collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn p02_an_incomplete_round_is_given_to_nobody() {
        for rank in 0..4 {
            assert_eq!(shard(0..3, share(rank, 4)).count(), 0);
            assert_eq!(shard(0..7, share(rank, 4)).count(), 1);
        }
    }

    #[test]
    fn items_for_nobody_are_noticed() {
        let after = |items: usize, world| {
            let mut mine = shard(0..items, share(0, world));
            mine.by_ref().for_each(drop);
            mine.shared_nothing()
        };
        assert!(after(3, 4));
        assert!(!after(0, 4));
        assert!(!after(4, 4));
        assert!(!after(7, 4));
        assert!(!after(0, 1));
    }

    #[test]
    fn rounds_are_drawn_when_they_are_asked_for() {
        let drawn = Cell::new(0);
        let items = (0..).inspect(|_| drawn.set(drawn.get() + 1));
        let mut mine = shard(items, share(0, 3));
        assert_eq!(drawn.get(), 0);
        assert_eq!((mine.next(), drawn.get()), (Some(0), 3));
        assert_eq!((mine.next(), drawn.get()), (Some(3), 6));
    }

    #[test]
    fn a_source_that_ended_is_not_asked_again() {
        let mut asked = 0;
        let source = std::iter::from_fn(|| {
            asked += 1;
            // Ends after one item, and would begin again.
            (asked != 2).then_some(asked)
        });
        let mut mine = shard(source, share(0, 2));
        assert_eq!((mine.next(), mine.next(), mine.size_hint()), (None, None, (0, Some(0))));
        drop(mine);
        assert_eq!(asked, 2);
    }

    #[test]
    fn a_source_can_tell_that_it_is_dealt_out() {
        let drawn = |world| shard((0..4).map(|_| is_drawing()), share(0, world)).next();
        assert_eq!((drawn(2), drawn(1), is_drawing()), (Some(true), Some(false), false));
    }

    #[test]
    fn items_need_be_neither_clone_nor_static() {
        struct Batch<'a>(&'a str);
        let text = String::from("one two three four");
        let items = text.split(' ').map(Batch);
        let words: Vec<_> = shard(items, share(1, 2)).map(|batch| batch.0).collect();
        assert_eq!(words, ["two", "four"]);
    }

    proptest! {
        #[test]
        fn ranks_take_whole_rounds_of_any_source(len in 0usize..100, world in 1usize..9) {
            let rounds = len / world;
            let mut all = vec![usize::MAX; rounds * world];
            for rank in 0..world {
                let mine = shard(0..len, share(rank, world));
                prop_assert_eq!(mine.len(), rounds);
                // A source that does not know its length.
                let unsized_source = (0..len).filter(|_| true);
                prop_assert_eq!(shard(unsized_source, share(rank, world)).size_hint(), (0, Some(rounds)));
                for (round, item) in mine.enumerate() {
                    all[round * world + rank] = item;
                }
            }
            prop_assert_eq!(all, (0..rounds * world).collect::<Vec<_>>());
        }
    }
}
