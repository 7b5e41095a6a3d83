//! What this machine has to offer: cores and GPUs.

pub(crate) mod cores;
pub(crate) mod gpus;
