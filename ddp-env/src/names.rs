//! The name of every environment variable that launcher and runtime share.
//!
//! The first group is torchrun's contract, which other launchers and libraries understand too; the
//! second is this project's own, all under `DDP_`.

/// Position of this process among all processes of the job, from 0.
pub const RANK: &str = "RANK";
/// Number of processes of the job.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// Position of this process among those of its host, from 0.
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// Number of processes of the job on this host.
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// Position of this host among the hosts of the job, from 0.
pub const GROUP_RANK: &str = "GROUP_RANK";
/// Number of hosts of the job.
pub const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
/// Position of this host, as PyTorch Lightning and several schedulers name it; read when
/// [`GROUP_RANK`] is not set.
pub const NODE_RANK: &str = "NODE_RANK";
/// Position among the processes of one role; equal to [`RANK`], since there is one role.
pub const ROLE_RANK: &str = "ROLE_RANK";
/// Number of processes of one role; equal to [`WORLD_SIZE`], since there is one role.
pub const ROLE_WORLD_SIZE: &str = "ROLE_WORLD_SIZE";
/// Name of the role.
pub const ROLE_NAME: &str = "ROLE_NAME";
/// Host name or address at which the store of the job is reached.
pub const MASTER_ADDR: &str = "MASTER_ADDR";
/// TCP port at which the store of the job is reached.
pub const MASTER_PORT: &str = "MASTER_PORT";
/// `True` (exactly so) when torchrun's agent serves the store and every rank is a client of it.
pub const TORCHELASTIC_USE_AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";
/// Name of the job, the same on all hosts.
pub const TORCHELASTIC_RUN_ID: &str = "TORCHELASTIC_RUN_ID";
/// How often the job has been started again, from 0.
pub const TORCHELASTIC_RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// How often the job may be started again.
pub const TORCHELASTIC_MAX_RESTARTS: &str = "TORCHELASTIC_MAX_RESTARTS";
/// Where a process under torchrun leaves its error.
pub const TORCHELASTIC_ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";

/// Which launcher started the process; [`CARGO_DDP`] or not set.
pub const DDP_LAUNCHER: &str = "DDP_LAUNCHER";
/// The value of [`DDP_LAUNCHER`] that `cargo ddp` sets.
pub const CARGO_DDP: &str = "cargo-ddp";
/// Number of an inherited file descriptor: the listening socket of the store, bound by the
/// launcher. Rank 0 only.
pub const DDP_STORE_FD: &str = "DDP_STORE_FD";
/// Folder in which a failing rank leaves its [`FailureRecord`](crate::failure::FailureRecord).
pub const DDP_REPORT_DIR: &str = "DDP_REPORT_DIR";
/// Overrides option `backend`.
pub const DDP_BACKEND: &str = "DDP_BACKEND";
/// Overrides option `batch`.
pub const DDP_BATCH: &str = "DDP_BATCH";
/// Overrides option `loss`.
pub const DDP_LOSS: &str = "DDP_LOSS";
/// Overrides option `timeout`, in seconds.
pub const DDP_TIMEOUT: &str = "DDP_TIMEOUT";
/// Overrides option `seed`.
pub const DDP_SEED: &str = "DDP_SEED";
/// Overrides option `bucket_mb`, in MiB.
pub const DDP_BUCKET_MB: &str = "DDP_BUCKET_MB";
/// Overrides option `print`.
pub const DDP_PRINT: &str = "DDP_PRINT";
/// Overrides option `uneven`.
pub const DDP_UNEVEN: &str = "DDP_UNEVEN";
/// Overrides option `accumulate`, in backward passes a step.
pub const DDP_ACCUMULATE: &str = "DDP_ACCUMULATE";
/// Overrides option `sync_batch_norm`.
pub const DDP_SYNC_BATCH_NORM: &str = "DDP_SYNC_BATCH_NORM";
/// Overrides option `compress`.
pub const DDP_COMPRESS: &str = "DDP_COMPRESS";
/// Overrides option `debug`.
pub const DDP_DEBUG: &str = "DDP_DEBUG";
/// Seconds that a rank gets to end by itself after it was asked to stop.
pub const DDP_GRACE: &str = "DDP_GRACE";
/// What a rank does with memory that its program has freed: `keep` or `system`.
pub const DDP_MALLOC: &str = "DDP_MALLOC";
/// The file of NCCL to load, in place of the one that is found.
pub const DDP_NCCL_LIB: &str = "DDP_NCCL_LIB";
/// Where to write a timeline of all ranks.
pub const DDP_TRACE: &str = "DDP_TRACE";
