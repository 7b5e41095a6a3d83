//! What the figures were measured on.

use serde::{Deserialize, Serialize};

/// The machine, as far as a reader has to know it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) libtorch: String,
}

impl Machine {
    /// Whether figures of both may stand in one table.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self == other
    }

    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        Self { cpu: "a CPU".to_owned(), cores: 2, memory_gib: 8, libtorch: "2.13.0".to_owned() }
    }
}

/// This machine.
pub(crate) fn facts(libtorch: &str) -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    Machine {
        cpu: value(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown CPU").to_owned(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_gib: value(&read("/proc/meminfo"), "MemTotal").map_or(0, gibibytes),
        libtorch: libtorch.to_owned(),
    }
}

/// The value of the first line `name : value`.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

/// `16371152 kB` in whole GiB.
fn gibibytes(text: &str) -> u64 {
    let kib: u64 = text.trim_end_matches("kB").trim().parse().unwrap_or(0);
    (kib + (1 << 19)) >> 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_the_kernels_lists() {
        let list = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: another\n";
        assert_eq!(value(list, "model name"), Some("Some CPU @ 2 GHz"));
        assert_eq!(value("MemTotal:       16371152 kB\n", "MemTotal").map(gibibytes), Some(16));
    }
}
