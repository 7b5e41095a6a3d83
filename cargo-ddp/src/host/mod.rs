//! What this machine has to offer: cores, GPUs, and memory when it has run out.

pub(crate) mod cores;
pub(crate) mod gpus;
pub(crate) mod oom;
