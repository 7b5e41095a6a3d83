//! tch's shuffled iterator over the windows of a text, with its batches shared among the ranks.

use tch::data::{TextData, TextDataIter};
use tch::{Device, Kind, Tensor};

use super::batches::{BatchPlan, LastBatch, rank_index};
use super::global::{Draw, SplitPlan};
use super::weight::Holder;
use super::{DataError, Order, Share};
use crate::random;
use crate::steps;
use crate::trace;

/// [`TextData::iter_shuffle`] for data-parallel training: this rank's batches of windows of a text.
///
/// A text of `len` characters has `len - seq_len + 1` windows, one from each character on. A batch is a
/// `[batch_size, seq_len]` tensor of labels on the CPU, in the text's kind (`Uint8`), as from tch.
///
/// For one rank it *is* tch's iterator. For `W` ranks the windows are put in the order of seed and epoch
/// ([`Order`]), rank `r` takes places `r`, `r + W`, ..., and every rank gets
/// `windows / (W * batch_size)` batches (rounded down), all full; the windows left over, fewer than
/// `W * batch_size`, are dropped. tch drops what does not fill a batch, too.
///
/// [`f_split`](Self::f_split) gives the batches of a single process instead, and each rank its part of every one, under
/// the rules of [`ShardedIter2::split`](super::ShardedIter2::split).
#[derive(Debug)]
pub struct ShardedTextIter(Source);

#[derive(Debug)]
enum Source {
    /// One rank: tch's own.
    Plain(TextDataIter),
    /// Several ranks.
    Shared(SharedWindows),
}

impl ShardedTextIter {
    /// An iterator over this rank's shuffled windows of `seq_len` characters, `batch_size` to a batch.
    ///
    /// The order is drawn here, as `iter_shuffle` does.
    ///
    /// # Errors
    ///
    /// [`DataError`]: the text has no windows of that length, or enough for a batch of one process but not for
    /// one of each rank, or libtorch cannot draw the order. On one rank, only a text too short by more than one
    /// character is an error: tch gives no batch for one that is short by one, and an empty sequence has its way.
    pub fn f_new(
        text: &TextData,
        seq_len: i64,
        batch_size: i64,
        share: Share,
        order: Order,
    ) -> Result<Self, DataError> {
        if share.is_alone() {
            return Self::plain(text, seq_len, batch_size);
        }
        Self::ordered_by(text, seq_len, batch_size, share, order)
    }

    /// An iterator over whole batches, the same ones on every rank of `share`, for a loop that shares them by itself. The
    /// order is that of `order`; without one, rank 0 draws it for all ranks.
    ///
    /// # Errors
    ///
    /// As [`f_new`](Self::f_new).
    pub fn f_whole(
        text: &TextData,
        seq_len: i64,
        batch_size: i64,
        share: Share,
        order: Option<Order>,
    ) -> Result<Self, DataError> {
        let all = Share::ALONE;
        match order {
            _ if share.is_alone() => Self::plain(text, seq_len, batch_size),
            Some(order) => Self::ordered_by(text, seq_len, batch_size, all, order),
            None => Self::split_by(text, seq_len, batch_size, all, random::joint_order),
        }
    }

    /// As [`f_whole`](Self::f_whole).
    ///
    /// # Panics
    ///
    /// Where `f_whole` returns an error, as [`TextData::iter_shuffle`] does.
    #[track_caller]
    pub fn whole(
        text: &TextData,
        seq_len: i64,
        batch_size: i64,
        share: Share,
        order: Option<Order>,
    ) -> Self {
        match Self::f_whole(text, seq_len, batch_size, share, order) {
            Ok(iter) => iter,
            Err(error) => panic!("{error}"),
        }
    }

    /// tch's own.
    fn plain(text: &TextData, seq_len: i64, batch_size: i64) -> Result<Self, DataError> {
        windows(&text.data(), seq_len, Share::ALONE)?;
        Ok(Self(Source::Plain(text.iter_shuffle(seq_len, batch_size))))
    }

