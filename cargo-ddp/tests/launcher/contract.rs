//! What each rank finds in its environment.

use std::collections::HashMap;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use ddp_env::{Launch, LauncherKind, StoreHost};

use super::harness::{self, Done, launcher, wait_for_ready};

/// Writes the environment, what its socket is, and the listening sockets of the host.
const DUMP: &str = "env -0 > $DIR/env.$RANK; cat /proc/net/tcp > $DIR/tcp.$RANK
     readlink /proc/self/fd/$DDP_STORE_FD > $DIR/fd.$RANK 2>&1; : > $DIR/$RANK.ready";

fn env_of(dir: &Path, rank: usize) -> HashMap<String, String> {
    let text = fs::read_to_string(dir.join(format!("env.{rank}"))).expect("a rank's environment");
    let variables = text.split('\0').filter_map(|variable| variable.split_once('='));
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn ok(done: &Done) {
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
}

#[test]
fn every_rank_reads_its_place_with_both_ways_to_start() {
    // `cargo ddp run` makes it the first form; the second is typed by hand.
    for form in ["ddp run", "run"] {
        let dir = tempfile::tempdir().unwrap();
        let job = launcher(&format!("{form} -n 3 --exec /bin/sh --")).args(["-c", DUMP]);
        ok(&job.env("DIR", dir.path()).run());
        for rank in 0..3 {
            let env = env_of(dir.path(), rank);
            let launch = Launch::from_lookup(&|name| env.get(name).cloned()).unwrap().unwrap();
            assert_eq!(launch.launcher, LauncherKind::CargoDdp);
            let topology = launch.topology;
            assert_eq!((topology.rank, topology.local_rank), (rank, rank));
            assert_eq!((topology.world_size, topology.local_world_size), (3, 3));
            assert_eq!((topology.node_rank, topology.node_count()), (0, 1));
            assert_eq!(launch.rendezvous.master_addr, "127.0.0.1");
            let has_socket = launch.rendezvous.store != StoreHost::Rank0 { listen_fd: None };
            assert_eq!(has_socket, rank == 0, "the socket is rank 0's alone");
            assert!(!launch.report_dir.unwrap().exists(), "the folder is gone with the job");
        }
    }
}

#[test]
fn rank_0_inherits_a_socket_that_listens_on_loopback_only() {
    let dir = tempfile::tempdir().unwrap();
    ok(&harness::script(2, "", DUMP).env("DIR", dir.path()).run());
    let port: u16 = env_of(dir.path(), 0)["MASTER_PORT"].parse().unwrap();
    let link = fs::read_to_string(dir.path().join("fd.0")).unwrap();
    let inode = link.trim().strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
    let inode = inode.unwrap_or_else(|| panic!("no socket: {link}"));
    let table = fs::read_to_string(dir.path().join("tcp.0")).unwrap();
    let line = table.lines().find(|line| line.split_whitespace().nth(9) == Some(inode));
    let line = line.unwrap_or_else(|| panic!("socket {inode} is not in\n{table}"));
    // 127.0.0.1 in the kernel's byte order, and 0A: it listens.
    assert!(line.contains(&format!("0100007F:{port:04X} 00000000:0000 0A")), "{line}");
}

#[test]
fn nobody_listens_any_more_when_rank_0_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let wait = format!("{DUMP}; [ $RANK = 0 ] || sleep 30");
    let running = harness::script(2, "", &wait).env("DIR", dir.path()).start();
    wait_for_ready(dir.path(), 2);
    let port: u16 = env_of(dir.path(), 1)["MASTER_PORT"].parse().unwrap();
    let refused = || TcpStream::connect(("127.0.0.1", port)).is_err();
    assert!(harness::wait_until(std::time::Duration::from_secs(5), refused));
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.finish().code, 143);
}

#[test]
fn p09_a_port_that_is_taken_is_one_clear_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let done = harness::script(2, &format!("--master-port {port}"), "true").run();
    assert_eq!(done.code, 1);
    let text = format!("error: port {port} of 127.0.0.1 is taken; give another --master-port");
    assert!(done.stderr.starts_with(&text), "{}", done.stderr);
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
}

#[test]
fn an_asked_for_port_is_used() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let dir = tempfile::tempdir().unwrap();
    let options = format!("--master-port {free}");
    ok(&harness::script(1, &options, DUMP).env("DIR", dir.path()).run());
    assert_eq!(env_of(dir.path(), 0)["MASTER_PORT"], free.to_string());
}

#[test]
fn p10_threads_are_shared_out_unless_the_user_has_set_them() {
    let dir = tempfile::tempdir().unwrap();
    let job = || harness::script(1, "", DUMP).env("DIR", dir.path());
    ok(&job().env_remove("OMP_NUM_THREADS").env_remove("SLURM_CPUS_PER_TASK").run());
    let cores: usize = env_of(dir.path(), 0)["OMP_NUM_THREADS"].parse().unwrap();
    assert!(cores >= 1);
    ok(&job().env_remove("OMP_NUM_THREADS").env("SLURM_CPUS_PER_TASK", "1").run());
    assert_eq!(env_of(dir.path(), 0)["OMP_NUM_THREADS"], "1");
    ok(&job().env("OMP_NUM_THREADS", "77").run());
    assert_eq!(env_of(dir.path(), 0)["OMP_NUM_THREADS"], "77");
}

#[test]
fn ranks_of_the_second_host_count_on() {
    let dir = tempfile::tempdir().unwrap();
    let options = "--nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port 4242";
    ok(&harness::script(2, options, DUMP).env("DIR", dir.path()).run());
    let env = env_of(dir.path(), 3);
    assert_eq!((env["WORLD_SIZE"].as_str(), env["LOCAL_RANK"].as_str()), ("4", "1"));
    assert_eq!((env["GROUP_RANK"].as_str(), env["MASTER_PORT"].as_str()), ("1", "4242"));
    assert!(!env.contains_key("DDP_STORE_FD"), "the store is on the other host");
}

#[test]
fn an_address_of_another_host_is_told() {
    // 192.0.2.0/24 is reserved for documentation.
    let options = "--nnodes 2 --master-addr 192.0.2.1";
    let done = harness::script(1, options, "true").run();
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("192.0.2.1 is no address of this host"), "{}", done.stderr);
}
