//! How the time of a run divides, and which rank was slowest.
use super::{Event, Kind};

/// Times of one rank, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Backwards that ended.
    pub(super) backwards: u64,
    /// When the first event began.
    pub(super) first: u64,
    /// When the last one ended.
    pub(super) last: u64,
    /// Time in which this rank waited for others, or carried out their all-reduces.
    pub(super) communication: u64,
    /// Time in which it made batches.
    pub(super) data: u64,
}

impl Totals {
    /// Words of it on the wire.
    pub(super) const WORDS: usize = 5;

    pub(super) fn add(&mut self, event: &Event) {
        let length = event.end - event.start;
        match event.kind {
            // The end of a run, where a rank waits for those that are still in their last step, belongs to no step.
            Kind::Announce(operation) if operation.ends_a_run() => return,
            Kind::Backward => self.backwards += 1,
            Kind::Data => self.data += length,
            Kind::Reducing | Kind::Announce(_) | Kind::Wait => self.communication += length,
            // Moments, and what goes on beside the program.
            Kind::Ready(_) | Kind::AllReduce(_) => {}
        }
        if self.first == 0 {
            self.first = event.start;
        }
        self.first = self.first.min(event.start);
        self.last = self.last.max(event.end);
    }

    pub(super) fn encode(&self) -> [u64; Self::WORDS] {
        [self.backwards, self.first, self.last, self.communication, self.data]
    }

    pub(super) fn decode(words: &[u64]) -> Option<Self> {
        let &[backwards, first, last, communication, data] = words else { return None };
        Some(Self { backwards, first, last, communication, data })
    }

    fn whole(&self) -> u64 {
        self.last - self.first
    }

    /// What is neither waiting nor making batches.
    fn compute(&self) -> u64 {
        self.whole().saturating_sub(self.communication + self.data)
    }
}

/// The line that is shown at the end: shares of the ranks' time, and who computed longest.
pub(super) fn line(ranks: &[Totals]) -> String {
    let steps = ranks.first().map_or(0, |rank| rank.backwards);
    let sum = |part: fn(&Totals) -> u64| ranks.iter().map(part).sum::<u64>();
    let whole = sum(Totals::whole);
    let slowest = ranks.iter().enumerate().max_by_key(|(_, rank)| rank.compute());
    let (Some((slowest, most)), true) = (slowest, steps > 0 && whole > 0) else {
        return "timeline: no backward was traced".to_owned();
    };
    let share = |part: u64| 100.0 * part as f64 / whole as f64;
    let milliseconds = |time: u64, times: u64| time as f64 / 1e6 / times as f64;
    let mean = sum(Totals::compute) / ranks.len() as u64;
    format!(
        "timeline: {steps} backwards, {:.2} ms each: compute {:.1} %, exposed communication {:.1} %, data {:.1} %; \
         slowest rank {slowest}, which computed {:.2} ms of each, all ranks {:.2} ms on average",
        milliseconds(whole / ranks.len() as u64, steps),
        share(sum(Totals::compute)),
        share(sum(|rank| rank.communication)),
        share(sum(|rank| rank.data)),
        milliseconds(most.compute(), steps),
        milliseconds(mean, steps),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Operation;

    fn totals(events: &[(Kind, u64, u64)]) -> Totals {
        let mut totals = Totals::default();
        for &(kind, start, end) in events {
            totals.add(&Event { kind, start, end });
        }
        totals
    }

    #[test]
    fn shares_add_up_and_the_slowest_is_who_waits_least() {
        let ms = 1_000_000;
        let quick = totals(&[
            (Kind::Data, ms, 2 * ms),
            (Kind::Wait, 6 * ms, 10 * ms),
            (Kind::Backward, 5 * ms, 11 * ms),
        ]);
        let slow = totals(&[(Kind::Data, ms, 2 * ms), (Kind::Backward, 9 * ms, 11 * ms)]);
        assert_eq!(
            line(&[quick, slow]),
            "timeline: 1 backwards, 10.00 ms each: compute 70.0 %, exposed communication 20.0 %, data 10.0 %; slowest \
             rank 1, which computed 9.00 ms of each, all ranks 7.00 ms on average"
        );
    }

    #[test]
    fn what_goes_on_beside_the_program_is_not_counted_twice() {
        let totals = totals(&[(Kind::AllReduce(0), 10, 40), (Kind::Backward, 10, 50)]);
        assert_eq!((totals.communication, totals.compute()), (0, 40));
    }

    #[test]
    fn waiting_for_the_end_of_the_run_belongs_to_no_step() {
        let totals =
            totals(&[(Kind::Backward, 10, 20), (Kind::Announce(Operation::Leave), 20, 90)]);
        assert_eq!((totals.communication, totals.last), (0, 20));
    }

    #[test]
    fn a_run_without_a_backward_says_so() {
        assert_eq!(line(&[Totals::default(); 2]), "timeline: no backward was traced");
    }
}
