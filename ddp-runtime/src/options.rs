//! The options of a scope, and their overrides from the environment.
use std::path::PathBuf;
use std::time::Duration;

use ddp_env::names;

use crate::error::{Error, Result};
use crate::hook::{Bf16Compress, CommHook, Fp16Compress, PowerSgd};
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

/// How gradients travel between the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compress {
    /// As they are.
    #[default]
    None,
    /// As bf16: [`Bf16Compress`].
    Bf16,
    /// As f16: [`Fp16Compress`].
    Fp16,
    /// As approximations of rank 1, from the 1001st backward on: [`PowerSgd`], where other ranks and starts can be set.
    PowerSgd,
}

impl Compress {
    pub(crate) fn hook(self) -> Option<Box<dyn CommHook>> {
        match self {
            Compress::None => None,
            Compress::Bf16 => Some(Box::new(Bf16Compress::new())),
            Compress::Fp16 => Some(Box::new(Fp16Compress::new())),
            Compress::PowerSgd => Some(Box::new(PowerSgd::new(1))),
        }
    }
}

/// What is checked beyond what costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Debug {
    /// Nothing.
    #[default]
    Off,
    /// The parameters and buffers of all replicas are compared, by checksums, after every so many averaged backwards. The error
    /// names the first that differs, and the ranks.
    Checksum {
        /// Averaged backwards from one comparison to the next; at least 1.
        every: u64,
    },
}

impl Debug {
    /// How often replicas are compared unless it is said.
    const EVERY: u64 = 100;
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
    /// The size of a gradient bucket in bytes, the first one excepted, which is at most 1 MiB. `DDP_BUCKET_MB`, in MiB.
    ///
    /// `None`: the ranks measure their transport when the scope begins, and all take 25 MiB, or 32 or 64 where its latency would
    /// be more than a twentieth of a smaller bucket's time; on hosts with GPUs it is 25 MiB. What was chosen is
    /// [`dist::bucket_bytes`](crate::dist::bucket_bytes).
    pub bucket_bytes: Option<usize>,
    /// How many backwards make a group, in which the last one averages what all of them have accumulated; at least 1.
    /// `DDP_ACCUMULATE`.
    ///
    /// The loss of each is to be divided by this number where the step is to follow the mean. A group that stays short, since
    /// the loop over the data ends, is averaged at that end; before any other step that comes early,
    /// [`average_gradients`](crate::average_gradients) does it. Not together with [`Uneven::Join`].
    pub accumulate: usize,
    /// The rule for ranks that take different numbers of steps. `DDP_UNEVEN`: `error`, `join`.
    pub uneven: Uneven,
    /// How gradients travel. `DDP_COMPRESS`: `none`, `bf16`, `fp16`, `powersgd`.
    pub compress: Compress,
    /// What is checked. `DDP_DEBUG`: `off`, `checksum` (every 100 averaged backwards), `checksum:N` (every N).
    pub debug: Debug,
    /// Whether mean and variance in `BatchNorm` layers are taken over all ranks: see
    /// [`sync_batch_norm`](crate::sync_batch_norm()), which does so for one store. `DDP_SYNC_BATCH_NORM`: `true`, `false`.
    pub sync_batch_norm: bool,
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
            bucket_bytes: None,
            accumulate: 1,
            uneven: Uneven::Error,
            compress: Compress::None,
            debug: Debug::Off,
            sync_batch_norm: false,
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

    /// Refuses what cannot be.
    ///
    /// # Errors
    /// [`Error::Option`] or [`Error::Unsupported`] names the options.
    pub(crate) fn check(&self) -> Result<()> {
        if self.accumulate == 0 {
            return Err(wrong("accumulate", "0", AT_LEAST_ONE));
        }
        if self.accumulate > 1 && self.uneven == Uneven::Join {
            return Err(Error::unsupported(
                "`accumulate` and `uneven = \"join\"` do not go together: ranks would be at different places of a group",
                "leave one of them out",
            ));
        }
        Ok(())
    }

