//! `#[ddp(shard)]`: the items of a loop are dealt out, or each of them is a batch that the ranks share (`batch = "global"`).
//!
//! An attribute without that option may still meet it at run time, from the environment or the function around. So
//! `(&&Items::new(items)).shard()` finds [`ShardBatches`] where the items are batches, by method resolution as in `probe`, and
//! otherwise [`ShardItems`], which deals out items of any type and refuses to share them.
use std::cell::Cell;

use super::{batch_rule, deal_out};
use crate::data::{self, Shard, Split, SplitBatch};
use crate::error::Error;
use crate::options::Batch;
use crate::scope::{current_share, end_process};

/// What a marked loop runs over.
pub struct Items<I>(Cell<Option<I>>);

impl<I: IntoIterator> Items<I> {
    /// Whatever can be iterated over.
    pub fn new(items: I) -> Self {
        Self(Cell::new(Some(items)))
    }

    fn take(&self) -> I {
        match self.0.take() {
            Some(items) => items,
            None => unreachable!("an expansion asks once"),
        }
    }
}

/// Items that are batches.
pub trait ShardBatches {
    /// This rank's items, or its parts of all of them.
    type Dealt;
    /// Deals out whole items, or parts of each, as the scope says.
    fn shard(&self) -> Self::Dealt;
}

impl<I: IntoIterator<Item: SplitBatch>> ShardBatches for &Items<I> {
    type Dealt = Dealt<I::IntoIter>;

    fn shard(&self) -> Self::Dealt {
        split(self.take())
    }
}

/// Items of any type.
pub trait ShardItems {
    /// This rank's items.
    type Dealt;
    /// Deals out whole items.
    fn shard(&self) -> Self::Dealt;
}

impl<I: IntoIterator> ShardItems for Items<I> {
    type Dealt = Shard<I::IntoIter>;

    fn shard(&self) -> Self::Dealt {
        if batch_rule() == Batch::Global {
            end_process(&Error::unsupported(
                format!(
                    "with batch = \"global\" the ranks share each item of a loop marked #[ddp(shard)], which they cannot \
                     do with a `{}`",
                    std::any::type_name::<I::Item>()
                ),
                "derive `SplitBatch` for a batch type of your own, and make owned batches of references",
            ));
        }
        deal_out();
        data::shard(self.take(), current_share())
    }
}

/// This rank's part of the items, in the scope that this process is in: `#[ddp(shard)]` as a function.
///
/// Every world-size-th item, the same number on all ranks; without a scope, or with one rank, all of them. Variable stores that
/// were registered are made equal before. [`data::shard`] is the same for a share of one's own. With `batch = "global"` items
/// of a loop are to be shared themselves, which a function cannot do: the process ends with an error that says so.
pub fn shard<I: IntoIterator>(items: I) -> Shard<I::IntoIter> {
    ShardItems::shard(&Items::new(items))
}

/// The same, where the attribute says `batch = "global"`: what cannot be shared is a compile error.
pub fn split<I: IntoIterator<Item: SplitBatch>>(items: I) -> Dealt<I::IntoIter> {
    deal_out();
    match batch_rule() {
        Batch::PerRank => Dealt::Items(data::shard(items, current_share())),
        Batch::Global => Dealt::Parts(data::split(items, current_share())),
    }
}

/// What a rank gets of a marked loop.
#[derive(Debug)]
pub enum Dealt<I> {
    /// Every world-size-th item.
    Items(Shard<I>),
    /// Its part of each.
    Parts(Split<I>),
}

impl<I: Iterator<Item: SplitBatch>> Iterator for Dealt<I> {
    type Item = I::Item;

    #[track_caller]
    fn next(&mut self) -> Option<I::Item> {
        match self {
            Dealt::Items(items) => items.next(),
            Dealt::Parts(parts) => parts.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Dealt::Items(items) => items.size_hint(),
            Dealt::Parts(parts) => parts.size_hint(),
        }
    }
}
