//! What the example programs share: the data that they train on.

pub mod data;
