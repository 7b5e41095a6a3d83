//! The layers below tensors, on the stand-in for NCCL and the driver (tests/nccl-double): ranks are threads, GPUs host memory.
//!
//! The stand-in must be there when the process starts, so each test runs itself once more, in a process of its own.
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::{Duration, Instant};

use cudarc::driver::result::memset_d8_async;
use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::{ncclAllReduce, ncclDataType_t, ncclRedOp_t};
use tch::Device;

use super::driver::{self, Event, Gpu, Stream};
use super::fault::Fault;
use super::lane::{Lane, Ticket};
use super::library::library;
use super::raw::{RawComm, each_in_one_group, unique_id};

const ENOUGH: Duration = Duration::from_secs(60);
/// Set in the inner process.
const LOG: &str = "DDP_DOUBLE_LOG";

/// Runs `body` in a process that has the stand-in, and returns its log of calls. Nothing in that process itself.
fn on_the_double(test: &str, env: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    if std::env::var_os(LOG).is_some() {
        body();
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let double = this.with_file_name("libddp_nccl_double.so");
    assert!(double.exists(), "{} was not built", double.display());
    for name in ["libnccl.so.2", "libcuda.so", "libcuda.so.1"] {
        symlink(&double, folder.path().join(name)).unwrap();
    }
    let output = Command::new(this)
        .args(["--exact", &format!("comm::nccl::tests::{test}"), "--nocapture"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env("TMPDIR", folder.path())
        .env(LOG, folder.path())
        .env("RANK", "0")
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let log = std::fs::read_to_string(folder.path().join("0.log")).unwrap();
    let end = log.lines().last().unwrap_or_default();
    let nothing = "end: 0 communicators, 0 streams, 0 events, 0 contexts, 0 allocations";
    assert_eq!(end, nothing, "something was forgotten");
    Some(log)
}

fn never_mind() -> Result<(), Fault> {
    Ok(())
}

/// Two ranks, each with a lane.
fn two_ranks(limit: Duration, body: impl Fn(usize, &Lane) + Sync) {
    two_ranks_again(1, limit, |_, rank, lane| body(rank, lane));
}

/// Two ranks, with another communicator and lane in each round.
fn two_ranks_again(rounds: usize, limit: Duration, body: impl Fn(usize, usize, &Lane) + Sync) {
    let _ = library().unwrap();
    assert!(driver::is_host_memory(), "this is not the stand-in");
    let ids: Vec<_> = (0..rounds).map(|_| unique_id().unwrap()).collect();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (body, ids) = (&body, &ids);
            scope.spawn(move || {
                for (round, &id) in ids.iter().enumerate() {
                    let gpu = Gpu::open(rank).unwrap();
                    let comm = RawComm::join(id, rank, 2, ENOUGH, &never_mind).unwrap();
                    let stream = Stream::new().unwrap();
                    let lane = Lane::new(comm, stream, gpu, Device::Cpu, limit);
                    body(round, rank, &lane);
                    lane.close(ENOUGH);
                }
            });
        }
    });
}

fn sum_bytes(lane: &Lane, behind: CUstream, bytes: &mut [u8]) -> Result<Ticket, Fault> {
    let (at, count) = (bytes.as_mut_ptr().cast::<std::ffi::c_void>(), bytes.len());
    let (kind, op) = (ncclDataType_t::ncclUint8, ncclRedOp_t::ncclSum);
    lane.issue_behind(behind, "ncclAllReduce", Vec::new(), |comm, stream| {
        // SAFETY: the bytes outlive the collective, which every test waits for.
        unsafe { ncclAllReduce(at.cast_const(), at, count, kind, op, comm, stream) }
    })
}

