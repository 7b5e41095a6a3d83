//! The options of a scope, and their overrides from the environment.
use std::path::PathBuf;
use std::time::Duration;

use ddp_env::names;

use crate::error::{Error, Result};
use crate::output::Print;

/// Which transport carries tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// The best for the device and the hosts: NCCL for tensors on GPUs; for those of the CPU shared memory on one host, Gloo
    /// on several.
    #[default]
    Auto,
    /// Gloo over TCP, for CPU tensors.
    Gloo,
    /// NCCL between GPUs; an error where a rank has none. CPU tensors go as with [`Auto`](Self::Auto).
    Nccl,
    /// Shared memory, for the CPU ranks of one host.
    Shm,
}

/// What a batch size means on several ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Batch {
    /// Every rank takes batches of that size: a step sees world size times as many samples, as under PyTorch's DDP.
    #[default]
    PerRank,
    /// The ranks share a batch of that size: a step sees what one process would. The order of the iterators of tch is then
    /// that of a single process (rank 0's generator), and not of `seed`; by hand it is
    /// [`ShardedIter2::split`](crate::data::ShardedIter2::split). The items of a loop marked `#[ddp(shard)]` are batches, too,
    /// each of which the ranks share: [`split`](crate::data::split). What [`Loss`] is over the samples counts.
    Global,
}

/// What becomes of ranks that take different numbers of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Uneven {
    /// The first rank to leave while others train ends the job, in an error that says where each rank was.
    #[default]
    Error,
    /// A rank that has returned, or has come to a save, stands aside until all have. The mean of a step is over the ranks that
    /// took it, a vote or a figure of all ranks is that of the ranks that gave theirs. When all are done, those that stood aside
    /// take the weights and buffers of the others; their optimizers have missed the steps, so training on after a save is an
    /// error. Parameters that are new after a rank has stood aside are refused, and so are [`Scope::broadcast`] from such a rank
    /// and [`Scope::all_gather`].
    ///
    /// [`Scope::broadcast`]: crate::Scope::broadcast
    /// [`Scope::all_gather`]: crate::Scope::all_gather
    Join,
}

/// What the loss is over the samples of a batch that the ranks share ([`Batch::Global`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// A mean (tch's `Reduction::Mean`): gradients are averaged over the ranks, by the number of samples of each.
    #[default]
    Mean,
    /// A sum (`Reduction::Sum`): gradients are added up over the ranks. All of the loss has to be a sum over samples: a term
    /// that is none, as a penalty on weights, is added once a rank, and belongs divided by the number of ranks or into the
    /// optimizer's weight decay.
    ///
    /// With [`Batch::PerRank`] it is refused: every rank's batch keeps its size there, and a sum its scale.
    Sum,
}

/// What a rank does with memory that its program has freed.
///
/// A training step frees its activations and gradients and needs as much again in the next step. The C library gives large
/// blocks back to the kernel, which then has to fill the same pages with zeros in every step: on CPUs a tenth of a step's
/// time and more. [`Keep`](Self::Keep) is what `MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_` and `MALLOC_TOP_PAD_` do; the
/// memory stays with the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malloc {
    /// Keeps it, in scopes of more than one rank, unless one of those variables is set.
    #[default]
    Keep,
    /// As the C library does.
    System,
}

