//! What each rank is told: pure.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ddp_env::{names, plan};

use crate::cli::HostArgs;
use crate::error::RunError;
use crate::program::Program;

/// torchrun's port for jobs on several hosts.
const DEFAULT_PORT: u16 = 29500;
const LOOPBACK: &str = "127.0.0.1";

/// The hosts of the job, and this one among them.
#[derive(Clone, Debug)]
pub(super) struct Hosts {
    pub(super) nnodes: usize,
    pub(super) node_rank: usize,
    /// Ranks on each host.
    pub(super) ranks: usize,
    pub(super) addr: String,
    asked_port: Option<u16>,
}

impl Hosts {
    pub(super) fn new(args: &HostArgs, ranks: usize) -> Result<Self, RunError> {
        let (nnodes, node_rank) = (args.nnodes.get(), args.node_rank);
        if node_rank >= nnodes {
            return Err(RunError::NodeRank { node_rank, nnodes });
        }
        if nnodes.checked_mul(ranks).is_none() {
            return Err(RunError::TooManyRanks { nnodes, ranks });
        }
        let addr = match &args.master_addr {
            Some(addr) if nnodes == 1 && addr != LOOPBACK && addr != "localhost" => {
                return Err(RunError::AddressForOneHost { addr: addr.clone() });
            }
            Some(addr) if nnodes > 1 => addr.clone(),
            None if nnodes > 1 => return Err(RunError::NoAddress { nnodes }),
            _ => LOOPBACK.to_owned(),
        };
        Ok(Self { nnodes, node_rank, ranks, addr, asked_port: args.master_port })
    }

    /// Whether rank 0 runs here.
    pub(super) fn is_first(&self) -> bool {
        self.node_rank == 0
    }

    /// The port to bind: 0, a free one, for a job on one host that names none.
    pub(super) fn port(&self) -> u16 {
        self.asked_port.unwrap_or(if self.nnodes == 1 { 0 } else { DEFAULT_PORT })
    }

    /// The global rank of a rank of this host. The product fits: the constructor has tried it.
    pub(super) fn rank(&self, local_rank: usize) -> usize {
        plan::global_rank(self.node_rank, self.ranks, local_rank).unwrap_or(local_rank)
    }

    pub(super) fn world_size(&self) -> usize {
        self.nnodes * self.ranks
    }
}

/// Everything the ranks of this host have in common.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) hosts: Hosts,
    pub(super) port: u16,
    pub(super) report_dir: PathBuf,
    /// How long the ranks have to end by themselves once they are asked to.
    pub(super) grace: Duration,
    /// Usable cores of this host.
    pub(super) cores: usize,
    /// Whether several ranks may share a GPU.
    pub(super) share_gpus: bool,
    pub(super) program: Program,
    pub(super) args: Vec<OsString>,
}

/// Variables to set, and others that a rank must not inherit.
pub(super) struct RankEnv {
    pub(super) set: Vec<(&'static str, OsString)>,
    pub(super) remove: Vec<&'static str>,
}

impl Plan {
    /// The environment of a rank, over what the launcher itself was given (`inherited`).
    /// `listen_fd`: the inherited listening socket, for rank 0.
    pub(super) fn env(
        &self,
        local_rank: usize,
        listen_fd: Option<i32>,
        inherited: &dyn Fn(&str) -> Option<OsString>,
    ) -> RankEnv {
        let mut set = self.contract(local_rank);
        set.push((names::DDP_LAUNCHER, names::CARGO_DDP.into()));
        set.push((names::DDP_REPORT_DIR, self.report_dir.clone().into()));
        set.push((names::DDP_GRACE, self.grace.as_secs_f64().to_string().into()));
        // A file of an outer torchrun's job; written to, it would be taken for that job's error.
        let mut remove = vec![names::TORCHELASTIC_ERROR_FILE];
        match listen_fd {
            Some(fd) => set.push((names::DDP_STORE_FD, fd.to_string().into())),
            None => remove.push(names::DDP_STORE_FD),
        }
        let unset = |name| inherited(name).is_none_or(|value| value.is_empty());
        if unset("OMP_NUM_THREADS") {
            let threads = plan::threads_per_rank(self.cores, self.hosts.ranks);
            set.push(("OMP_NUM_THREADS", threads.to_string().into()));
        }
        if self.hosts.nnodes == 1 && unset("NCCL_SOCKET_IFNAME") {
            set.push(("NCCL_SOCKET_IFNAME", "lo".into()));
        }
        if self.share_gpus {
            // NCCL takes ranks that differ in this for ranks of different hosts; from 2.30 on it can be asked to share.
            let host = format!("{}-{}", self.hosts.addr, self.hosts.rank(local_rank));
            set.push(("NCCL_HOSTID", host.into()));
            set.push(("NCCL_MULTI_RANK_GPU_ENABLE", "1".into()));
        }
        if let Some(path) = self.library_path(inherited("LD_LIBRARY_PATH")) {
            set.push(("LD_LIBRARY_PATH", path));
        }
        // `cargo run` sets it too; a launcher that cargo itself runs would pass on its own.
        if let Some(folder) = self.program.manifest.as_ref().and_then(|path| path.parent()) {
            set.push(("CARGO_MANIFEST_DIR", folder.into()));
        }
        RankEnv { set, remove }
    }

