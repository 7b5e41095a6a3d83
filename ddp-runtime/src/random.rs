//! Random numbers: the same on all ranks while the model is made, each rank's own after that.
//!
//! # Note [Two streams]
//!
//! libtorch seeds its default generator with a constant, so until somebody draws differently all ranks build the same
//! weights. From the moment the weights are known to be equal (the head of the first training loop, or the end of the first
//! backward) rank r draws from a generator seeded with `seed + r`: dropout, noise and random batches differ between ranks.
//! Rank 0 goes on with the numbers of a single process.
//!
//! The order of shared data has seeds of its own and asks neither stream. Only where all ranks share each batch, to follow the
//! course of a single process, does it come from where that one takes it: rank 0's default generator, which moves on by the
//! same numbers. The others are told the order and draw nothing. So whatever seeds rank 0 (the default, `manual_seed` early
//! or late, the clock) decides, and ranks that are seeded differently still agree.
use std::sync::Mutex;
use std::sync::PoisonError;

use tch::{Device, Kind, Tensor};

use crate::error::{During, Result};
use crate::session;

/// The seed that libtorch starts with (`c10::detail::default_rng_seed_val`).
const LIBTORCH_SEED: i64 = 67_280_421_310_721;

#[derive(Clone, Copy)]
struct State {
    seed: i64,
    /// The rank whose own numbers are drawn, once they are.
    own: Option<usize>,
}

static STATE: Mutex<State> = Mutex::new(State { seed: LIBTORCH_SEED, own: None });

fn with_state<T>(body: impl FnOnce(&mut State) -> T) -> T {
    body(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Seeds libtorch's default generator, on all ranks alike before the weights are equal, and with the rank added after.
///
/// Without a launcher this is `tch::manual_seed`.
pub fn manual_seed(seed: i64) {
    let seed = with_state(|state| {
        state.seed = seed;
        state.own.map_or(seed, |rank| for_rank(seed, rank))
    });
    tch::manual_seed(seed);
}

/// From now on this rank draws its own numbers.
pub(crate) fn become_own(rank: usize) {
    let seed = with_state(|state| {
        state.own = Some(rank);
        for_rank(state.seed, rank)
    });
    // Rank 0 goes on as a single process would.
    if rank != 0 {
        tch::manual_seed(seed);
    }
}

/// A scope begins or ends: the ranks draw alike again when they are seeded the next time.
pub(crate) fn become_shared() {
    with_state(|state| state.own = None);
}

/// `randperm(n)` from rank 0's default generator of `device`, on all ranks, which must all call this. On the CPU.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) when the ranks do not all ask for an order of `n` places.
pub(crate) fn joint_order(n: i64, device: Device) -> Result<Tensor> {
    let draw = || {
        let order = Tensor::f_randperm(n, (Kind::Int64, device));
        order.and_then(|order| order.f_to_device(Device::Cpu)).during(DRAWING)
    };
    match session::current() {
        Some(session) => session.joint_order(n, draw),
        None => draw(),
    }
}

const DRAWING: &str = "drawing the order of the data";

fn for_rank(seed: i64, rank: usize) -> i64 {
    seed.wrapping_add(rank as i64)
}