    fn ordered_by(
        text: &TextData,
        seq_len: i64,
        batch_size: i64,
        share: Share,
        order: Order,
    ) -> Result<Self, DataError> {
        let data = text.data();
        let windows = windows(&data, seq_len, share)?;
        let plan = BatchPlan::new(windows, batch_size, share, LastBatch::Dropped)?;
        let starts = if plan.count() == 0 {
            Tensor::f_empty([0], (Kind::Int64, data.device()))?
        } else {
            rank_index(windows, share, Some(order), data.device())?
        };
        Ok(Self(Source::Shared(SharedWindows::new(data, seq_len, starts, Plan::Own(plan))?)))
    }

    /// An iterator over this rank's parts of the batches that a single process would have, `batch_size` windows to the
    /// batch that all ranks share. All ranks must call it: rank 0 draws the order.
    ///
    /// # Errors
    ///
    /// As [`f_new`](Self::f_new); also when `batch_size` is below the number of ranks, or the ranks cannot agree on an order.
    pub fn f_split(
        text: &TextData,
        seq_len: i64,
        batch_size: i64,
        share: Share,
    ) -> Result<Self, DataError> {
        if share.is_alone() {
            return Self::plain(text, seq_len, batch_size);
        }
        Self::split_by(text, seq_len, batch_size, share, random::joint_order)
    }

    fn split_by(
        text: &TextData,
        seq_len: i64,
        batch_size: i64,
        share: Share,
        draw: Draw,
    ) -> Result<Self, DataError> {
        let data = text.data();
        let windows = windows(&data, seq_len, share)?;
        let plan = SplitPlan::new(windows, batch_size, share, LastBatch::Dropped)?;
        // Where tch draws it, too, and also when it is not enough for a batch.
        let order = draw(windows, Device::Cpu)?.f_to_device(data.device())?;
        let plan = Plan::Split(plan, Holder::new());
        Ok(Self(Source::Shared(SharedWindows::new(data, seq_len, order, plan)?)))
    }

    /// As [`f_split`](Self::f_split).
    ///
    /// # Panics
    ///
    /// Where `f_split` returns an error, as [`TextData::iter_shuffle`] does.
    #[track_caller]
    pub fn split(text: &TextData, seq_len: i64, batch_size: i64, share: Share) -> Self {
        match Self::f_split(text, seq_len, batch_size, share) {
            Ok(iter) => iter,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`f_new`](Self::f_new).
    ///
    /// # Panics
    ///
    /// Where `f_new` returns an error, as [`TextData::iter_shuffle`] does.
    #[track_caller]
    pub fn new(text: &TextData, seq_len: i64, batch_size: i64, share: Share, order: Order) -> Self {
        match Self::f_new(text, seq_len, batch_size, share, order) {
            Ok(iter) => iter,
            Err(error) => panic!("{error}"),
        }
    }

    /// The next batch, or `None` after the last: [`next`](Iterator::next) for who handles errors.
    ///
    /// # Errors
    ///
    /// [`DataError::Tch`] if libtorch failed.
    ///
    /// # Panics
    ///
    /// On one rank where tch's iterator does.
    pub fn f_next(&mut self) -> Result<Option<Tensor>, DataError> {
        let batch = match &mut self.0 {
            Source::Plain(iter) => return Ok(iter.next()),
            Source::Shared(windows) => windows.next(),
        }?;
        steps::drawn(batch.is_some());
        Ok(batch)
    }
}

impl Iterator for ShardedTextIter {
    type Item = Tensor;

    /// # Panics
    ///
    /// Where [`f_next`](ShardedTextIter::f_next) returns an error, which an iterator cannot.
    #[track_caller]
    fn next(&mut self) -> Option<Tensor> {
        let _span = trace::span(trace::Kind::Data);
        match self.f_next() {
            Ok(batch) => batch,
            Err(error) => panic!("{error}"),
        }
    }

    /// Gathers nothing for the batches that are left out, on several ranks.
    ///
    /// # Panics
    ///
    /// As [`next`](Iterator::next).
    #[track_caller]
    fn nth(&mut self, n: usize) -> Option<Tensor> {
        match &mut self.0 {
            Source::Plain(iter) => return iter.nth(n),
            Source::Shared(windows) => {
                let count = i64::try_from(n).unwrap_or(i64::MAX);
                windows.next_batch = windows.next_batch.saturating_add(count);
            }
        }
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Source::Plain(iter) => iter.size_hint(),
            Source::Shared(windows) => windows.size_hint(),
        }
    }
}

