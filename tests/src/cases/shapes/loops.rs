//! The shapes s23 to s45 by name.
use anyhow::{Context, Result, bail};

use super::{by_type, devices, evaluation, exits, marked, output, saving, seeds, signatures};

type Shape = fn(&[&str]) -> Result<()>;

const SHAPES: &[(&str, Shape)] = &[
    ("s23_index_arithmetic", marked::s23_index_arithmetic),
    ("s24_own_loader", marked::s24_own_loader),
    ("s25_side_by_side", marked::s25_side_by_side),
    ("s26_stream", marked::s26_stream),
    ("s27_epoch_loops", exits::s27_epoch_loops),
    ("s27_resumed", exits::s27_resumed),
    ("s28_leaving_early", exits::s28_leaving_early),
    ("s29_errors", exits::s29_errors),
    ("s30_skipping", exits::s30_skipping),
    ("s31_cuda_in_the_body", devices::s31_cuda_in_the_body),
    ("s31_no_gpu", devices::s31_no_gpu),
    ("s32_cpu_constants", devices::s32_cpu_constants),
    ("s33_prints", output::s33_prints),
    ("s34_progress_bars", output::s34_progress_bars),
    ("s34_bars_of_iterators", by_type::s34_bars_of_iterators),
    ("s35_logs_and_files", output::s35_logs_and_files),
    ("s36_forms_of_save", saving::s36_forms_of_save),
    ("s36_behind_pointers", by_type::s36_behind_pointers),
    ("s36_folder_of_all_ranks", by_type::s36_folder_of_all_ranks),
    ("s37_keep_the_best", saving::s37_keep_the_best),
    ("s38_resume", saving::s38_resume),
    ("s38_seen_by_one", saving::s38_seen_by_one),
    ("s39_evaluation", evaluation::s39_evaluation),
    ("s40_manual_seed", seeds::s40_manual_seed),
    ("s41_rand_generators", seeds::s41_rand_generators),
    ("s42_main", signatures::s42_main),
    ("s43_methods", signatures::s43_methods),
    ("s44_results", signatures::s44_results),
    ("s44_alias_of_a_result", by_type::s44_alias_of_a_result),
    ("s44_endless", signatures::s44_endless),
];

/// Runs shapes one after the other, each written as `name` or `name:argument`.
pub(in crate::cases) fn run(args: &[String]) -> Result<()> {
    if args.is_empty() {
        bail!("expected shapes");
    }
    for arg in args {
        let (name, rest) = arg.split_once(':').unwrap_or((arg, ""));
        let rest: Vec<&str> = rest.split(':').filter(|part| !part.is_empty()).collect();
        match SHAPES.iter().find(|(known, _)| *known == name) {
            Some((_, shape)) => shape(&rest).with_context(|| arg.clone())?,
            None => bail!("no shape is called {name}"),
        }
    }
    Ok(())
}
