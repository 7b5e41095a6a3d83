//! tch's example programs, each on one, two and three ranks.
use crate::worker;

fn hold(mode: &str, programs: &[&str]) {
    for ranks in 1..=3 {
        let job = programs.iter().fold(worker("programs").arg(mode), |job, name| job.arg(name));
        let _ = job.ranks(ranks).run().success();
    }
}

macro_rules! modes {
    ($($name:ident: $mode:literal $($program:literal)*;)*) => {$(
        #[test]
        fn $name() {
            hold($mode, &[$($program),*]);
        }
    )*};
}
modes! {
    mnist_follows_one_process: "global" "mnist-linear" "mnist-nn" "mnist-conv";
    texts_follow_one_process: "global" "char-rnn" "min-gpt";
    a_vae_and_transfer_learning_follow_one_process: "global" "vae" "transfer";
    batch_norm_of_all_ranks_follows_one_process: "global" "cifar" "gan";
    mnist_and_cifar_on_batches_of_each_rank: "per-rank" "mnist-linear" "mnist-nn" "mnist-conv" "cifar";
    the_others_on_batches_of_each_rank: "per-rank" "char-rnn" "min-gpt" "vae" "gan" "transfer";
}