fn wait_for(lane: &Lane, ticket: &Ticket) -> Result<(), Fault> {
    while !lane.is_done(ticket)? {
        lane.look().inspect_err(|fault| lane.give_up(fault.clone()))?;
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

fn fill(bytes: &mut [u8], value: u8, stream: &Stream) {
    let (at, count) = (bytes.as_mut_ptr() as u64, bytes.len());
    // SAFETY: the bytes outlive what is issued here, which every test waits for.
    unsafe { memset_d8_async(at, value, count, stream.raw()) }.unwrap();
}

/// A producer's stream writes, the collective adds up, a consumer's stream overwrites: each must wait for the one before.
fn streams_in_turn() {
    two_ranks(ENOUGH, |rank, lane| {
        let (producer, consumer) = (Stream::new().unwrap(), Stream::new().unwrap());
        let mut bytes = vec![0_u8; 4096];
        for round in 0..40 {
            fill(&mut bytes, rank as u8 + 1, &producer);
            let ticket = sum_bytes(lane, producer.raw(), &mut bytes).unwrap();
            if round % 2 == 0 {
                wait_for(lane, &ticket).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 3), "round {round}: {:?}", &bytes[..8]);
                continue;
            }
            ticket.hold(consumer.raw()).unwrap();
            fill(&mut bytes, 9, &consumer);
            let end = Event::after(consumer.raw()).unwrap();
            while !end.is_done().unwrap() {
                std::thread::sleep(Duration::from_micros(100));
            }
            assert!(bytes.iter().all(|byte| *byte == 9), "round {round}: {:?}", &bytes[..8]);
            wait_for(lane, &ticket).unwrap();
        }
    });
}

#[test]
fn streams_wait_for_each_other() {
    let delays = [("DDP_DOUBLE_DELAY_US", "2000")];
    let log = on_the_double("streams_wait_for_each_other", &delays, streams_in_turn);
    assert!(log.is_none_or(|log| log.contains("ncclCommFinalize\n")));
}

#[test]
fn a_launch_that_takes_its_time_is_waited_for() {
    let slow = [("DDP_DOUBLE_DELAY_US", "2000"), ("DDP_DOUBLE_SLOW_LAUNCH", "1")];
    let _ = on_the_double("a_launch_that_takes_its_time_is_waited_for", &slow, streams_in_turn);
}

#[test]
fn a_collective_that_hangs_is_ended_within_its_limit() {
    let hang = [("DDP_DOUBLE_FAULTS", "hang@1=2")];
    let log = on_the_double("a_collective_that_hangs_is_ended_within_its_limit", &hang, || {
        two_ranks(Duration::from_secs(1), |_, lane| {
            let mut bytes = vec![1; 64];
            let none = std::ptr::null_mut();
            let first = sum_bytes(lane, none, &mut bytes).unwrap();
            wait_for(lane, &first).unwrap();
            let (started, second) = (Instant::now(), sum_bytes(lane, none, &mut bytes).unwrap());
            let fault = wait_for(lane, &second).unwrap_err();
            assert!(matches!(fault, Fault::Timeout { .. }), "{fault}");
            assert!(started.elapsed() < Duration::from_secs(30));
            // The stream goes on, so that what waits for it does.
            let behind = Event::after(lane.stream()).unwrap();
            while !behind.is_done().unwrap() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let again = sum_bytes(lane, none, &mut bytes).map(|_| ()).unwrap_err();
            assert!(matches!(again, Fault::Aborted), "{again}");
        });
    });
    assert!(log.is_none_or(|log| log.matches("ncclCommAbort").count() == 2));
}

#[test]
fn a_failure_that_nccl_notes_by_itself_has_its_words() {
    let fails = [("DDP_DOUBLE_FAULTS", "async@0=1 async@1=1")];
    let _ = on_the_double("a_failure_that_nccl_notes_by_itself_has_its_words", &fails, || {
        two_ranks(ENOUGH, |_, lane| {
            let mut bytes = vec![1; 64];
            let ticket = sum_bytes(lane, std::ptr::null_mut(), &mut bytes).unwrap();
            let text = wait_for(lane, &ticket).unwrap_err().to_string();
            let words = "failed with ncclRemoteError: remote process exited or there was a network error (told to fail); another \
                         rank has ended";
            assert!(text.contains(words), "{text}");
        });
    });
}

