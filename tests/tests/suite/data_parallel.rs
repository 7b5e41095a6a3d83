//! One process with several replicas of its model, which are on the CPU here.
use crate::worker;

macro_rules! cases {
    ($($name:ident: $case:literal;)*) => {$(
        #[test]
        fn $name() {
            let _ = worker("data-parallel").arg($case).run().success();
        }
    )*};
}
cases! {
    gradients_are_those_of_one_device_on_the_whole_batch: "gradients";
    fifty_steps_follow_one_device: "course";
    each_replica_normalises_its_own_part_and_the_first_keeps_its_statistics: "buffers";
    inputs_and_outputs_may_be_nested: "nested";
    replicas_run_at_the_same_time_in_the_mode_of_the_caller: "threads";
    two_forwards_may_precede_a_backward: "two-forwards";
    unused_and_frozen_parameters_get_no_gradient: "unused";
    replicas_draw_no_random_numbers: "random";
    a_failing_replica_is_named: "failures";
    models_that_cannot_be_replicated_are_refused: "refused";
    the_functional_form: "functional";
    a_store_that_becomes_double_takes_its_replicas_along: "kinds";
}

#[test]
fn inside_a_scope_of_several_ranks_it_is_refused() {
    let _ = worker("data-parallel").arg("scope").ranks(2).run().success();
}
