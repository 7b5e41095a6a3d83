//! The attribute `#[distributed]`: data-parallel training for a function written for one device.
//!
//! This crate is the attribute alone; programs depend on `ddp-runtime`, which re-exports it. All documentation is
//! on [`macro@distributed`]; the list below is for who wants to know why a line was changed, or was not.
#![doc = include_str!("../decisions.md")]

mod analysis;
mod batch;
mod check;
mod errors;
mod expand;
mod function;
mod imports;
mod macros;
mod marks;
mod options;
mod plan;
mod recognise;
mod rewrite;
#[cfg(test)]
mod tests;
mod walk;

use proc_macro::TokenStream;

/// Trains the function's loop on several devices, one process each.
///
/// ```ignore
/// use ddp_runtime::distributed;
///
/// #[distributed]
/// fn train(data: &Dataset) -> anyhow::Result<()> {
///     let vs = nn::VarStore::new(Device::cuda_if_available());
///     let net = Net::new(&vs.root());
///     let mut opt = nn::Adam::default().build(&vs, 1e-3)?;
///     for epoch in 0..10 {
///         for (x, y) in data.train_iter(64).shuffle().to_device(vs.device()) {
///             opt.backward_step(&net.forward(&x).cross_entropy_for_logits(&y));
///         }
///         println!("epoch {epoch}");
///     }
///     vs.save("net.ot")?;
///     Ok(())
/// }
/// ```
///
/// Started with `cargo ddp run -n 4`, four processes train together; started plainly, it is the function as it
/// was written. (The examples here are not compiled, as this crate is free of libtorch; those of the repository's
/// `examples` are.)
///
/// # What changes
///
/// Each change is one call into the runtime, so `cargo expand` stays readable; `#[distributed(explain)]` lists
/// them in the function's documentation. Found are, in the body and in closures inside it, but not in `fn` items
/// inside it:
///
/// | written | on several ranks |
/// | --- | --- |
/// | the function | begins by joining the group; its value, `return` and errors end it for this rank |
/// | `Device::Cuda(_)`, `Device::cuda_if_available()`, `kind::FLOAT_CUDA` and its like | the rank's device |
/// | `VarStore::new(..)`, parameters `&VarStore`, `&mut VarStore`, `VarStore` | equal on all ranks before the first step |
/// | `data.train_iter(n)`, `text.iter_shuffle(len, n)`, `Iter2::new(xs, ys, n)` | the rank's share of the batches |
/// | a `for` over numbers, or a count called `epoch`, around such batches | tells them the epoch |
/// | `println!` and its like, `dbg!` | the main rank prints, all evaluate the arguments |
/// | `info!`, `debug!`, `trace!` of `log` and `tracing`, `log!` and `event!` of such levels | the main rank logs; a level that is off evaluates nothing |
/// | `ProgressBar::new(n)`, `MultiProgress::new()`, `items.progress()` | hidden on the other ranks |
/// | `vs.save(path)` | the main rank writes, all wait and get its result |
/// | `tch::manual_seed(s)` | one stream for weights and order, one of the rank's own for the rest |
///
/// `backward` and `step` are not touched: the runtime averages the gradients inside every `backward` that runs
/// while the function does, wherever it is written. `warn!` and `error!` are not touched either, since every
/// rank's warnings matter. `test_iter` is not shared: every rank evaluates the whole set.
///
/// A name that is not tch's is left alone where its type tells so: `table.save(path)` of another type stays what it is.
/// Of another type's `own.train_iter(n)` nobody says how to share its batches: that is a compile error, which a mark
/// on the loop ends. The crate's own page lists how each of these is decided.
///
/// # Marks
///
/// Where it cannot be told how a loop that trains is to be shared, the attribute asks for one word on it:
///
/// ```ignore
/// #[ddp(shard)] // every rank takes every W-th item, all the same number; with batch = "global" its part of every item
/// for part in games.chunks(256) { step(part); }
///
/// #[ddp(each)] // every rank runs all items, on data of its own
/// while let Ok(batch) = receiver.recv() { step(&batch); }
///
/// #[ddp(same)] // every rank does the same work
/// for fold in folds { step(&fold); }
///
/// #[ddp(skip)] // nothing in this statement is rewritten or checked
/// println!("every rank says this");
/// ```
///
/// What feeds a marked loop, in its head or from a variable, is not shared a second time, nor are batches that are
/// made in the body of a loop marked `shard` or `each`, since its data is the rank's own. No mark is needed
/// around a loop that is shared by itself, nor on a range of numbers that picks no rows out of data.
///
/// A program that has the attribute under a condition, `#[cfg_attr(feature = "ddp", distributed)]`, writes its
/// marks in the same way: `#[cfg_attr(feature = "ddp", ddp(shard))]`.
///
/// # Options
///
/// Each can be overridden from the environment, as `DDP_` and its name in capitals. Beside each stands what does
/// the same without the attribute.
///
/// **`batch = "per_rank"`** (default) or **`"global"`**: what a batch size means. Per rank, a step sees world size
/// times as many samples, as under PyTorch's DistributedDataParallel; global, it sees what one process would.
///
/// ```ignore
/// let options = Options { batch: Batch::Global, ..Options::default() };
/// let scope = Scope::with_options("train", options)?;
/// ```
///
/// With `"global"` the items of a loop marked `#[ddp(shard)]` are batches, and every rank gets its part of each, along the
/// first dimension: of tensors, lists and slices, tuples of them, and types of yours that derive `SplitBatch`. What cannot be
/// split does not compile; where the option comes from the environment, it is refused at run time.
///
/// **`loss = "mean"`** (default) or **`"sum"`**: what the loss is over the samples of a batch that the ranks share. Gradients are
/// averaged, or added up.
///
/// ```ignore
/// let options = Options { batch: Batch::Global, loss: Loss::Sum, ..Options::default() };
/// ```
///
/// **`backend = "auto"`** (default), `"nccl"`, `"gloo"`, `"shm"`: the transport of the gradients.
///
/// ```ignore
/// let options = Options { backend: Backend::Gloo, ..Options::default() };
/// ```
///
/// **`sync_batch_norm`**: batch normalisation uses the mean and variance over all ranks, as `torch.nn.SyncBatchNorm`
/// does in PyTorch. There is nothing to convert; `local_batch_norm(&vs)` leaves a store out, and
/// `sync_batch_norm(&vs)` does it for one store without the option.
///
/// ```ignore
/// let options = Options { sync_batch_norm: true, ..Options::default() };
/// ```
///
/// **`seed = 7`**: the order of shared data, and of what no `manual_seed` decides.
///
/// ```ignore
/// let options = Options { seed: 7, ..Options::default() };
/// ```
///
/// **`uneven = "error"`** (default) or **`"join"`**: when a rank returns while others train, end the job with an
/// error that says where each rank was, or let it stand aside until all have returned, as PyTorch's `join()` does;
/// the mean is over the ranks that still train.
///
/// **`accumulate = 4`**: average once in four backwards, instead of in each. The result is the same, the traffic a
/// quarter. A short last group is averaged when its loop ends.
///
/// ```ignore
/// if (i + 1) % 4 == 0 { loss.backward() } else { scope.no_sync(|| loss.backward()) }
/// ```
///
/// **`print = "main"`** (default) or **`"all"`**: who prints.
///
/// ```ignore
/// if scope.is_main() { println!("..") }
/// ```
///
/// **`timeout = 300`**: the longest wait for another rank, in seconds.
///
/// ```ignore
/// let options = Options { timeout: Duration::from_secs(300), ..Options::default() };
/// ```
///
/// **`bucket_mb = 25`**: the size of a gradient bucket, in MiB. Without it the ranks choose one that fits their transport.
///
/// ```ignore
/// let options = Options { bucket_bytes: Some(25 << 20), ..Options::default() };
/// ```
///
/// **`compress = "none"`** (default), `"bf16"`, `"fp16"`, `"powersgd"`: the form in which gradients travel.
///
/// ```ignore
/// scope.register_comm_hook(PowerSgd::new(1))?;
/// ```
///
/// **`debug = "off"`** (default) or **`"checksum"`**: compare the parameters and buffers of all ranks after every 100th
/// averaged backward, and name the first that differs.
///
/// ```ignore
/// let options = Options { debug: Debug::Checksum { every: 100 }, ..Options::default() };
/// ```
///
/// **`crate = "path"`**: where the runtime is, if not at `::ddp_runtime`.
///
/// **`explain`**: the function's documentation lists each line that was changed, and to what end.
///
/// # What is refused
///
/// At compile time, on the smallest wrong token and with the line to write instead: functions that are `async` or
/// `const` or have no body; loops that train of which nobody says how to share them; work on several CUDA
/// devices; a step on another thread; a call that waits for all ranks inside a branch on the rank; a `break`,
/// `continue`, `return` or step that surely depends on the rank's own loss without a vote; a shuffle by an unseeded
/// generator beside a loop marked `shard`. What cannot be seen in the tokens, the runtime refuses before the first wrong
/// step.
///
/// # Limits
///
/// * A value of a user's type whose method `save` takes `self` by value behind a reborrow, or whose type named `Iter2` is not tch's, is a type error on that line: write `#[ddp(skip)]` there.
/// * Arguments of macros are looked into where the macro is well known (`vec!`, `format!`, `assert!` and their
///   like); the tokens of others stay as they are, a `backward` in them is noticed.
/// * An exit by `?`, or by a `return` inside a macro such as `bail!`, ends the function's part in the group as a
///   failure, unless the runtime finds that all ranks left alike.
#[proc_macro_attribute]
pub fn distributed(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(args.into(), item.into()).into()
}

/// Makes a struct a batch that the ranks can share: its fields are columns, with a value for every sample.
///
/// ```ignore
/// use ddp_runtime::SplitBatch;
///
/// #[derive(SplitBatch)]
/// struct Sentences {
///     tokens: Tensor,
///     translations: Vec<String>,
///     #[batch(whole)]
///     language: Language,
/// }
/// ```
///
/// The type of every field implements `SplitBatch`, but for those marked `#[batch(whole)]`, which go to every rank as they are.
/// `#[batch(crate = "path")]` on the struct says where the runtime is, if not at `::ddp_runtime`.
#[proc_macro_derive(SplitBatch, attributes(batch))]
pub fn split_batch(item: TokenStream) -> TokenStream {
    batch::expand(item.into()).into()
}
