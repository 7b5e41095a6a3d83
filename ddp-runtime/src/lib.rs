//! Run time.
