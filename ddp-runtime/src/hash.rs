//! A hash that ranks compare.
use std::hash::{DefaultHasher, Hash, Hasher};

/// A hash that all ranks, which run one binary, compute alike.
pub(crate) fn hash_of(value: &(impl Hash + ?Sized)) -> u64 {
    // Fixed keys.
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
