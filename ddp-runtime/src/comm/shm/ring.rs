//! The meeting point of the ranks of one host: a ring of slots in shared memory, one for each operation under way.
//!
//! # Note [The protocol of a slot]
//!
//! Operations are numbered by the order in which each rank issues them, the same on all. Operation k uses slot k modulo the
//! ring's length:
//!
//! 1. A rank that has issued it writes into the slot where its data lie, then adds 1 to `arrived`. From now on its data belong
//!    to the operation.
//! 2. When `arrived` has reached its target, all data are there. Each rank does its part: it combines its slice of everyone's
//!    data, in place, or copies what it needs. Then it adds 1 to `done`.
//! 3. When `done` has reached its target, everyone has finished, and the data belong to their ranks again.
//!
//! The counters only ever grow: the target of operation k is world size times (k / length + 1), compared with wrap-around. A slot
//! is used again only after its operation has ended on the rank that wants to, which is why nobody still reads it then.
//! The additions are releases and the reads acquires, which orders the data with them.
//!
//! A rank that has to wait looks some times, then sleeps in the kernel (futex). Who adds wakes only if somebody sleeps: the number
//! of sleepers is written before the counter is read again, and read after the counter is written, all sequentially consistent.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::futex;

use super::segment::{Mapping, Ticket};

/// Operations that can be under way.
pub(super) const SLOTS: usize = 1024;
/// Looks before sleeping, where the ranks have a core each.
const SPINS: u32 = 2000;
/// Words of a descriptor.
const WORDS: usize = 8;
const LINE: usize = 64;

/// A counter that can be waited for, on a cache line of its own.
#[repr(C, align(64))]
struct Counter {
    value: AtomicU32,
    sleepers: AtomicU32,
}

/// Where a rank's data lie for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The segment.
    pub(super) ticket: Ticket,
    /// First byte in it.
    pub(super) offset: u64,
    /// The bits of what a reduction multiplies them with.
    pub(super) scale: u64,
}

/// The ring, in a mapping that all ranks share.
pub(super) struct Ring {
    mapping: Mapping,
    world_size: usize,
    spins: u32,
}

impl Ring {
    /// Bytes that a ring for so many ranks takes.
    pub(super) fn bytes(world_size: usize) -> usize {
        SLOTS * Self::slot_bytes(world_size)
    }

    fn slot_bytes(world_size: usize) -> usize {
        2 * LINE + world_size * LINE
    }

    /// A ring in a mapping of [`bytes`](Self::bytes), filled with zeros before the first rank came. `crowded`: more ranks
    /// than cores, so that looking again would only keep the others from working.
    pub(super) fn new(mapping: Mapping, world_size: usize, crowded: bool) -> Self {
        Self { mapping, world_size, spins: if crowded { 0 } else { SPINS } }
    }

    fn slot(&self, operation: u64) -> *mut u8 {
        let index = (operation % SLOTS as u64) as usize;
        // SAFETY: within the mapping, which has SLOTS slots.
        unsafe { self.mapping.start().add(index * Self::slot_bytes(self.world_size)) }
    }

    fn counter(&self, operation: u64, line: usize) -> &Counter {
        // SAFETY: the first two lines of a slot are counters, aligned to 64 bytes as slots and pages are; all access to them
        // is atomic.
        unsafe { &*self.slot(operation).add(line * LINE).cast::<Counter>() }
    }

    fn target(&self, operation: u64) -> u32 {
        let round = operation / SLOTS as u64 + 1;
        (round.wrapping_mul(self.world_size as u64)) as u32
    }

    fn reached(&self, operation: u64, line: usize) -> bool {
        let value = self.counter(operation, line).value.load(Ordering::SeqCst);
        value.wrapping_sub(self.target(operation)).cast_signed() >= 0
    }

    fn add(&self, operation: u64, line: usize) {
        let counter = self.counter(operation, line);
        counter.value.fetch_add(1, Ordering::SeqCst);
        if counter.sleepers.load(Ordering::SeqCst) > 0 {
            // Waking fails only for an address that is not mapped.
            let _ = futex::wake(&counter.value, futex::Flags::empty(), u32::MAX >> 1);
        }
    }

