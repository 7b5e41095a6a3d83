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

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use tch::{Device, Kind, Tensor};

use crate::bridge;
use crate::device;
use crate::error::{During, Error, Result};
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
    let (before, seed) = with_state(|state| {
        let before = state.own.replace(rank);
        (before, for_rank(state.seed, rank))
    });
    // Rank 0 goes on as a single process would, and so does a rank whose own numbers have been put back.
    if rank != 0 && before.is_none() {
        tch::manual_seed(seed);
    }
}

/// A scope begins or ends: the ranks draw alike again when they are seeded the next time.
pub(crate) fn become_shared() {
    with_state(|state| state.own = None);
}

/// The random numbers of this rank that are still to come: the state of libtorch's default generator for the CPU and, where
/// the rank has a GPU, for that.
///
/// It can be stored with `serde`. A [`Checkpoint`](crate::checkpoint) has those of all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RngState {
    seed: i64,
    /// Whether the rank draws its own numbers, or still those of all.
    own: bool,
    cpu: ByteBuf,
    gpu: Option<ByteBuf>,
}

const GENERATORS: &str = "reading the state of the random number generators";

/// The state of this rank's random numbers, to be put back by [`set_rng_state`]: `torch.get_rng_state()`, with the seed and
/// the stream that `Note [Two streams]` tells of.
///
/// # Errors
/// [`Error::Torch`] when libtorch cannot tell it.
pub fn rng_state() -> Result<RngState> {
    let (seed, own) = with_state(|state| (state.seed, state.own.is_some()));
    let cpu = ByteBuf::from(bridge::generator_state(Device::Cpu).during(GENERATORS)?);
    let gpu = match device::device() {
        Device::Cpu => None,
        gpu => Some(ByteBuf::from(bridge::generator_state(gpu).during(GENERATORS)?)),
    };
    Ok(RngState { seed, own, cpu, gpu })
}

/// Goes on with the random numbers of `state`, bit for bit: `torch.set_rng_state()`.
///
/// Only this rank's numbers change. A state that was taken while the rank drew its own numbers makes it draw its own again.
///
/// # Errors
/// [`Error::Torch`] when the state is not one of these generators, [`Error::Unsupported`] when it is of a rank with a GPU
/// and this one has none, or the other way round.
pub fn set_rng_state(state: &RngState) -> Result<()> {
    let operation = "setting the state of the random number generators";
    match (device::device(), &state.gpu) {
        (Device::Cpu, None) => {}
        (Device::Cpu, Some(_)) | (_, None) => {
            return Err(Error::unsupported(
                "the random numbers of a rank with a GPU cannot go on on one without, nor the other way round",
                "go on on the device on which they were saved, or seed anew with `manual_seed`",
            ));
        }
        (gpu, Some(bytes)) => bridge::set_generator_state(gpu, bytes).during(operation)?,
    }
    bridge::set_generator_state(Device::Cpu, &state.cpu).during(operation)?;
    let rank = session::current().map(|session| session.topology().rank);
    with_state(|own| {
        own.seed = state.seed;
        own.own = rank.filter(|_| state.own);
    });
    Ok(())
}

impl RngState {
    /// New numbers for a rank of a job that goes on with another number of ranks: they depend on the seed, on `salt` (the
    /// step) and on the rank, and on nothing else.
    pub(crate) fn derived(seed: i64, salt: u64, rank: usize) -> Result<Self> {
        let before = rng_state()?;
        tch::manual_seed(mixed(seed, salt, rank as u64));
        let derived = rng_state().map(|state| Self { seed, own: true, ..state });
        set_rng_state(&before)?;
        derived
    }

    /// The same, as the rank's own.
    pub(crate) fn owned(self) -> Self {
        Self { own: true, ..self }
    }

    pub(crate) fn seed(&self) -> i64 {
        self.seed
    }
}

/// One number out of three, by the finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
fn mixed(seed: i64, salt: u64, rank: u64) -> i64 {
    [salt, rank]
        .into_iter()
        .fold(seed.cast_unsigned(), |hash, word| {
            let mut z = hash.wrapping_add(word.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        })
        .cast_signed()
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