#[test]
fn a_rank_that_never_comes_is_not_waited_for_longer_than_the_limit() {
    let test = "a_rank_that_never_comes_is_not_waited_for_longer_than_the_limit";
    let log = on_the_double(test, &[], || {
        let _ = library().unwrap();
        let gpu = Gpu::open(0).unwrap();
        let limit = Duration::from_millis(300);
        let id = unique_id().unwrap();
        let fault = RawComm::join(id, 0, 2, limit, &never_mind).map(|_| ()).unwrap_err();
        assert!(matches!(fault, Fault::Timeout { .. }), "{fault}");
        let stop = || Err(Fault::Peer { what: "joining".to_owned(), message: "gone".to_owned() });
        let id = unique_id().unwrap();
        let fault = RawComm::join(id, 0, 2, ENOUGH, &stop).map(|_| ()).unwrap_err();
        assert!(matches!(fault, Fault::Peer { .. }), "{fault}");
        drop(gpu);
    });
    assert!(log.is_none_or(|log| log.matches("ncclCommAbort").count() == 2));
}

#[test]
fn calls_of_a_group_are_one_launch() {
    let log = on_the_double("calls_of_a_group_are_one_launch", &[], || {
        two_ranks(ENOUGH, |_, lane| {
            let mut parts = [vec![1_u8; 8], vec![2; 5000], vec![4; 3]];
            let addresses: Vec<_> =
                parts.iter_mut().map(|part| (part.as_mut_ptr() as usize, part.len())).collect();
            let none = std::ptr::null_mut();
            let ticket = lane.issue_behind(none, "ncclAllReduce", Vec::new(), |comm, stream| {
                each_in_one_group(&addresses, |&(at, count)| {
                    let (at, kind) = (at as *mut std::ffi::c_void, ncclDataType_t::ncclUint8);
                    let op = ncclRedOp_t::ncclProd;
                    // SAFETY: the parts outlive the collective, which is waited for.
                    unsafe { ncclAllReduce(at, at, count, kind, op, comm, stream) }
                })
            });
            wait_for(lane, &ticket.unwrap()).unwrap();
            let values: Vec<u8> = parts.iter().map(|part| part[part.len() - 1]).collect();
            assert_eq!(values, [1, 4, 16]);
        });
    });
    let Some(log) = log else { return };
    assert_eq!(
        (log.matches("ncclGroupStart").count(), log.matches("ncclGroupEnd").count()),
        (2, 2)
    );
}

#[test]
fn a_thread_without_a_gpu_is_told_so() {
    let _ = on_the_double("a_thread_without_a_gpu_is_told_so", &[], || {
        two_ranks(ENOUGH, |_, lane| {
            let on_another_thread = std::thread::scope(|scope| {
                let issue = || sum_bytes(lane, std::ptr::null_mut(), &mut [1]).map(|_| ());
                scope.spawn(issue).join().unwrap()
            });
            let text = on_another_thread.unwrap_err().to_string();
            assert!(text.starts_with("cuEventCreate failed: CUDA_ERROR_INVALID_CONTEXT"), "{text}");
        });
    });
}

/// The compiler's leak sanitizer: loaded before the program, it ends a process that has lost memory with a failure.
fn leak_sanitizer() -> Option<String> {
    if std::env::var_os(LOG).is_some() {
        return Some(String::new());
    }
    let output = Command::new("c++").arg("-print-file-name=liblsan.so").output().unwrap();
    let path = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    // Without a folder it is not installed: it comes with GCC.
    if path.contains('/') {
        return Some(path);
    }
    eprintln!("skipped: the C++ compiler has no leak sanitizer");
    None
}

#[test]
fn needs_lsan_a_thousand_communicators_leave_nothing_behind() {
    let Some(sanitizer) = leak_sanitizer() else { return };
    let preload = [("LD_PRELOAD", sanitizer.as_str())];
    let log =
        on_the_double("needs_lsan_a_thousand_communicators_leave_nothing_behind", &preload, || {
            two_ranks_again(1000, ENOUGH, |round, rank, lane| {
                let mut bytes = vec![rank as u8; 16];
                let ticket = sum_bytes(lane, std::ptr::null_mut(), &mut bytes).unwrap();
                wait_for(lane, &ticket).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 1));
                if round % 2 == 1 {
                    // As when it fails.
                    lane.give_up(Fault::Aborted);
                }
            });
        });
    let Some(log) = log else { return };
    let (destroyed, aborted) = (log.matches("ncclCommDestroy"), log.matches("ncclCommAbort"));
    assert_eq!((destroyed.count(), aborted.count()), (1000, 1000));
}
