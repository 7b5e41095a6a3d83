//! How many cores the job may use, and what limits them.

use std::fs;
use std::path::Path;

/// Usable cores with the reason for the number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cores {
    /// At least 1.
    pub(crate) count: usize,
    /// What limits them.
    pub(crate) limit: Limit,
}

/// What limits the usable cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// The cores this process may run on: all of the machine, or those of a mask (taskset, cpuset).
    Affinity,
    /// The CPU time a control group grants (`cpu.max`; docker's --cpus).
    Cgroup,
    /// `SLURM_CPUS_PER_TASK`.
    Slurm,
}

impl Limit {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Affinity => "the cores this process may run on",
            Self::Cgroup => "the CPU time of its control group",
            Self::Slurm => "SLURM_CPUS_PER_TASK",
        }
    }
}

/// Asks the kernel, and SLURM's variable.
pub(crate) fn usable() -> Cores {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = allowed_cores(&status)
        .or_else(|| std::thread::available_parallelism().ok().map(usize::from))
        .unwrap_or(1);
    let slurm = std::env::var("SLURM_CPUS_PER_TASK").ok().and_then(|text| text.trim().parse().ok());
    decide(allowed, cgroup_cores(), slurm)
}

/// The smallest of the limits. A part of a core counts as one: OpenMP cannot use less.
fn decide(allowed: usize, cgroup: Option<f64>, slurm: Option<usize>) -> Cores {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates, is not negative
    let cgroup = cgroup.map(|cores| cores.ceil() as usize);
    let limits = [(Some(allowed), Limit::Affinity), (cgroup, Limit::Cgroup), (slurm, Limit::Slurm)];
    let smallest = limits
        .into_iter()
        .filter_map(|(count, limit)| Some(Cores { count: count?.max(1), limit }))
        .min_by_key(|cores| cores.count);
    smallest.unwrap_or(Cores { count: 1, limit: Limit::Affinity })
}

/// The number of cores in `Cpus_allowed_list` of a `/proc/<pid>/status`.
fn allowed_cores(status: &str) -> Option<usize> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().split(',').map(range_length).sum()
}

/// 4 of `0-3`, 1 of `5`.
fn range_length(range: &str) -> Option<usize> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    last.checked_sub(first)?.checked_add(1)
}

/// The cores that the control group of this process and those above it grant.
fn cgroup_cores() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let root = Path::new("/sys/fs/cgroup");
    let unified = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let unified = unified.into_iter().flat_map(|path| {
        let folder = root.join(path);
        let folders = folder.ancestors().take_while(|above| above.starts_with(root));
        folders.map(|above| above.join("cpu.max")).collect::<Vec<_>>()
    });
    let unified =
        unified.filter_map(|file| fs::read_to_string(file).ok()).filter_map(|text| quota(&text));
    // Version 1, as containers see it: their own group is mounted at the root.
    let number = |name: &str| fs::read_to_string(root.join("cpu").join(name)).ok();
    let legacy = match (number("cpu.cfs_quota_us"), number("cpu.cfs_period_us")) {
        (Some(quota_us), Some(period)) => quota(&format!("{} {}", quota_us.trim(), period.trim())),
        _ => None,
    };
    unified.chain(legacy).reduce(f64::min)
}

/// 1.5 of `150000 100000`; `None` of `max 100000` and of version 1's `-1 100000`.
fn quota(cpu_max: &str) -> Option<f64> {
    let mut words = cpu_max.split_whitespace().map(str::parse::<f64>);
    let (quota, period) = (words.next()?.ok()?, words.next()?.ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_decides_and_is_named() {
        let cores = |count, limit| Cores { count, limit };
        assert_eq!(decide(8, None, None), cores(8, Limit::Affinity));
        assert_eq!(decide(8, Some(1.5), None), cores(2, Limit::Cgroup));
        assert_eq!(decide(8, Some(1.5), Some(1)), cores(1, Limit::Slurm));
        assert_eq!(decide(2, Some(64.0), Some(16)), cores(2, Limit::Affinity));
        assert_eq!(decide(0, Some(0.1), Some(0)).count, 1);
    }

    #[test]
    fn lists_of_allowed_cores() {
        let count = |list: &str| allowed_cores(&format!("Name:\tx\nCpus_allowed_list:\t{list}\n"));
        assert_eq!(count("0-3"), Some(4));
        assert_eq!(count("0,2-3,64-127"), Some(67));
        assert_eq!(count("3-1"), None);
        assert_eq!(count("x"), None);
        assert_eq!(allowed_cores(""), None);
    }

    #[test]
    fn quotas_of_both_versions() {
        assert_eq!(quota("150000 100000\n"), Some(1.5));
        assert_eq!(quota("max 100000\n"), None);
        assert_eq!(quota("-1 100000"), None);
        assert_eq!(quota(""), None);
    }

    #[test]
    fn this_machine_has_a_core() {
        assert!(usable().count >= 1);
    }
}
