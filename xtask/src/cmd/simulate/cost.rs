//! What an all-reduce and a step with it cost, by closed formulas: no message is simulated.
//!
//! A message of n bytes takes `latency + n * per_byte` (Hockney 1994), arithmetic is free. Ring: Patarasuk and Yuan, "Bandwidth
//! optimal all-reduce algorithms for clusters of workstations", 2009. Tree: a binomial reduction and a broadcast, Thakur,
//! Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005. Buckets and their overlap
//! with the backward: Li et al., "PyTorch Distributed", VLDB 2020.

/// A way between two ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Link {
    /// Seconds a message.
    pub(super) latency: f64,
    /// Seconds a byte.
    pub(super) per_byte: f64,
}

impl Link {
    /// From microseconds a message and 10^9 bytes a second.
    pub(super) fn of(latency_us: f64, gb_s: f64) -> Self {
        Self { latency: latency_us / 1e6, per_byte: 1.0 / (1e9 * gb_s) }
    }

    /// The worse of both links in each respect.
    pub(super) fn or_slower(self, other: Self) -> Self {
        Self {
            latency: self.latency.max(other.latency),
            per_byte: self.per_byte.max(other.per_byte),
        }
    }

    /// Each of `ranks` sends 2 (ranks - 1) messages of bytes / ranks.
    pub(super) fn ring(self, ranks: u32, bytes: f64) -> f64 {
        let messages = 2.0 * f64::from(ranks - 1);
        messages * (self.latency + bytes / f64::from(ranks) * self.per_byte)
    }

    /// All bytes go up and down log2(ranks) levels, rounded up, not in pieces.
    pub(super) fn tree(self, ranks: u32, bytes: f64) -> f64 {
        let levels = f64::from(ranks.next_power_of_two().ilog2());
        2.0 * levels * (self.latency + bytes * self.per_byte)
    }

    /// The link whose ring of `ranks` takes `line.0 + line.1 * bytes` seconds.
    pub(super) fn of_ring(ranks: u32, line: (f64, f64)) -> Self {
        let messages = 2.0 * f64::from(ranks - 1);
        Self { latency: line.0 / messages, per_byte: line.1 * f64::from(ranks) / messages }
    }
}

/// Rings within hosts of `per_host` ranks scatter and gather, and `per_host` rings between the hosts, which share each host's
/// network, reduce a part each. With fewer ranks than that, or a number that fills no hosts, one ring.
pub(super) fn two_level(local: Link, network: Link, per_host: u32, ranks: u32, bytes: f64) -> f64 {
    if ranks <= per_host {
        return local.ring(ranks, bytes);
    }
    if !ranks.is_multiple_of(per_host) {
        return network.ring(ranks, bytes);
    }
    let share = f64::from(per_host);
    let shared = Link { per_byte: network.per_byte * share, ..network };
    local.ring(per_host, bytes) + shared.ring(ranks / per_host, bytes / share)
}

/// Seconds of a step's parts on one rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compute {
    /// Forward and optimizer.
    pub(super) other: f64,
    pub(super) backward: f64,
}

impl Compute {
    /// The backward takes twice as long as the forward, since it has two products for each of the forward's.
    pub(super) fn of_step(seconds: f64) -> Self {
        Self { other: seconds / 3.0, backward: seconds * 2.0 / 3.0 }
    }
}

/// A step whose backward makes gradients evenly: buckets are reduced in order, one at a time, each once it is full.
pub(super) fn overlapped(compute: Compute, bytes: f64, reduce: impl Fn(f64) -> f64) -> f64 {
    let (mut made, mut end) = (0.0, 0.0_f64);
    for bucket in buckets(bytes) {
        made += bucket;
        end = end.max(compute.backward * made / bytes) + reduce(bucket);
    }
    compute.other + end.max(compute.backward)
}

/// A step in which nothing is computed while gradients are reduced.
pub(super) fn in_turn(compute: Compute, bytes: f64, reduce: impl Fn(f64) -> f64) -> f64 {
    compute.other + compute.backward + buckets(bytes).map(reduce).sum::<f64>()
}

