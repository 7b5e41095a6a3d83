//! The shapes of real training code, one file a topic: each is a program that the attribute has to cope with.
mod devices;
mod evaluation;
mod exits;
mod marked;
mod one_process;
mod output;
mod saving;
mod seeds;
mod signatures;

/// Shapes s23 to s45: loops, exits, output, saving, seeds, signatures.
pub(super) mod loops;
