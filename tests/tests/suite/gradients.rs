//! Over each transport, gradients on several ranks equal those of one process on the joined batch.
use crate::worker;

fn check(model: &str, kind: &str) {
    over_both(&[model, kind], &[2, 3, 4]);
}

fn over_both(args: &[&str], ranks: &[usize]) {
    let model = args[0];
    for &ranks in ranks {
        for backend in ["gloo", "shm"] {
            let job = args.iter().fold(worker("gradients"), |job, arg| job.arg(*arg));
            let job = job.env("DDP_BACKEND", backend);
            let outcome = job.ranks(ranks).run().success();
            let line = format!("{model} accumulated:");
            for rank in &outcome.ranks {
                assert!(rank.stdout.contains(&line), "{backend}: {}", outcome.tails());
            }
        }
    }
}

#[test]
fn without_a_size_all_ranks_choose_the_same_and_gradients_are_right() {
    over_both(&["wide", "f64", "chosen"], &[2, 3]);
}

macro_rules! models {
    ($($name:ident: $model:literal $kind:literal;)*) => {$(
        #[test]
        fn $name() {
            check($model, $kind);
        }
    )*};
}
models! {
    mlp_f32: "mlp" "f32";
    mlp_f64: "mlp" "f64";
    conv_f32: "conv" "f32";
    conv_f64: "conv" "f64";
    lstm_f32: "lstm" "f32";
    lstm_f64: "lstm" "f64";
    transformer_f32: "transformer" "f32";
    transformer_f64: "transformer" "f64";
}
