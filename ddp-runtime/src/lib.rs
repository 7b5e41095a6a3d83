//! Data-parallel training for [`tch`]: the runtime behind `#[distributed]`, and the same things to call by hand.
//!
//! Rooms: [`Scope`] (begin and end), `session` (what a scope shares), `group` (store, control plane, data plane), `sync`
//! (gradients and variable stores), `batch_norm`, [`data`] (samplers and shared iterators), [`checkpoint`], `output`, `save`, `random`, `device`.
//! `macro_support` is what the attribute's expansion calls. ARCHITECTURE.md in the repository has the map.

mod advice;
mod batch_norm;
mod bridge;
pub mod checkpoint;
mod collective;
mod comm;
mod control;
pub mod data;
mod data_parallel;
mod device;
pub mod dist;
mod distributed_data_parallel;
mod error;
mod grad_scaler;
mod group;
mod hash;
mod hook;
mod inner;
#[doc(hidden)]
pub mod macro_support;
pub mod metric;
mod options;
pub mod output;
mod random;
mod report;
mod save;
mod scope;
mod session;
mod signal;
mod steps;
mod sync;
mod trace;
mod uneven;
mod vote;
mod watch;
mod world;

#[doc(hidden)]
pub use macro_support as __private;

pub use batch_norm::{local_batch_norm, sync_batch_norm};
pub use checkpoint::{Checkpoints, Progress};
pub use comm::ReduceOp;
pub use data::SplitBatch;
pub use data_parallel::{DataParallel, Gather, Scatter, data_parallel};
pub use ddp_env::Topology;
pub use ddp_macros::{SplitBatch, distributed};
pub use device::{device, rank_device};
pub use distributed_data_parallel::DistributedDataParallel;
pub use error::{Error, Result, Who};
pub use grad_scaler::{GradScaler, GradScalerState, ScaledOptimizer};
pub use hook::{
    Bf16Compress, CommHook, Fp16Compress, GradBucket, Gradient, HookComm, PowerSgd, Reduction,
};
pub use macro_support::shard;
pub use options::{Backend, Batch, Compress, Debug, Loss, Malloc, Options, Uneven};
pub use random::{RngState, manual_seed, rng_state, set_rng_state};
pub use scope::{Scope, init};
pub use signal::{stop_on_signals, stop_requested};
pub use steps::{average_gradients, ignore};
pub use vote::{
    Shared, agree, main_first, main_only, mean, rank0, should_stop, skip_if, sum, sync,
};
pub use world::{is_main, local_rank, rank, world_size};
