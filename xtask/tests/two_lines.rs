//! The promise of the examples: the distributed program is the single one plus two lines.

const SINGLE: &str = include_str!("../../examples/01-single/main.rs");
const DISTRIBUTED: &str = include_str!("../../examples/02-distributed/main.rs");
const ADDED: [&str; 2] = ["use ddp_runtime::distributed;", "#[distributed]"];

#[test]
fn the_distributed_example_is_the_single_one_plus_two_lines() {
    let mut single = SINGLE.lines().peekable();
    let mut added = Vec::new();
    for line in DISTRIBUTED.lines() {
        if single.next_if_eq(&line).is_none() {
            added.push(line);
        }
    }
    assert_eq!(single.next(), None, "this line of 01-single is not in 02-distributed");
    assert_eq!(added, ADDED);
}

#[test]
fn the_attribute_stands_on_the_function_that_trains() {
    assert!(DISTRIBUTED.contains("#[distributed]\nfn train("));
}
