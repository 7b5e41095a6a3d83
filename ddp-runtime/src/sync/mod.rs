//! Gradient synchronisation.
//!
//! - `bucket`: which gradients lie together (pure);
//! - `leaf`: the parameters this rank knows, numbered;
//! - `stores`: variable stores, made equal;
//! - `layout`: the buckets in memory, and the views that are the gradients;
//! - `reducer`: one backward from its first header to its last all-reduce.
mod bucket;
mod layout;
mod leaf;
mod reducer;
mod stores;

pub(crate) use reducer::Reducer;
