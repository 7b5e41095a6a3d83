//! The segments of one rank.
use std::sync::Arc;

use super::segment::Segment;
use crate::bridge::BridgeError;

type Result<T> = std::result::Result<T, BridgeError>;

/// Segments above this size are rounded up to multiples of an eighth of it, smaller ones to powers of two.
const LARGE: usize = 1 << 20;

/// Kept to be used again; one that nobody else holds is free.
#[derive(Default)]
pub(super) struct Pool {
    segments: Vec<Arc<Segment>>,
    made: u64,
    /// Those made up to this number are dropped when they are free.
    trimmed: u64,
}

impl Pool {
    /// A segment of at least so many bytes that nobody else holds: one used before, or a new one.
    ///
    /// Sizes are rounded up, so that few different ones are made; the other ranks' mappings of them stay valid.
    pub(super) fn segment(&mut self, bytes: usize) -> Result<Arc<Segment>> {
        let wanted = if bytes > LARGE {
            bytes.next_multiple_of(LARGE / 8)
        } else {
            bytes.next_power_of_two()
        };
        let free = |segment: &&Arc<Segment>| {
            let size = segment.mapping().bytes();
            Arc::strong_count(segment) == 1 && size >= bytes && size <= wanted.max(4096)
        };
        if let Some(segment) = self.segments.iter().find(free) {
            return Ok(Arc::clone(segment));
        }
        // 0 is the ring's own.
        self.made += 1;
        let segment = Arc::new(Segment::new(wanted, self.made)?);
        self.segments.push(Arc::clone(&segment));
        Ok(segment)
    }

    /// Gives back what is free, and what is in use now as soon as it is free. Buckets that stay are not.
    pub(super) fn trim(&mut self) {
        self.trimmed = self.made;
        self.drop_trimmed();
    }

    fn drop_trimmed(&mut self) {
        let trimmed = self.trimmed;
        self.segments
            .retain(|segment| Arc::strong_count(segment) > 1 || segment.ticket().serial > trimmed);
    }

    /// The segment that so many bytes lie in, and where in it.
    pub(super) fn find(&mut self, address: usize, bytes: usize) -> Option<(Arc<Segment>, usize)> {
        self.drop_trimmed();
        let segment =
            self.segments.iter().find(|segment| segment.mapping().holds(address, bytes))?;
        Some((Arc::clone(segment), address - segment.mapping().start() as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serials(pool: &Pool) -> Vec<u64> {
        pool.segments.iter().map(|segment| segment.ticket().serial).collect()
    }

    #[test]
    fn what_is_free_is_used_again_and_given_back_once_trimmed() {
        let mut pool = Pool::default();
        let held = pool.segment(1 << 20).unwrap();
        drop(pool.segment(5000).unwrap());
        assert_eq!(pool.segment(5000).unwrap().ticket().serial, 2);
        pool.trim();
        assert_eq!(serials(&pool), [1]);
        let later = pool.segment(5000).unwrap();
        drop(held);
        let address = later.mapping().start() as usize;
        let (found, offset) = pool.find(address + 16, 16).unwrap();
        assert_eq!((found.ticket().serial, offset), (3, 16));
        assert!(pool.find(std::ptr::from_ref(&pool) as usize, 16).is_none());
        drop((later, found));
        // Made after the trimming: kept.
        assert_eq!(serials(&pool), [3]);
    }
}
