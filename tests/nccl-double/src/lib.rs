//! Stands in for NCCL and CUDA's driver in tests: one library with the C interface of both, as far as the runtime uses it.
//!
//! The memory of the "GPU" is that of the host, a stream is a thread, and communicators meet in a file. So the order of calls,
//! grouping, events, dtypes, error codes and aborts can be tested with several processes and no GPU. It is linked by nobody and
//! never shipped; a test puts it under the names `libnccl.so.2` and `libcuda.so.1` into a folder of `LD_LIBRARY_PATH`.
//!
//! Rooms: `cuda` (the driver's interface), `stream` (streams and events), `nccl` (NCCL's interface), `meeting` (the file), `reduce`
//! (numbers), `worker` (threads), `setting` (what a test sets, and the log).
// A C interface can only be offered with unsafe code. What each function relies on is what NVIDIA's contract asks of its
// caller, and is not said again at each; its name is NVIDIA's, and seen by the dynamic linker alone.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, unreachable_pub, missing_docs, non_snake_case)]
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

mod cuda;
mod meeting;
mod nccl;
mod reduce;
mod setting;
mod stream;
mod worker;
