//! One test a launcher: the variables it sets, and what must come out.

use proptest::prelude::*;

use super::*;

/// Reads `vars`, written as `NAME=value` words.
fn read(vars: &str) -> Result<Option<Launch>, EnvError> {
    let find = |name: &str| {
        vars.split_whitespace()
            .filter_map(|word| word.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.to_owned())
    };
    Launch::from_lookup(&find)
}

fn launch(vars: &str) -> Launch {
    read(vars).unwrap_or_else(|error| panic!("{vars}: {error}")).expect("a launcher")
}

/// `rank/world local/local_world node/nodes address:port`.
fn summary(launch: &Launch) -> String {
    let t = launch.topology;
    format!(
        "{}/{} {}/{} {}/{} {}:{}",
        t.rank,
        t.world_size,
        t.local_rank,
        t.local_world_size,
        t.node_rank,
        t.node_count(),
        launch.rendezvous.master_addr,
        launch.rendezvous.master_port
    )
}

fn refused(vars: &str) -> String {
    match read(vars) {
        Err(error) => error.to_string(),
        Ok(other) => panic!("{vars}: accepted as {other:?}"),
    }
}

const CARGO_DDP: &str = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 \
     MASTER_ADDR=127.0.0.1 MASTER_PORT=4242 DDP_LAUNCHER=cargo-ddp DDP_STORE_FD=5 \
     DDP_REPORT_DIR=/tmp/r TORCHELASTIC_RUN_ID=x TORCHELASTIC_USE_AGENT_STORE=False";

#[test]
fn no_launcher_is_a_single_process() {
    assert_eq!(read(""), Ok(None));
    assert_eq!(read("MASTER_ADDR=10.0.0.1 MASTER_PORT=1234"), Ok(None));
    assert_eq!(read("RANK= WORLD_SIZE="), Ok(None), "an empty variable is not set");
}

#[test]
fn cargo_ddp_passes_socket_and_report_folder() {
    let launch = launch(CARGO_DDP);
    assert_eq!(summary(&launch), "0/2 0/2 0/1 127.0.0.1:4242");
    assert_eq!(launch.launcher, LauncherKind::CargoDdp);
    assert_eq!(launch.rendezvous.store, StoreHost::Rank0 { listen_fd: Some(5) });
    assert_eq!(launch.report_dir, Some(PathBuf::from("/tmp/r")));
}

#[test]
fn only_rank_0_takes_the_socket() {
    let other = CARGO_DDP.replace("RANK=0 WORLD", "RANK=1 WORLD");
    assert_eq!(launch(&other).rendezvous.store, StoreHost::Rank0 { listen_fd: None });
}

#[test]
fn torchrun_with_the_store_of_its_agent() {
    let launch = launch(
        "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 \
         MASTER_ADDR=host-a MASTER_PORT=29400 TORCHELASTIC_RUN_ID=none \
         TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=3",
    );
    assert_eq!(summary(&launch), "5/8 1/4 1/2 host-a:29400");
    assert_eq!(launch.launcher, LauncherKind::Torchrun);
    assert_eq!(launch.rendezvous.store, StoreHost::Agent);
    assert_eq!(launch.restart_count, 3);
}

#[test]
fn a_world_of_one_is_a_launch_without_more() {
    assert_eq!(summary(&launch("RANK=0 WORLD_SIZE=1")), "0/1 0/1 0/1 127.0.0.1:29500");
}

#[test]
fn by_hand_on_loopback_the_local_rank_is_the_rank() {
    let launch = launch("RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500");
    assert_eq!(summary(&launch), "1/2 1/2 0/1 localhost:29500");
    assert_eq!(launch.launcher, LauncherKind::Manual);
}

#[test]
fn half_an_environment_names_what_is_missing() {
    let cases = [
        ("RANK=0", "RANK is set, but WORLD_SIZE is not; "),
        ("WORLD_SIZE=2", "WORLD_SIZE is set, but RANK is not; "),
        ("LOCAL_RANK=0", "LOCAL_RANK is set, but RANK is not; "),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", "but LOCAL_RANK is not; "),
        ("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=a", "but LOCAL_WORLD_SIZE is not; "),
        ("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", "but MASTER_ADDR is not; "),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1", "but MASTER_PORT is not; "),
    ];
    for (vars, expected) in cases {
        let text = refused(vars);
        assert!(text.contains(expected), "{vars}: {text}");
    }
}

#[test]
fn wrong_values_are_named_with_their_variable() {
    let cases = [
        ("RANK=zero WORLD_SIZE=2", "RANK=\"zero\" is not a whole number from 0"),
        ("RANK=-1 WORLD_SIZE=2", "RANK=\"-1\" is not"),
        ("RANK=2 WORLD_SIZE=2 MASTER_ADDR=::1 MASTER_PORT=1", "rank is 2, but world_size is 2"),
        ("RANK=0 WORLD_SIZE=0", "rank is 0, but world_size is 0"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=::1 MASTER_PORT=0", "MASTER_PORT=\"0\" is not a TCP"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=::1 MASTER_PORT=70000", "MASTER_PORT=\"70000\" is not"),
        ("RANK=0 WORLD_SIZE=1 DDP_STORE_FD=-3", "DDP_STORE_FD=\"-3\" is not"),
    ];
    for (vars, expected) in cases {
        let text = refused(vars);
        assert!(text.contains(expected), "{vars}: {text}");
    }
}

const SRUN: &str = "SLURM_JOB_ID=1234567 SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_LOCALID=1 \
     SLURM_NODEID=1 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=8 SLURM_STEP_NUM_NODES=2 \
     SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_STEP_NODELIST=gpu[07-08]";

