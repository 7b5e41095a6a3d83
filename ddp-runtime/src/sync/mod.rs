//! Gradient synchronisation.
//!
//! - `bucket`: which gradients lie together (pure);
//! - `leaf`: the parameters this rank knows, numbered;
//! - `stores`: variable stores, made equal;
//! - `layout`: the buckets in memory, and the views that are the gradients;
//! - `pass`: what is remembered of a backward, and how far the one under way is;
//! - `agree`: what the ranks settle about it among themselves;
//! - `reducer`: one backward from its first header to its last all-reduce.
mod agree;
mod bucket;
mod layout;
mod leaf;
mod pass;
mod reducer;
mod stores;

pub(crate) use reducer::Reducer;