    /// torchrun's variables.
    fn contract(&self, local_rank: usize) -> Vec<(&'static str, OsString)> {
        let hosts = &self.hosts;
        let (rank, world_size) = (hosts.rank(local_rank), hosts.world_size());
        let numbers = [
            (names::RANK, rank),
            (names::WORLD_SIZE, world_size),
            (names::LOCAL_RANK, local_rank),
            (names::LOCAL_WORLD_SIZE, hosts.ranks),
            (names::GROUP_RANK, hosts.node_rank),
            (names::GROUP_WORLD_SIZE, hosts.nnodes),
            (names::ROLE_RANK, rank),
            (names::ROLE_WORLD_SIZE, world_size),
            (names::MASTER_PORT, usize::from(self.port)),
            (names::TORCHELASTIC_RESTART_COUNT, 0),
            (names::TORCHELASTIC_MAX_RESTARTS, 0),
        ];
        let words = [
            (names::ROLE_NAME, "default".to_owned()),
            (names::MASTER_ADDR, hosts.addr.clone()),
            (names::TORCHELASTIC_USE_AGENT_STORE, "False".to_owned()),
            (names::TORCHELASTIC_RUN_ID, format!("cargo-ddp-{}", self.port)),
        ];
        let numbers = numbers.map(|(name, number)| (name, number.to_string()));
        numbers.into_iter().chain(words).map(|(name, value)| (name, value.into())).collect()
    }

