//! The shapes of real training code, one file a topic: each is a program that the attribute has to cope with.
mod batches;
mod by_type;
mod course;
mod devices;
mod evaluation;
mod exits;
mod forms;
mod marked;
mod one_process;
mod output;
mod places;
mod rates;
mod saving;
mod seeds;
mod signatures;
mod stores;

/// Shapes s23 to s45: loops, exits, output, saving, seeds, signatures.
pub(super) mod loops;
/// Shapes s01 to s22: where the step is, its forms, stores, optimizers, batches.
pub(super) mod steps;
/// A hundred steps of whole programs.
pub(super) mod trajectories;