    /// The options that must be the same on all ranks, one a line.
    pub(crate) fn shared(&self) -> String {
        let Self { batch, loss, seed, bucket_bytes, accumulate, uneven, .. } = self;
        let Self { compress, debug, sync_batch_norm, .. } = self;
        // What is chosen is compared when it is.
        let bucket_bytes =
            bucket_bytes.map_or_else(|| "chosen".to_owned(), |bytes| bytes.to_string());
        format!(
            "batch = {batch:?}\nloss = {loss:?}\nseed = {seed}\nbucket_bytes = {bucket_bytes}\naccumulate = {accumulate}\n\
             uneven = {uneven:?}\ncompress = {compress:?}\ndebug = {debug:?}\nsync_batch_norm = {sync_batch_norm}"
        )
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
            self.bucket_bytes = Some(parse_mebibytes(names::DDP_BUCKET_MB, &value)?);
        }
        if let Some(value) = get(names::DDP_ACCUMULATE) {
            self.accumulate = parse_accumulate(names::DDP_ACCUMULATE, &value)?;
        }
        if let Some(value) = get(names::DDP_UNEVEN) {
            self.uneven = parse_uneven(names::DDP_UNEVEN, &value)?;
        }
        if let Some(value) = get(names::DDP_COMPRESS) {
            self.compress = parse_compress(names::DDP_COMPRESS, &value)?;
        }
        if let Some(value) = get(names::DDP_DEBUG) {
            self.debug = parse_debug(names::DDP_DEBUG, &value)?;
        }
        if let Some(value) = get(names::DDP_SYNC_BATCH_NORM) {
            self.sync_batch_norm = match value.as_str() {
                "true" | "1" => true,
                "false" | "0" => false,
                _ => {
                    let expected = "write `true` or `false`";
                    return Err(wrong(names::DDP_SYNC_BATCH_NORM, &value, expected));
                }
            };
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
const AT_LEAST_ONE: &str = "write a whole number from 1 up";
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

/// A number of backwards.
fn parse_accumulate(name: &'static str, value: &str) -> Result<usize> {
    match value.parse() {
        Ok(backwards) if backwards > 0 => Ok(backwards),
        _ => Err(wrong(name, value, AT_LEAST_ONE)),
    }
}

/// The form of gradients called `value`.
pub(crate) fn parse_compress(name: &'static str, value: &str) -> Result<Compress> {
    match value {
        "none" => Ok(Compress::None),
        "bf16" => Ok(Compress::Bf16),
        "fp16" => Ok(Compress::Fp16),
        "powersgd" => Ok(Compress::PowerSgd),
        _ => Err(wrong(name, value, "write `none`, `bf16`, `fp16` or `powersgd`")),
    }
}

/// The checks called `value`.
pub(crate) fn parse_debug(name: &'static str, value: &str) -> Result<Debug> {
    let expected =
        "write `off`, `checksum`, or `checksum:N` with a whole number of backwards from 1 up";
    match (value, value.strip_prefix("checksum:").map(str::parse)) {
        ("off", _) => Ok(Debug::Off),
        ("checksum", _) => Ok(Debug::Checksum { every: Debug::EVERY }),
        (_, Some(Ok(every))) if every > 0 => Ok(Debug::Checksum { every }),
        _ => Err(wrong(name, value, expected)),
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
        assert_eq!(with("DDP_BUCKET_MB", "0.5").unwrap().bucket_bytes, Some(1 << 19));
        assert_eq!(with("DDP_ACCUMULATE", "4").unwrap().accumulate, 4);
        assert_eq!(with("DDP_COMPRESS", "powersgd").unwrap().compress, Compress::PowerSgd);
        assert_eq!(with("DDP_DEBUG", "checksum").unwrap().debug, Debug::Checksum { every: 100 });
        assert_eq!(with("DDP_DEBUG", "checksum:7").unwrap().debug, Debug::Checksum { every: 7 });
        assert_eq!(with("DDP_UNEVEN", "join").unwrap().uneven, Uneven::Join);
        assert!(with("DDP_SYNC_BATCH_NORM", "true").unwrap().sync_batch_norm);
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
            ("DDP_ACCUMULATE", "0"),
            ("DDP_COMPRESS", "zip"),
            ("DDP_DEBUG", "checksum:0"),
            ("DDP_UNEVEN", "some"),
            ("DDP_SYNC_BATCH_NORM", "yes"),
            ("DDP_PRINT", "some"),
            ("DDP_MALLOC", "jemalloc"),
        ] {
            let error = with(name, value).unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains("write"), "{error}");
        }
    }
}
