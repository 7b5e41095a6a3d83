//! The file: Chrome's trace event format, which Perfetto (ui.perfetto.dev) and `chrome://tracing` open.
//!
//! Source: "Trace Event Format", Google, 2016. A rank is a process. Its first row is the program (forward, backward, optimizer,
//! data, with waits nested in them), its second one the all-reduces, as asynchronous events, since they overlap.
use std::fmt::Write;

use super::{Event, Kind, Timeline};

/// The row of the program.
const PROGRAM: u32 = 0;
/// The row of the moments at which buckets are complete.
const BUCKETS: u32 = 1;

/// The whole file. Gradient buckets close at so many bytes.
pub(super) fn document(ranks: &[Timeline], bucket_bytes: usize) -> String {
    let first = ranks.iter().flat_map(|rank| &rank.events).map(|event| event.start).min();
    let mut file = Writer { text: String::from("{\"traceEvents\":[\n"), zero: first.unwrap_or(0) };
    for timeline in ranks {
        file.rank(timeline);
    }
    // JSON has no comma after the last one.
    file.text.truncate(file.text.trim_end_matches(",\n").len());
    // Writing to a string cannot fail.
    let _ = writeln!(
        file.text,
        "\n],\n\"otherData\":{{\"bucket_bytes\":{bucket_bytes}}},\n\"displayTimeUnit\":\"ms\"}}"
    );
    file.text
}

struct Writer {
    text: String,
    zero: u64,
}

impl Writer {
    fn rank(&mut self, timeline: &Timeline) {
        let rank = timeline.rank;
        let left_out = match timeline.left_out {
            0 => String::new(),
            count => format!(" (the last {count} events are left out)"),
        };
        self.name("process_name", rank, PROGRAM, &format!("rank {rank}{left_out}"));
        self.name("thread_name", rank, PROGRAM, "program");
        self.name("thread_name", rank, BUCKETS, "buckets");
        for gap in gaps(&timeline.events) {
            self.slice(rank, &gap.name, gap.start, gap.end);
        }
        for event in &timeline.events {
            self.event(rank, event);
        }
    }

    fn event(&mut self, rank: usize, event: &Event) {
        match event.kind {
            Kind::Ready(bucket) => {
                let time = self.time(event.start);
                self.line(format_args!(
                    "\"ph\":\"i\",\"s\":\"t\",\"name\":\"bucket {bucket} ready\",\"pid\":{rank},\"tid\":{BUCKETS},\"ts\":{time}"
                ));
            }
            Kind::AllReduce(bucket) => {
                for (phase, time) in [("b", event.start), ("e", event.end)] {
                    let time = self.time(time);
                    self.line(format_args!(
                        "\"ph\":\"{phase}\",\"cat\":\"all-reduce\",\"id\":\"{rank}.{bucket}\",\
                         \"name\":\"all-reduce of bucket {bucket}\",\"pid\":{rank},\"tid\":{BUCKETS},\"ts\":{time}"
                    ));
                }
            }
            Kind::Data => self.slice(rank, "data", event.start, event.end),
            Kind::Backward => self.slice(rank, "backward", event.start, event.end),
            Kind::Reducing => self.slice(rank, "reducing", event.start, event.end),
            Kind::Wait => self.slice(rank, "wait for all-reduce", event.start, event.end),
            Kind::Announce(operation) => {
                let name = format!("wait for all: {operation:?}").to_lowercase();
                self.slice(rank, &name, event.start, event.end);
            }
        }
    }

    fn slice(&mut self, rank: usize, name: &str, start: u64, end: u64) {
        let (time, length) = (self.time(start), micro(end - start));
        self.line(format_args!(
            "\"ph\":\"X\",\"name\":\"{name}\",\"pid\":{rank},\"tid\":{PROGRAM},\"ts\":{time},\"dur\":{length}"
        ));
    }

    fn name(&mut self, what: &str, rank: usize, row: u32, name: &str) {
        self.line(format_args!(
            "\"ph\":\"M\",\"name\":\"{what}\",\"pid\":{rank},\"tid\":{row},\"args\":{{\"name\":\"{name}\"}}"
        ));
    }

    fn line(&mut self, fields: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail. No name holds a character that JSON escapes.
        let _ = writeln!(self.text, "{{{fields}}},");
    }

    fn time(&self, time: u64) -> String {
        micro(time.saturating_sub(self.zero))
    }
}

/// Microseconds with three places.
fn micro(nanoseconds: u64) -> String {
    format!("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000)
}

/// Time between two events of the program.
#[derive(Debug, PartialEq, Eq)]
struct Gap {
    name: String,
    start: u64,
    end: u64,
}

/// What lies between backwards and batches, by what stands before and after it.
fn gaps(events: &[Event]) -> Vec<Gap> {
    let mut outer: Vec<&Event> =
        events.iter().filter(|event| matches!(event.kind, Kind::Data | Kind::Backward)).collect();
    outer.sort_by_key(|event| event.start);
    outer
        .windows(2)
        .filter(|pair| pair[1].start > pair[0].end)
        .map(|pair| {
            let name = match (pair[0].kind, pair[1].kind) {
                (Kind::Data, Kind::Backward) => "forward",
                (Kind::Backward, Kind::Data) => "optimizer",
                (Kind::Backward, _) => "optimizer and forward",
                _ => "between batches",
            };
            Gap { name: name.to_owned(), start: pair[0].end, end: pair[1].start }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::summary::Totals;
    use super::*;
    use crate::control::Operation;

    fn event(kind: Kind, start: u64, end: u64) -> Event {
        Event { kind, start, end }
    }

    #[test]
    fn what_lies_between_is_named_by_its_neighbours() {
        let events = [
            event(Kind::Data, 10, 20),
            event(Kind::Wait, 35, 38),
            event(Kind::Backward, 30, 40),
            event(Kind::Data, 45, 50),
            event(Kind::Backward, 50, 60),
            event(Kind::Backward, 70, 80),
        ];
        let found = gaps(&events);
        let found: Vec<_> =
            found.iter().map(|gap| (gap.name.as_str(), gap.start, gap.end)).collect();
        assert_eq!(
            found,
            [("forward", 20, 30), ("optimizer", 40, 45), ("optimizer and forward", 60, 70)]
        );
    }

    #[test]
    fn the_file_is_json_with_every_event_in_it() {
        let events = vec![
            event(Kind::Data, 1_000, 2_500),
            event(Kind::Ready(0), 3_000, 3_000),
            event(Kind::AllReduce(0), 3_000, 9_000),
            event(Kind::Announce(Operation::Save), 9_000, 9_500),
        ];
        let timeline = |rank| Timeline {
            rank,
            events: events.clone(),
            left_out: rank as u64,
            totals: Totals::default(),
        };
        let text = document(&[timeline(0), timeline(1)], 4096);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["otherData"]["bucket_bytes"], 4096);
        let listed = json["traceEvents"].as_array().unwrap();
        let of = |phase: &str| listed.iter().filter(|event| event["ph"] == phase).count();
        assert_eq!([of("X"), of("i"), of("b"), of("e"), of("M")], [4, 2, 2, 2, 6]);
        let data = listed.iter().find(|event| event["name"] == "data").unwrap();
        assert_eq!((data["ts"].as_f64(), data["dur"].as_f64()), (Some(0.0), Some(1.5)));
        assert!(text.contains("rank 1 (the last 1 events are left out)"));
        assert!(text.contains("wait for all: save"));
    }
}