/// Sizes of the buckets as the runtime fills them by default: 1 MiB, then 25 MiB, and the rest.
fn buckets(bytes: f64) -> impl Iterator<Item = f64> {
    let mut left = bytes;
    let mut limit = f64::from(1 << 20);
    std::iter::from_fn(move || {
        let bucket = left.min(limit);
        left -= bucket;
        limit = f64::from(25 << 20);
        (bucket > 0.0).then_some(bucket)
    })
}

/// The line `a + b * bytes` next to points of bytes and seconds, neither below zero: the least squares of relative errors,
/// so that small sizes count as much as large ones. None with fewer than two sizes.
pub(super) fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    // Of (a + b x) / y = 1.
    let sum = |term: fn(f64, f64) -> f64| points.iter().map(|&(x, y)| term(x, y)).sum::<f64>();
    let (uu, uv, vv) =
        (sum(|_, y| 1.0 / (y * y)), sum(|x, y| x / (y * y)), sum(|x, y| x * x / (y * y)));
    let (u, v) = (sum(|_, y| 1.0 / y), sum(|x, y| x / y));
    let determinant = uu * vv - uv * uv;
    if points.len() < 2 || determinant <= 1e-12 * uu * vv {
        return None;
    }
    let (a, b) = ((u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant);
    Some(if a < 0.0 {
        (0.0, v / vv)
    } else if b < 0.0 {
        (u / uu, 0.0)
    } else {
        (a, b)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { latency: 1.0, per_byte: 0.5 };

    #[test]
    fn formulas_give_what_counting_by_hand_gives() {
        // Two ranks: half of 8 bytes over, and the other half back.
        assert_eq!(LINK.ring(2, 8.0), 2.0 * (1.0 + 4.0 * 0.5));
        assert_eq!(LINK.ring(4, 8.0), 6.0 * (1.0 + 2.0 * 0.5));
        assert_eq!(LINK.ring(1, 8.0), 0.0);
        // Five ranks need three levels.
        assert_eq!(LINK.tree(5, 8.0), 6.0 * (1.0 + 8.0 * 0.5));
        assert_eq!(LINK.tree(1, 8.0), 0.0);
        // 2 hosts of 2: a local ring of two, and 2 rings of 4 bytes that share the network.
        let network = Link { latency: 10.0, per_byte: 2.0 };
        let wanted = LINK.ring(2, 8.0) + 2.0 * (10.0 + 2.0 * 4.0);
        assert_eq!(two_level(LINK, network, 2, 4, 8.0), wanted);
        assert_eq!(LINK.or_slower(network), network);
        assert_eq!(two_level(LINK, network, 4, 4, 8.0), LINK.ring(4, 8.0));
        assert_eq!(Link::of_ring(4, (6.0, 0.75)), LINK);
    }

    #[test]
    fn communication_hides_behind_the_backward_but_for_the_last_bucket() {
        let compute = Compute { other: 1.0, backward: 10.0 };
        let bytes = f64::from(51 << 20);
        assert_eq!(
            buckets(bytes).map(|bytes| bytes / f64::from(1 << 20)).collect::<Vec<_>>(),
            [1.0, 25.0, 25.0]
        );
        assert_eq!(in_turn(compute, bytes, |_| 2.0), 17.0);
        assert_eq!(overlapped(compute, bytes, |_| 2.0), 13.0);
        // Slower than the backward: all but what is made before the first bucket is full.
        let first = 10.0 / 51.0;
        assert!((overlapped(compute, bytes, |_| 20.0) - (1.0 + first + 60.0)).abs() < 1e-9);
    }

    #[test]
    fn a_line_is_found_again_and_stays_above_zero() {
        let points = [4e3, 1e6, 1e8].map(|x| (x, 3e-5 + 2e-10 * x));
        let (a, b) = line(&points).unwrap();
        assert!((a / 3e-5 - 1.0).abs() < 1e-6 && (b / 2e-10 - 1.0).abs() < 1e-6, "{a} {b}");
        assert_eq!(line(&points[..1]), None);
        let (a, b) = line(&[(1.0, 1.0), (2.0, 4.0)]).unwrap();
        assert!(a == 0.0 && b > 1.0, "{a} {b}");
    }
}