/// How a scope works. [`Default`] is what `#[distributed]` without options means.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The transport. `DDP_BACKEND`: `auto`, `nccl`, `gloo`, `shm`.
    pub backend: Backend,
    /// The meaning of a batch size. `DDP_BATCH`: `per_rank`, `global`.
    pub batch: Batch,
    /// What the loss is over the samples of a batch. `DDP_LOSS`: `mean`, `sum`.
    pub loss: Loss,
    /// The longest wait for another rank. `DDP_TIMEOUT`, in seconds.
    pub timeout: Duration,
    /// The seed of the order of shared data, and of what `manual_seed` leaves open. `DDP_SEED`.
    pub seed: u64,
    /// The size of a gradient bucket in bytes, the first one excepted. `DDP_BUCKET_MB`, in MiB.
    pub bucket_bytes: usize,
    /// The rule for ranks that take different numbers of steps. `DDP_UNEVEN`: `error`, `join`.
    pub uneven: Uneven,
    /// Who prints. `DDP_PRINT`: `main`, `all`.
    pub print: Print,
    /// What becomes of freed memory. `DDP_MALLOC`: `keep`, `system`.
    pub malloc: Malloc,
    /// Where to write a timeline of all ranks, in Chrome's trace format (opens in Perfetto), when the scope ends. Relative to
    /// rank 0's working directory. A rank that ends early writes its own part beside it. `DDP_TRACE`.
    pub trace: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            backend: Backend::Auto,
            batch: Batch::PerRank,
            loss: Loss::Mean,
            timeout: Duration::from_secs(300),
            seed: 0,
            bucket_bytes: 25 << 20,
            uneven: Uneven::Error,
            print: Print::Main,
            malloc: Malloc::Keep,
            trace: None,
        }
    }
}

impl Options {
    /// These options, with what the environment sets in place of what was written.
    ///
    /// # Errors
    /// [`Error::Option`] names the variable, its value and what it may be.
    pub fn with_environment(self) -> Result<Self> {
        self.with_lookup(&|name| std::env::var(name).ok())
    }

    fn with_lookup(mut self, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let get = |name| lookup(name).filter(|value| !value.is_empty());
        if let Some(value) = get(names::DDP_BACKEND) {
            self.backend = parse_backend(names::DDP_BACKEND, &value)?;
        }
        if let Some(value) = get(names::DDP_BATCH) {
            self.batch = parse_batch(names::DDP_BATCH, &value)?;
        }
        if let Some(value) = get(names::DDP_LOSS) {
            self.loss = parse_loss(names::DDP_LOSS, &value)?;
        }
        if let Some(value) = get(names::DDP_TIMEOUT) {
            self.timeout = parse_seconds(names::DDP_TIMEOUT, &value)?;
        }
        if let Some(value) = get(names::DDP_SEED) {
            self.seed = value.parse().map_err(|_| wrong(names::DDP_SEED, &value, WHOLE_NUMBER))?;
        }
        if let Some(value) = get(names::DDP_BUCKET_MB) {
            self.bucket_bytes = parse_mebibytes(names::DDP_BUCKET_MB, &value)?;
        }
        if let Some(value) = get(names::DDP_UNEVEN) {
            self.uneven = parse_uneven(names::DDP_UNEVEN, &value)?;
        }
        if let Some(value) = get(names::DDP_PRINT) {
            self.print = parse_print(names::DDP_PRINT, &value)?;
        }
        if let Some(value) = get(names::DDP_MALLOC) {
            self.malloc = match value.as_str() {
                "keep" => Malloc::Keep,
                "system" => Malloc::System,
                _ => return Err(wrong(names::DDP_MALLOC, &value, "write `keep` or `system`")),
            };
        }
        if let Some(value) = get(names::DDP_TRACE) {
            self.trace = Some(value.into());
        }
        Ok(self)
    }
}

const SIZE: &str = "write a size in MiB above 0, at most 65536";
const WHOLE_NUMBER: &str = "write a whole number, not negative";

fn wrong(name: &'static str, value: &str, expected: &'static str) -> Error {
    Error::Option { name, value: value.to_owned(), expected }
}

/// The transport called `value`.
pub(crate) fn parse_backend(name: &'static str, value: &str) -> Result<Backend> {
    match value {
        "auto" => Ok(Backend::Auto),
        "gloo" => Ok(Backend::Gloo),
        "nccl" => Ok(Backend::Nccl),
        "shm" => Ok(Backend::Shm),
        _ => Err(wrong(name, value, "write `auto`, `nccl`, `gloo` or `shm`")),
    }
}

/// The batch rule called `value`.
pub(crate) fn parse_batch(name: &'static str, value: &str) -> Result<Batch> {
    match value {
        "per_rank" => Ok(Batch::PerRank),
        "global" => Ok(Batch::Global),
        _ => Err(wrong(name, value, "write `per_rank` or `global`")),
    }
}