/// How many sequences of `seq_len` characters there are in `data`.
fn windows(data: &Tensor, seq_len: i64, share: Share) -> Result<i64, DataError> {
    let text_len = data.numel() as i64;
    let windows = text_len.saturating_sub(seq_len).saturating_add(1);
    let shortest = if share.is_alone() { 0 } else { 1 };
    if seq_len < shortest || windows < shortest {
        return Err(DataError::SequenceLength { seq_len, text_len });
    }
    Ok(windows)
}

/// Which windows a batch of this rank has.
#[derive(Debug)]
enum Plan {
    /// The starts are this rank's alone.
    Own(BatchPlan),
    /// The starts are those of all ranks.
    Split(SplitPlan, Holder),
}

impl Plan {
    fn count(&self) -> i64 {
        match self {
            Plan::Own(plan) => plan.count(),
            Plan::Split(plan, _) => plan.count(),
        }
    }

    /// Where batch `number` begins among the starts, and how many it has.
    fn batch(&mut self, number: i64) -> Result<Option<(i64, i64)>, DataError> {
        let (plan, holder) = match self {
            Plan::Own(plan) => return Ok(plan.batch(number)),
            Plan::Split(plan, holder) => (plan, holder),
        };
        match plan.part(number) {
            Some(part) => holder.hold(part).map(|()| Some((part.start, part.rows))),
            None => {
                holder.release();
                Ok(None)
            }
        }
    }
}

/// Windows of a text, and how far they have been given out.
#[derive(Debug)]
struct SharedWindows {
    data: Tensor,
    /// Where windows begin, in their order.
    starts: Tensor,
    /// `0..seq_len`.
    offsets: Tensor,
    plan: Plan,
    next_batch: i64,
}

impl SharedWindows {
    fn new(data: Tensor, seq_len: i64, starts: Tensor, plan: Plan) -> Result<Self, DataError> {
        let offsets = Tensor::f_arange(seq_len, (Kind::Int64, data.device()))?;
        Ok(Self { data, starts, offsets, plan, next_batch: 0 })
    }

    fn next(&mut self) -> Result<Option<Tensor>, DataError> {
        let Some((start, size)) = self.plan.batch(self.next_batch)? else { return Ok(None) };
        let starts = self.starts.f_narrow(0, start, size)?;
        let places = starts.f_unsqueeze(1)?.f_add(&self.offsets)?;
        let batch = self.data.f_take(&places)?;
        self.next_batch += 1;
        Ok(Some(batch))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.plan.count() - self.next_batch).unwrap_or(0);
        (left, Some(left))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tch::data::TextData;
    use tch::{Kind, Tensor};

    use super::{Draw, ShardedTextIter};
    use crate::bridge;
    use crate::data::{DataError, Order, Share};

    const ORDER: Order = Order { seed: 2, epoch: 5 };

    /// A text whose labels are `0, 1, 2, ..`, so that a window tells where it begins.
    fn counting(name: &str, len: u8) -> TextData {
        let file = format!("ddp-text-{name}-{}.txt", std::process::id());
        let path: PathBuf = std::env::temp_dir().join(file);
        std::fs::write(&path, (0..len).collect::<Vec<u8>>()).unwrap();
        let text = TextData::new(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        text
    }

    fn share(rank: usize, world: usize) -> Share {
        Share::new(rank, world).unwrap()
    }

    /// Where the windows of each batch begin, after a check that each window runs on from there.
    fn starts(iter: &mut ShardedTextIter, seq_len: i64) -> Vec<Vec<i64>> {
        iter.map(|batch| {
            assert_eq!((batch.kind(), batch.size()[1]), (Kind::Uint8, seq_len));
            assert!(batch.is_contiguous());
            let rows = Vec::<Vec<i64>>::try_from(batch.to_kind(Kind::Int64)).unwrap();
            for row in &rows {
                assert!(row.windows(2).all(|pair| pair[1] == pair[0] + 1));
            }
            rows.iter().map(|row| row[0]).collect()
        })
        .collect()
    }

    #[test]
    fn joint_batches_are_stretches_of_the_permutation_of_windows() {
        let text = counting("joint", 60);
        let windows = 60 - 8 + 1;
        let order = bridge::randperm(ORDER.seed + ORDER.epoch, windows).unwrap();
        let ranks: Vec<_> = (0..3)
            .map(|rank| starts(&mut ShardedTextIter::new(&text, 8, 4, share(rank, 3), ORDER), 8))
            .collect();
        assert!(ranks.iter().all(|own| own.len() == 4));
        for k in 0..4 {
            let joint: Vec<_> =
                (0..4).flat_map(|row| ranks.iter().map(move |own| own[k][row])).collect();
            assert_eq!(joint, order[k * 12..(k + 1) * 12]);
        }
    }

    #[test]
    fn the_items_are_those_of_tch() {
        let text = counting("items", 20);
        let theirs = text.iter_shuffle(5, 3).next().unwrap();
        let ours = ShardedTextIter::new(&text, 5, 3, share(1, 2), ORDER).next().unwrap();
        assert_eq!(
            (theirs.kind(), theirs.size(), theirs.device()),
            (ours.kind(), ours.size(), ours.device())
        );
        // One rank: every window that fills a batch, as many batches as tch has.
        let alone = starts(&mut ShardedTextIter::new(&text, 5, 3, Share::ALONE, ORDER), 5);
        assert_eq!(alone.len(), text.iter_shuffle(5, 3).count());
        let mut all: Vec<_> = alone.concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 15);
    }