#[test]
fn srun_over_two_nodes_meets_at_the_first() {
    let launch = launch(SRUN);
    assert_eq!(summary(&launch), "5/8 1/4 1/2 gpu07:19567");
    assert_eq!(launch.launcher, LauncherKind::Slurm);
    let named = format!("MASTER_ADDR=here MASTER_PORT=77 {SRUN}");
    assert_eq!(summary(&super::tests::launch(&named)), "5/8 1/4 1/2 here:77");
}

#[test]
fn srun_on_one_node_stays_on_loopback() {
    let launch = launch(
        "SLURM_JOB_ID=42 SLURM_STEP_ID=3 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=0 \
         SLURM_NTASKS=2 SLURM_NNODES=1 SLURM_NODELIST=gpu1",
    );
    assert_eq!(summary(&launch), "1/2 1/2 0/1 127.0.0.1:15042");
}

#[test]
fn uneven_nodes_count_as_slurm_says() {
    let launch = launch(
        "SLURM_JOB_ID=42 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NODEID=1 \
         SLURM_NTASKS=3 SLURM_NNODES=2 SLURM_STEP_TASKS_PER_NODE=2,1 SLURM_NODELIST=a,b",
    );
    assert_eq!(summary(&launch), "2/3 0/1 1/2 a:15042");
}

#[test]
fn a_shell_in_an_allocation_is_no_task() {
    // salloc without a step, sbatch's script, salloc's interactive step, srun --pty bash.
    let shells = [
        "SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_NNODES=1",
        "SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0",
        "SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=4294967291",
        "SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=4294967290",
        "SLURM_JOB_ID=1 SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_PTY_PORT=4000",
    ];
    for shell in shells {
        assert_eq!(read(shell), Ok(None), "{shell}");
    }
}

#[test]
fn a_terminal_of_a_step_with_several_tasks_is_refused_with_a_cure() {
    let text = refused(&format!("{SRUN} SLURM_PTY_PORT=4000"));
    assert!(text.contains("task 5 of 8") && text.contains("env -u SLURM_STEP_ID"), "{text}");
}

#[test]
fn a_world_size_that_contradicts_slurm_is_refused() {
    let text = refused(&format!("{SRUN} WORLD_SIZE=4"));
    assert!(text.contains("WORLD_SIZE=4, but SLURM_STEP_NUM_TASKS=8"), "{text}");
    assert_eq!(launch(&format!("{SRUN} WORLD_SIZE=8")).topology.world_size, 8);
}

#[test]
fn open_mpi_on_one_host() {
    let vars = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
         OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1";
    let plain = launch(vars);
    assert_eq!(summary(&plain), "1/2 1/2 0/1 127.0.0.1:29500");
    assert_eq!(plain.launcher, LauncherKind::OpenMpi);
    let one = launch(&format!("{vars} PMIX_NAMESPACE=prterun-a-1@1"));
    let two = launch(&format!("{vars} PMIX_NAMESPACE=prterun-a-2@1"));
    assert_ne!(one.rendezvous.master_port, two.rendezvous.master_port);
    assert!((15_000..25_000).contains(&one.rendezvous.master_port));
}

#[test]
fn mpirun_over_hosts_needs_an_address() {
    let vars = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 \
         OMPI_COMM_WORLD_LOCAL_SIZE=2";
    assert!(refused(vars).contains("MASTER_ADDR is not; mpirun does not say"), "{}", refused(vars));
    let named = launch(&format!("{vars} MASTER_ADDR=a MASTER_PORT=5"));
    assert_eq!(summary(&named), "2/4 0/2 1/2 a:5");
}

#[test]
fn mpirun_wins_over_the_srun_that_started_its_daemons() {
    let vars = format!(
        "{SRUN} OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 \
         OMPI_COMM_WORLD_LOCAL_SIZE=2"
    );
    assert_eq!(launch(&vars).launcher, LauncherKind::OpenMpi);
}

#[test]
fn mpich_and_intel_mpi() {
    let launch = launch("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2");
    assert_eq!(summary(&launch), "1/2 1/2 0/1 127.0.0.1:29500");
    assert_eq!(launch.launcher, LauncherKind::Mpich);
    assert!(refused("PMI_RANK=1 PMI_SIZE=2").contains("MPI_LOCALRANKID is not"));
}

#[test]
fn srun_with_pmi_is_read_as_srun() {
    let launch = launch(&format!("{SRUN} PMI_RANK=5 PMI_SIZE=8"));
    assert_eq!(launch.launcher, LauncherKind::Slurm);
}

proptest! {
    #[test]
    fn no_environment_makes_the_reader_panic(
        values in prop::collection::vec("(|0|1|2|4|-1|x|4294967295|2\\(x2\\)|n\\[1-2\\])", 24),
    ) {
        const NAMES: [&str; 24] = [
            "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
            "MASTER_PORT", "DDP_STORE_FD", "GROUP_WORLD_SIZE", "SLURM_STEP_ID", "SLURM_PROCID",
            "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASKS_PER_NODE",
            "SLURM_NODELIST", "SLURM_JOB_ID", "SLURM_NNODES", "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
        ];
        let find = |name: &str| {
            NAMES.iter().position(|known| *known == name).map(|at| values[at].clone())
        };
        if let Ok(Some(launch)) = Launch::from_lookup(&find) {
            let t = launch.topology;
            prop_assert!(t.rank < t.world_size && t.local_rank < t.local_world_size);
            prop_assert!(launch.rendezvous.master_port > 0);
        }
    }
}
