//! One clock for all ranks.
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::control::Control;
use crate::error::Result;
use crate::watch::Watch;

/// How often the ranks meet to compare their clocks.
const ROUNDS: usize = 16;

/// Nanoseconds of this host's steady clock, which all its processes read alike.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // Neither is negative on a steady clock.
    let seconds = Duration::from_secs(time.tv_sec.cast_unsigned());
    (seconds + Duration::from_nanos(time.tv_nsec.cast_unsigned())).as_nanos() as u64
}

/// When a rank came to an exchange that waits for all ranks, and when it left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    enter: i64,
    leave: i64,
}

impl Meeting {
    /// Meets all ranks several times, and returns how far this rank's clock is ahead of rank 0's, in nanoseconds.
    pub(super) fn hold(control: &Control, watch: &Watch) -> Result<i64> {
        let mut meetings = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let enter = now().cast_signed();
            control.gather_words(watch, &[enter])?;
            meetings.push(Self { enter, leave: now().cast_signed() });
        }
        let words: Vec<i64> =
            meetings.iter().flat_map(|meeting| [meeting.enter, meeting.leave]).collect();
        let all = control.gather_words(watch, &words)?;
        let of_rank_0 = all[0].as_chunks::<2>().0.iter();
        let of_rank_0: Vec<Self> = of_rank_0.map(|&[enter, leave]| Self { enter, leave }).collect();
        Ok(ahead(&meetings, &of_rank_0))
    }
}

/// How far `own` clock is ahead of the `other`.
///
/// Nobody leaves a meeting before everybody has come. So own leaving is not before the other's coming, which bounds the difference
/// from above, and the other's leaving not before own coming, which bounds it from below (the interval intersection of Marzullo,
/// "Maintaining the Time in a Distributed System", 1983). Its middle errs by half of what the quickest meeting took at most.
fn ahead(own: &[Meeting], other: &[Meeting]) -> i64 {
    let pairs = || own.iter().zip(other);
    let above = pairs().map(|(own, other)| own.leave - other.enter).min();
    let below = pairs().map(|(own, other)| own.enter - other.leave).max();
    match (below, above) {
        (Some(below), Some(above)) => below + (above - below) / 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Meetings of two ranks, the first one's clock `ahead` of the second one's; `came` is when each came, in true time.
    fn meetings(came: &[(i64, i64)], ahead: i64, latency: i64) -> (Vec<Meeting>, Vec<Meeting>) {
        came.iter()
            .map(|&(own, other)| {
                let leave = own.max(other) + latency;
                let own = Meeting { enter: own + ahead, leave: leave + ahead };
                (own, Meeting { enter: other, leave })
            })
            .unzip()
    }

    #[test]
    fn the_difference_of_two_clocks_is_found_within_half_a_latency() {
        for difference in [0, 5_000_000, -123_456_789] {
            let (own, other) =
                meetings(&[(100, 900), (2_000, 1_500), (3_000, 3_010)], difference, 60);
            let found = ahead(&own, &other);
            assert!((found - difference).abs() <= 60, "{found} for {difference}");
        }
    }

    #[test]
    fn the_clock_runs() {
        let before = now();
        assert!(now() >= before && before > 0);
    }
}