    fn words(&self, operation: u64, rank: usize) -> &[AtomicU64; WORDS] {
        // SAFETY: behind the counters a slot has one line a rank, aligned, and only accessed atomically.
        unsafe { &*self.slot(operation).add((2 + rank) * LINE).cast() }
    }

    /// Step 1: this rank's data are there.
    pub(super) fn arrive(&self, operation: u64, rank: usize, place: Place) {
        let words = self.words(operation, rank);
        let Place { ticket, offset, scale } = place;
        let values = [ticket.serial, u64::from(ticket.fd), ticket.bytes, offset, scale];
        for (word, value) in words.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        self.add(operation, 0);
    }

    /// Whether all ranks' data are there.
    pub(super) fn all_arrived(&self, operation: u64) -> bool {
        self.reached(operation, 0)
    }

    /// Where a rank's data are, once they are there.
    pub(super) fn place(&self, operation: u64, rank: usize) -> Place {
        let words = self.words(operation, rank);
        let word = |index: usize| words[index].load(Ordering::Relaxed);
        let ticket = Ticket { serial: word(0), fd: word(1) as u32, bytes: word(2) };
        Place { ticket, offset: word(3), scale: word(4) }
    }

    /// Step 2 is over on this rank.
    pub(super) fn finish(&self, operation: u64) {
        self.add(operation, 1);
    }

    /// Whether all ranks have finished.
    pub(super) fn all_finished(&self, operation: u64) -> bool {
        self.reached(operation, 1)
    }

    /// Waits, at most this long, for all data to be there.
    pub(super) fn wait_arrived(&self, operation: u64, limit: Duration) -> bool {
        self.wait(operation, 0, limit)
    }

    /// Waits, at most this long, for all ranks to finish.
    pub(super) fn wait_finished(&self, operation: u64, limit: Duration) -> bool {
        self.wait(operation, 1, limit)
    }

    fn wait(&self, operation: u64, line: usize, limit: Duration) -> bool {
        for _ in 0..=self.spins {
            if self.reached(operation, line) {
                return true;
            }
            std::hint::spin_loop();
        }
        let counter = self.counter(operation, line);
        counter.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = counter.value.load(Ordering::SeqCst);
        if !self.reached(operation, line)
            && let Ok(timeout) = limit.try_into()
        {
            // Woken, timed out, interrupted, or too late to sleep: the caller looks again in any case.
            let _ = futex::wait(&counter.value, futex::Flags::empty(), seen, Some(&timeout));
        }
        counter.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.reached(operation, line)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::segment::Segment;
    use super::*;

    fn ring(world_size: usize) -> Arc<Ring> {
        let segment = Segment::new(Ring::bytes(world_size), 0).unwrap();
        let mapping = super::super::segment::open(std::process::id(), segment.ticket()).unwrap();
        Arc::new(Ring::new(mapping, world_size, true))
    }

    fn place(rank: u64, operation: u64) -> Place {
        let ticket = Ticket { serial: rank, fd: rank as u32 + 5, bytes: operation };
        Place { ticket, offset: rank * 1000 + operation, scale: rank + 3 }
    }

    #[test]
    fn ranks_meet_in_every_slot_over_several_rounds() {
        let (ring, limit) = (ring(3), Duration::from_secs(20));
        let threads: Vec<_> = (0..3_u64)
            .map(|rank| {
                let ring = Arc::clone(&ring);
                std::thread::spawn(move || {
                    for operation in 0..3 * SLOTS as u64 + 7 {
                        ring.arrive(operation, rank as usize, place(rank, operation));
                        while !ring.wait_arrived(operation, limit) {}
                        for other in 0..3 {
                            assert_eq!(
                                ring.place(operation, other as usize),
                                place(other, operation)
                            );
                        }
                        ring.finish(operation);
                        while !ring.wait_finished(operation, limit) {}
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_rank_that_is_missing_is_waited_for_no_longer_than_the_limit() {
        let ring = ring(2);
        ring.arrive(0, 0, place(0, 0));
        let started = std::time::Instant::now();
        assert!(!ring.wait_arrived(0, Duration::from_millis(30)));
        assert!(started.elapsed() >= Duration::from_millis(30));
    }
}
