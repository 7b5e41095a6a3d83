//! The first all-reduce: one number, with a limit, so that GPUs which do not reach each other are found before training.
use std::time::{Duration, Instant};

use cudarc::driver::result::{free_sync, malloc_sync, memcpy_dtoh_sync, memcpy_htod_sync};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::nccl::sys::{ncclAllReduce, ncclDataType_t, ncclRedOp_t};

use super::fault::{Fault, driver};
use super::lane::Lane;

const WHAT: &str = "the first all-reduce between the GPUs";
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A number on the current GPU.
struct Number {
    at: CUdeviceptr,
}

impl Number {
    fn new(value: i64) -> Result<Self, Fault> {
        // SAFETY: freed once, in the drop below.
        let at = driver("cuMemAlloc", unsafe { malloc_sync(size_of::<i64>()) })?;
        let number = Self { at };
        // SAFETY: room for one number was allocated above.
        driver("cuMemcpyHtoD", unsafe { memcpy_htod_sync(at, &[value]) })?;
        Ok(number)
    }

    fn get(&self) -> Result<i64, Fault> {
        let mut value = [0];
        // SAFETY: the number is alive, and nothing under way writes to it.
        driver("cuMemcpyDtoH", unsafe { memcpy_dtoh_sync(&mut value, self.at) })?;
        Ok(value[0])
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`. The driver waits for what uses it.
        let _ = unsafe { free_sync(self.at) };
    }
}

/// Adds up 1, 2, .. over all ranks.
pub(super) fn sum_of_ranks(
    lane: &Lane,
    rank: usize,
    world_size: usize,
    limit: Duration,
    go_on: &dyn Fn() -> Result<(), Fault>,
) -> Result<(), Fault> {
    let number = Number::new(rank as i64 + 1)?;
    let deadline = Instant::now() + limit;
    let at = number.at as *mut std::ffi::c_void;
    let sum = || {
        let default_stream = std::ptr::null_mut();
        let ticket =
            lane.issue_behind(default_stream, "ncclAllReduce", Vec::new(), |comm, stream| {
                let (kind, op) = (ncclDataType_t::ncclInt64, ncclRedOp_t::ncclSum);
                // SAFETY: one number, which is alive until the collective is over or aborted.
                unsafe { ncclAllReduce(at.cast_const(), at, 1, kind, op, comm, stream) }
            })?;
        while !lane.is_done(&ticket)? {
            lane.look()?;
            go_on()?;
            if Instant::now() > deadline {
                return Err(Fault::Timeout { what: WHAT.to_owned(), limit });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        number.get()
    };
    // What hangs must not touch the number any more when it is freed.
    let found = sum().inspect_err(|fault| lane.give_up(fault.clone()))?;
    let expected = (world_size * (world_size + 1) / 2) as i64;
    if found == expected {
        return Ok(());
    }
    Err(Fault::Device(format!(
        "{WHAT} gave {found}, where {expected} is right: the GPUs do not exchange what they should (try NCCL_P2P_DISABLE=1)"
    )))
}