/// The rule for uneven ranks called `value`.
pub(crate) fn parse_uneven(name: &'static str, value: &str) -> Result<Uneven> {
    match value {
        "error" => Ok(Uneven::Error),
        "join" => Ok(Uneven::Join),
        _ => Err(wrong(name, value, "write `error` or `join`")),
    }
}

/// The form of the loss called `value`.
pub(crate) fn parse_loss(name: &'static str, value: &str) -> Result<Loss> {
    match value {
        "mean" => Ok(Loss::Mean),
        "sum" => Ok(Loss::Sum),
        _ => Err(wrong(name, value, "write `mean` or `sum`")),
    }
}

/// The print rule called `value`.
pub(crate) fn parse_print(name: &'static str, value: &str) -> Result<Print> {
    match value {
        "main" => Ok(Print::Main),
        "all" => Ok(Print::All),
        _ => Err(wrong(name, value, "write `main` or `all`")),
    }
}

fn parse_seconds(name: &'static str, value: &str) -> Result<Duration> {
    let expected = "write a number of seconds above 0";
    let seconds: f64 = value.parse().map_err(|_| wrong(name, value, expected))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(limit) if !limit.is_zero() => Ok(limit),
        _ => Err(wrong(name, value, expected)),
    }
}

fn parse_mebibytes(name: &'static str, value: &str) -> Result<usize> {
    let size: f64 = value.parse().map_err(|_| wrong(name, value, SIZE))?;
    mebibytes(name, size)
}

/// A number of MiB in bytes.
pub(crate) fn mebibytes(name: &'static str, size: f64) -> Result<usize> {
    if size > 0.0 && size <= 65536.0 {
        // Within range by the line above.
        Ok(((size * f64::from(1 << 20)) as usize).max(1))
    } else {
        Err(wrong(name, &size.to_string(), SIZE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Result<Options> {
        Options::default().with_lookup(&|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn an_empty_environment_changes_nothing() {
        assert_eq!(Options::default().with_lookup(&|_| None).unwrap(), Options::default());
        assert_eq!(with("DDP_BACKEND", "").unwrap(), Options::default());
    }

    #[test]
    fn each_variable_has_its_effect() {
        assert_eq!(with("DDP_BACKEND", "gloo").unwrap().backend, Backend::Gloo);
        assert_eq!(with("DDP_BATCH", "global").unwrap().batch, Batch::Global);
        assert_eq!(with("DDP_LOSS", "sum").unwrap().loss, Loss::Sum);
        assert_eq!(with("DDP_TIMEOUT", "1.5").unwrap().timeout, Duration::from_millis(1500));
        assert_eq!(with("DDP_SEED", "7").unwrap().seed, 7);
        assert_eq!(with("DDP_BUCKET_MB", "0.5").unwrap().bucket_bytes, 1 << 19);
        assert_eq!(with("DDP_UNEVEN", "join").unwrap().uneven, Uneven::Join);
        assert_eq!(with("DDP_PRINT", "all").unwrap().print, Print::All);
        assert_eq!(with("DDP_MALLOC", "system").unwrap().malloc, Malloc::System);
        assert_eq!(with("DDP_TRACE", "run.json").unwrap().trace, Some("run.json".into()));
    }

    #[test]
    fn a_wrong_value_is_named_with_the_cure() {
        let error = with("DDP_BACKEND", "mpi").unwrap_err().to_string();
        assert_eq!(error, "DDP_BACKEND is `mpi`; write `auto`, `nccl`, `gloo` or `shm`");
        for (name, value) in [
            ("DDP_BATCH", "x"),
            ("DDP_LOSS", "max"),
            ("DDP_TIMEOUT", "0"),
            ("DDP_TIMEOUT", "-1"),
            ("DDP_TIMEOUT", "nan"),
            ("DDP_SEED", "-1"),
            ("DDP_BUCKET_MB", "0"),
            ("DDP_BUCKET_MB", "inf"),
            ("DDP_UNEVEN", "some"),
            ("DDP_PRINT", "some"),
            ("DDP_MALLOC", "jemalloc"),
        ] {
            let error = with(name, value).unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains("write"), "{error}");
        }
    }
}