    /// The program's library folders before those that were there already.
    fn library_path(&self, inherited: Option<OsString>) -> Option<OsString> {
        if self.program.library_dirs.is_empty() {
            return None;
        }
        let inherited = inherited.filter(|paths| !paths.is_empty());
        let before = inherited.iter().flat_map(std::env::split_paths);
        // A folder with a colon in its name cannot be written in the variable at all.
        std::env::join_paths(self.program.library_dirs.iter().cloned().chain(before)).ok()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;
    use std::num::NonZeroUsize;

    use super::*;

    fn args(nnodes: usize, node_rank: usize, addr: Option<&str>) -> HostArgs {
        HostArgs {
            nnodes: NonZeroUsize::new(nnodes).unwrap(),
            node_rank,
            master_addr: addr.map(str::to_owned),
            master_port: None,
        }
    }

    fn plan(hosts: Hosts) -> Plan {
        Plan {
            port: 4242,
            hosts,
            report_dir: PathBuf::from("/tmp/report"),
            grace: Duration::from_secs(30),
            cores: 8,
            share_gpus: false,
            program: Program {
                path: PathBuf::from("/w/x"),
                library_dirs: vec![PathBuf::from("/torch/lib")],
                manifest: None,
            },
            args: Vec::new(),
        }
    }

    /// Two ranks on one host, for the tests of other rooms.
    pub(in crate::job) fn two_ranks() -> Plan {
        plan(Hosts::new(&args(1, 0, None), 2).unwrap())
    }

    fn env(
        plan: &Plan,
        local_rank: usize,
        fd: Option<i32>,
        inherited: &[(&str, &str)],
    ) -> HashMap<&'static str, String> {
        let find = |name: &str| {
            inherited.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        let env = plan.env(local_rank, fd, &find);
        env.set.into_iter().map(|(name, value)| (name, value.into_string().unwrap())).collect()
    }

    #[test]
    fn the_runtime_reads_back_what_is_set() {
        let plan = plan(Hosts::new(&args(2, 1, Some("10.0.0.1")), 4).unwrap());
        let env = env(&plan, 2, None, &[]);
        let launch = ddp_env::Launch::from_lookup(&|name| env.get(name).cloned()).unwrap().unwrap();
        assert_eq!(launch.launcher, ddp_env::LauncherKind::CargoDdp);
        let topology = launch.topology;
        assert_eq!((topology.rank, topology.world_size), (6, 8));
        assert_eq!((topology.local_rank, topology.local_world_size), (2, 4));
        assert_eq!((topology.node_rank, topology.node_count()), (1, 2));
        assert_eq!(launch.rendezvous.master_addr, "10.0.0.1");
        assert_eq!(launch.rendezvous.master_port, 4242);
        assert_eq!(launch.report_dir, Some(PathBuf::from("/tmp/report")));
    }

    #[test]
    fn only_rank_0_gets_the_socket() {
        let plan = plan(Hosts::new(&args(1, 0, None), 2).unwrap());
        assert_eq!(env(&plan, 0, Some(7), &[])["DDP_STORE_FD"], "7");
        assert!(!env(&plan, 1, None, &[]).contains_key("DDP_STORE_FD"));
        assert!(plan.env(1, None, &|_| None).remove.contains(&"DDP_STORE_FD"));
    }

    #[test]
    fn p10_ranks_share_the_cores_and_what_the_user_has_set_stays() {
        let plan = plan(Hosts::new(&args(1, 0, None), 3).unwrap());
        let plain = env(&plan, 0, None, &[]);
        assert_eq!(plain["OMP_NUM_THREADS"], "2");
        assert_eq!(plain["NCCL_SOCKET_IFNAME"], "lo");
        assert_eq!(plain["LD_LIBRARY_PATH"], "/torch/lib");
        let set = [
            ("OMP_NUM_THREADS", "5"),
            ("NCCL_SOCKET_IFNAME", "eth0"),
            ("LD_LIBRARY_PATH", "/a:/b"),
        ];
        let own = env(&plan, 0, None, &set);
        assert!(!own.contains_key("OMP_NUM_THREADS") && !own.contains_key("NCCL_SOCKET_IFNAME"));
        assert_eq!(own["LD_LIBRARY_PATH"], "/torch/lib:/a:/b");
    }

    #[test]
    fn ranks_that_share_a_gpu_are_on_different_hosts_for_nccl() {
        let mut plan = two_ranks();
        assert!(!env(&plan, 1, None, &[]).contains_key("NCCL_HOSTID"));
        plan.share_gpus = true;
        assert_eq!(env(&plan, 1, None, &[])["NCCL_HOSTID"], "127.0.0.1-1");
        assert_eq!(env(&plan, 0, None, &[])["NCCL_HOSTID"], "127.0.0.1-0");
        assert_eq!(env(&plan, 0, None, &[])["NCCL_MULTI_RANK_GPU_ENABLE"], "1");
    }

    #[test]
    fn several_hosts_choose_their_network_and_need_an_address() {
        let hosts = Hosts::new(&args(2, 0, Some("10.0.0.1")), 1).unwrap();
        assert_eq!(hosts.port(), 29500);
        assert!(!env(&plan(hosts), 0, None, &[]).contains_key("NCCL_SOCKET_IFNAME"));
        assert!(matches!(Hosts::new(&args(2, 0, None), 1), Err(RunError::NoAddress { .. })));
        assert!(matches!(Hosts::new(&args(2, 2, None), 1), Err(RunError::NodeRank { .. })));
        assert!(matches!(
            Hosts::new(&args(1, 0, Some("10.0.0.1")), 1),
            Err(RunError::AddressForOneHost { .. })
        ));
        assert!(matches!(
            Hosts::new(&args(2, 0, Some("a")), usize::MAX),
            Err(RunError::TooManyRanks { .. })
        ));
    }
}
