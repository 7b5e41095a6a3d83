//! Expansions that are compiled and run against a stand-in for the runtime.
//!
//! Every lint is an error here: nothing that the attribute inserts may make one fire.

#![deny(warnings, clippy::all, clippy::pedantic, clippy::nursery, unused, future_incompatible)]
#![deny(rust_2018_idioms, let_underscore_drop, unreachable_code, unused_qualifications)]
#![deny(elided_lifetimes_in_paths, single_use_lifetimes, trivial_casts, variant_size_differences)]
#![allow(missing_docs)]
// What the shortened programs of these tests do themselves.
#![allow(clippy::missing_const_for_fn, clippy::unused_self, clippy::needless_pass_by_value)]
#![allow(clippy::trivially_copy_pass_by_ref, clippy::cast_precision_loss, clippy::never_loop)]
#![allow(
    clippy::drop_non_drop,
    clippy::unnecessary_wraps,
    clippy::match_same_arms,
    clippy::match_bool
)]
#![allow(clippy::redundant_pub_crate, clippy::question_mark)]

extern crate self as another_name;
extern crate self as ddp_runtime;

#[path = "../support/stub.rs"]
pub mod __private;

/// What a module of the user may be called.
mod core {}
/// What a module of the user may be called.
mod std {}
/// What a module of the user may be called.
mod tch {}

/// The runtime under another name.
mod renamed {
    pub(crate) use crate::__private;
}

mod batch;
mod data;
mod forms;
mod hygiene;
mod language;
mod leave;
mod loops;
mod output;
mod places;
mod save;
