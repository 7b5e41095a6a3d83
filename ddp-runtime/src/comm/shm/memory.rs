//! Memory for gradients: blocks of the pool, in which a backward makes them, so that they are reduced where they lie.
use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use super::pool::Pool;
use crate::bridge::{Lend, Owner};
use crate::comm::lock;

/// What a backward is lent.
pub(crate) struct GradientMemory {
    pool: Arc<Mutex<Pool>>,
    /// The sizes of the gradients to come, in bytes: other tensors gain nothing by lying here.
    sizes: Mutex<HashSet<usize>>,
}

impl GradientMemory {
    pub(super) fn new(pool: Arc<Mutex<Pool>>) -> Self {
        Self { pool, sizes: Mutex::default() }
    }

    /// From now on tensors of this size may lie here.
    pub(crate) fn expect(&self, bytes: usize) {
        lock(&self.sizes).insert(bytes);
    }
}

impl Lend for GradientMemory {
    fn lend(&self, bytes: usize) -> Option<(NonNull<u8>, Owner)> {
        if !lock(&self.sizes).contains(&bytes) {
            return None;
        }
        let segment = lock(&self.pool).segment(bytes).ok()?;
        Some((NonNull::new(segment.mapping().start())?, segment))
    }
}
