//! The commands, one file each.

pub(crate) mod bench;
pub(crate) mod ci;
pub(crate) mod demo;
pub(crate) mod gpu;
pub(crate) mod older;
pub(crate) mod setup;
pub(crate) mod simulate;
pub(crate) mod test;
