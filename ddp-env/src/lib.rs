//! The contract between launcher and runtime: what both must know, written once.
//!
//! Nothing here needs libtorch, a GPU or a socket. The launcher sets what [`names`] lists, a
//! training process reads it back with [`Launch::from_env`], both take their exit codes from
//! [`exit`], and a process that fails leaves a [`failure::FailureRecord`] from which the launcher
//! tells who failed first.
//!
//! ```
//! use ddp_env::{Launch, LauncherKind};
//!
//! let set = |name: &str| match name {
//!     "RANK" | "LOCAL_RANK" => Some("1".to_owned()),
//!     "WORLD_SIZE" | "LOCAL_WORLD_SIZE" => Some("2".to_owned()),
//!     "MASTER_ADDR" => Some("127.0.0.1".to_owned()),
//!     "MASTER_PORT" => Some("29500".to_owned()),
//!     _ => None,
//! };
//! let launch = Launch::from_lookup(&set)?.expect("the variables of a launcher are set");
//! assert_eq!(launch.launcher, LauncherKind::Manual);
//! assert!(!launch.topology.is_main());
//! # Ok::<(), ddp_env::EnvError>(())
//! ```

pub mod exit;
pub mod failure;
mod launch;
pub mod names;
pub mod nccl;
pub mod plan;
mod topology;

pub use launch::{EnvError, Launch, LauncherKind, Rendezvous, StoreHost};
pub use topology::{Topology, TopologyError};
