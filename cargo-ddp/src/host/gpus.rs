//! How many GPUs a program started here would see, without loading a driver.

use std::fs;

/// The number of visible GPUs.
///
/// The device nodes count, since a container sees the driver of the whole machine but only the
/// nodes it was given; `CUDA_VISIBLE_DEVICES` takes some of them away.
pub(crate) fn visible() -> usize {
    let nodes = numbered_nodes("/dev", "nvidia");
    let present = if nodes > 0 {
        nodes
    } else {
        // The nodes are made at first use on some systems; the driver knows the devices before.
        fs::read_dir("/proc/driver/nvidia/gpus").map_or(0, Iterator::count)
    };
    let setting = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    count(present, setting.as_deref())
}

/// What `CUDA_VISIBLE_DEVICES` leaves of `present` devices. CUDA stops at the first entry that
/// names none.
fn count(present: usize, setting: Option<&str>) -> usize {
    let Some(setting) = setting else { return present };
    if present == 0 {
        return 0;
    }
    let names_one = |entry: &&str| match entry.parse::<i64>() {
        Ok(index) => usize::try_from(index).is_ok_and(|index| index < present),
        Err(_) => entry.starts_with("GPU-") || entry.starts_with("MIG-"),
    };
    setting.split(',').map(str::trim).take_while(names_one).count()
}

fn numbered_nodes(folder: &str, prefix: &str) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let is_numbered = |name: &str| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    entries
        .filter_map(Result::ok)
        .filter(|e| e.file_name().to_str().is_some_and(is_numbered))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_takes_devices_away() {
        assert_eq!(count(4, None), 4);
        assert_eq!(count(4, Some("")), 0);
        assert_eq!(count(4, Some("-1")), 0);
        assert_eq!(count(4, Some("2,0")), 2);
        assert_eq!(count(4, Some("0,7,1")), 1, "CUDA stops at the first wrong entry");
        assert_eq!(count(4, Some("GPU-ab, GPU-cd")), 2);
        assert_eq!(count(1, Some("MIG-1,MIG-2")), 2);
        assert_eq!(count(0, Some("0,1")), 0);
    }
}
