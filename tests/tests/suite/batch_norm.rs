//! Synchronised batch normalisation: against PyTorch's BatchNorm on the joined batch, and what becomes of ranks that differ.
use std::time::Duration;

use ddp_tests::kernels::VARIABLE;
use ddp_tests::{Job, Outcome};

use crate::truth::{output, script};
use crate::worker;

/// How the layers compute: on the CPU, or as on a GPU with kernels of the tests' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Cpu,
    Gpu,
}

const WAYS: [Way; 2] = [Way::Cpu, Way::Gpu];

impl Way {
    fn of(self, job: Job) -> Job {
        match self {
            Self::Cpu => job,
            Self::Gpu => job.env(VARIABLE, "1"),
        }
    }
}

#[test]
fn layers_follow_one_process_on_the_joined_batch() {
    let folder = tempfile::tempdir().unwrap();
    let truth = folder.path().join("truth.npz");
    output(script("batch_norm.py").arg(&truth));
    // Equal parts, unequal ones, a single row and none at all.
    for (sizes, backend) in [
        ("6,6", "shm"),
        ("1,11", "gloo"),
        ("0,12", "shm"),
        ("2,3,7", "shm"),
        ("4,4,4", "gloo"),
        ("1,1,3,7", "shm"),
        ("12", "shm"),
    ] {
        for way in WAYS {
            let job = way.of(worker("batch-norm")).arg("layers").arg(&truth).arg(sizes);
            let job = job.ranks(sizes.split(',').count()).env("DDP_BACKEND", backend);
            all_followed(&job.run().success());
        }
    }
}

/// All layers of the truth, on every rank.
pub(crate) fn all_followed(outcome: &Outcome) {
    for rank in &outcome.ranks {
        assert!(rank.stdout.contains("single_rows evaluated:"), "{}", outcome.tails());
    }
}

#[test]
fn whole_trainings_follow_one_process_with_the_kernels_of_gpus() {
    for ranks in [2, 3] {
        let job = worker("trajectories").arg("batch-norm").env(VARIABLE, "1");
        let _ = job.ranks(ranks).run().success();
        let job = worker("gpu").arg("batch-norm").env(VARIABLE, "1");
        let _ = job.ranks(ranks).run().success();
    }
}

fn holds(case: &str) {
    for (ranks, way) in [(2, Way::Cpu), (3, Way::Cpu), (2, Way::Gpu), (3, Way::Gpu)] {
        let _ = way.of(worker("batch-norm")).arg(case).ranks(ranks).run().success();
    }
}

#[test]
fn the_option_takes_all_layers_but_those_that_are_kept_local() {
    holds("everywhere");
}

#[test]
fn one_store_may_be_synchronised_alone() {
    holds("one-store");
}

#[test]
fn inputs_of_16_bits_follow_one_process() {
    holds("reduced");
}

#[test]
fn ranks_that_stand_aside_have_no_part_in_the_statistics() {
    holds("join");
}

/// Every rank that is left ends long before the time-out of 300 s, on an overloaded machine too, with all of this said.
#[track_caller]
fn ends(how: &str, said: &[&str]) {
    for way in WAYS {
        job_ends(way.of(worker("batch-norm")), how, said);
    }
}

#[track_caller]
fn job_ends(job: Job, how: &str, said: &[&str]) {
    let job = job.arg("differ").arg(how).ranks(2);
    let outcome = job.limit(Duration::from_secs(150)).run().failure();
    for rank in &outcome.ranks {
        assert!(rank.took < Duration::from_secs(120), "{}", outcome.tails());
        let left = rank.status.and_then(|status| status.code()) != Some(3);
        for text in said.iter().filter(|_| left) {
            assert!(rank.stderr.contains(text), "`{text}` is not said\n{}", outcome.tails());
        }
    }
}

const SAME_MODE: &str = "run each of its forwards on all ranks in the same mode";

#[test]
fn p01_an_extra_forward_in_training_mode_is_named() {
    // It meets the other rank's next forward; then the ranks are apart.
    let facts = "rank 0 is in backward number 2, rank 1 is in the forward of a synchronised BatchNorm after 1 backwards";
    ends("extra-forward", &[facts, SAME_MODE]);
}

#[test]
fn p01_a_rank_in_evaluation_mode_is_named() {
    let facts = "rank 0 is in the forward of a synchronised BatchNorm after 1 backwards, rank 1 is in backward number 2";
    ends("evaluation", &[facts, SAME_MODE]);
}

#[test]
fn layers_in_another_order_are_named() {
    let facts = ["rank 0 trains `first` (3 channels) on ", ", rank 1 `second` (3 channels) on "];
    ends("order", &[facts[0], facts[1], "in the same order on all ranks"]);
}

#[test]
fn a_rank_on_another_device_is_named() {
    let facts = "rank 0 trains `first` (3 channels) on the CPU, rank 1 `first` (3 channels) on a GPU, computed in Double";
    let job = worker("batch-norm").env_of(1, VARIABLE, "1");
    job_ends(job, "nothing", &[facts, "on devices of one kind"]);
}

#[test]
fn p01_a_loss_that_depends_on_other_layers_is_named_before_a_gradient_is_reduced() {
    ends("loss", &["rank 0 passes 2 synchronised BatchNorm layers, that of rank 1 1"]);
}

#[test]
fn p33_weights_that_differ_before_a_synchronised_layer_are_refused() {
    ends("unequal", &["`late` differs between the ranks in a backward"]);
}

#[test]
fn p02_a_rank_that_leaves_is_named() {
    let facts = "rank 0 is in the forward of a synchronised BatchNorm after 1 backwards, rank 1 is leaving after 1";
    ends("leaves", &[facts, "the same number of steps"]);
}

#[test]
fn p01_training_inside_main_only_is_an_error_at_once() {
    ends("alone", &["inside a section that only one rank runs"]);
}

#[test]
fn training_on_another_thread_is_refused() {
    ends("thread", &["`first` (3 channels), which is synchronised, runs on a thread of its own"]);
}

#[test]
fn one_value_over_all_ranks_is_refused() {
    ends("one-value", &["`first` (3 channels) got 1 value per channel"]);
}

#[test]
fn second_derivatives_are_refused() {
    ends("second-derivative", &["second derivatives through a synchronised batch_norm"]);
}

#[test]
fn a_dead_rank_is_noticed_in_a_forward() {
    ends("dead", &["synchronised BatchNorm after 1 backwards"]);
}
