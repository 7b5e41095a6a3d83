//! The proof that a loop's items are the rank's own: their type.
//!
//! The attribute sees names. A loop over what is called a loader is trusted with its data only if the compiler knows the
//! loader as ours; a loader of the user's, by whatever name, is asked for a mark like any other source.
use std::iter::{
    Chain, Enumerate, Filter, FilterMap, Flatten, Fuse, Inspect, Map, MapWhile, Peekable, Skip,
    SkipWhile, StepBy, Take, TakeWhile, Zip,
};

use crate::data::{Batches, DataLoader, Dispatched, ShardedIter2, ShardedTextIter};

/// An iterator, or what becomes one, of which each rank has its own items.
#[diagnostic::on_unimplemented(
    message = "cannot tell how to share this loop; write #[ddp(shard)], #[ddp(each)] or #[ddp(same)] on it",
    label = "the attribute takes this for a loader, and `{Self}` does not deal its items out to the ranks",
    note = "shard: every rank takes its share of the items; each: every rank runs them all on data of its own; same: every \
            rank does the same work"
)]
pub trait DealtOut {}

impl<B> DealtOut for Batches<B> {}
impl<B> DealtOut for &DataLoader<B> {}
impl<B> DealtOut for &mut DataLoader<B> {}
impl<I, B> DealtOut for Dispatched<I, B> {}
impl<I: DealtOut> DealtOut for crate::checkpoint::Batches<'_, I> {}
impl DealtOut for ShardedIter2 {}
impl DealtOut for ShardedTextIter {}

impl<I: DealtOut + ?Sized> DealtOut for &mut I {}

macro_rules! adaptors {
    ($($adaptor:ident [$($other:ident)?])*) => {
        $(impl<I: DealtOut $(, $other)?> DealtOut for $adaptor<I $(, $other)?> {})*
    };
}
adaptors! {
    Enumerate [] Filter [F] FilterMap [F] Fuse [] Inspect [F] Map [F] MapWhile [F] Skip [] SkipWhile [F] StepBy [] Take []
    TakeWhile [F] Zip [J]
}
impl<I: Iterator + DealtOut> DealtOut for Peekable<I> {}
impl<I: Iterator<Item: IntoIterator> + DealtOut> DealtOut for Flatten<I> {}
impl<I: DealtOut, J: DealtOut> DealtOut for Chain<I, J> {}
#[cfg(feature = "indicatif")]
impl<I: DealtOut> DealtOut for indicatif::ProgressBarIter<I> {}

/// The head of a loop over what is called a loader.
pub fn batches<I: DealtOut>(items: I) -> I {
    items
}
