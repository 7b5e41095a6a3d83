//! Gradient synchronisation.
//!
//! - `bucket`: which gradients lie together (pure);
//! - `leaf`: the parameters this rank knows, numbered;
//! - `stores`: variable stores, made equal;
//! - `layout`: the buckets in memory, and the views that are the gradients;
//! - `walks`: which leaves a backward reaches;
//! - `pass`: what is remembered of a backward, and how far the one under way is;
//! - `accumulate`: gradients that wait for a later backward;
//! - `agree`: what the ranks settle about a backward among themselves, each a message;
//! - `settle`: the course of that, once all headers are there;
//! - `launch`: the all-reduces, in the one order of all ranks, and the wait for them;
//! - `reducer`: one backward from its first header to its last all-reduce.
mod accumulate;
mod agree;
mod bucket;
mod launch;
mod layout;
mod leaf;
mod pass;
mod reducer;
mod settle;
mod stores;
mod walks;

pub(crate) use layout::Layout;
pub(crate) use leaf::identity;
pub(crate) use reducer::Reducer;