    #[test]
    fn the_size_hint_is_the_count() {
        let text = counting("hint", 30);
        let mut iter = ShardedTextIter::new(&text, 4, 3, share(0, 2), ORDER);
        assert_eq!(iter.size_hint(), (4, Some(4)));
        assert!(iter.next().is_some());
        assert_eq!(iter.size_hint(), (3, Some(3)));
        assert_eq!(iter.count(), 3);
    }

    #[test]
    fn split_batches_are_dealt_in_order() {
        let text = counting("split", 12);
        let of = |rank| {
            let forwards: Draw = |n, device| Ok(Tensor::arange(n, (Kind::Int64, device)));
            starts(
                &mut ShardedTextIter::split_by(&text, 2, 5, share(rank, 2), forwards).unwrap(),
                2,
            )
        };
        // Eleven windows: the last one fills no batch of five.
        assert_eq!(
            (of(0), of(1)),
            (vec![vec![0, 1, 2], vec![5, 6, 7]], vec![vec![3, 4], vec![8, 9]])
        );
        let error = ShardedTextIter::f_split(&text, 2, 2, share(0, 3)).unwrap_err();
        assert!(matches!(error, DataError::FewerRowsThanRanks { rows: 2, world_size: 3, .. }));
        let mut alone = ShardedTextIter::split(&text, 2, 5, Share::ALONE);
        assert_eq!(starts(&mut alone, 2).concat().len(), 10);
    }

    #[test]
    fn whole_batches_are_the_same_on_every_rank() {
        let text = counting("whole", 40);
        let of = |rank, order| {
            let whole = ShardedTextIter::f_whole(&text, 4, 5, share(rank, 3), order);
            starts(&mut whole.unwrap(), 4)
        };
        let order = bridge::randperm(ORDER.seed + ORDER.epoch, 37).unwrap();
        assert_eq!(
            (of(0, Some(ORDER)).concat(), of(2, Some(ORDER))),
            (order[..35].to_vec(), of(1, Some(ORDER)))
        );
        assert_eq!(of(0, None).concat().len(), 35);
    }

    #[test]
    fn what_gives_no_window_or_no_batch_each_is_refused() {
        let text = counting("refused", 10);
        let new = |seq_len, batch, world| {
            ShardedTextIter::f_new(&text, seq_len, batch, share(0, world), ORDER)
        };
        assert!(matches!(
            new(11, 1, 2),
            Err(DataError::SequenceLength { seq_len: 11, text_len: 10 })
        ));
        assert!(matches!(new(0, 1, 2), Err(DataError::SequenceLength { .. })));
        assert!(matches!(new(12, 1, 1), Err(DataError::SequenceLength { .. })));
        assert!(matches!(new(4, 4, 2), Err(DataError::NotABatchEach { samples: 7, .. })));
        // One process gets nothing from these either.
        assert_eq!(new(4, 8, 2).unwrap().count(), 0);
        assert_eq!(new(11, 1, 1).unwrap().count(), 0);
    }
}
