//! What the attribute refuses, with the text and the place of each error.
//!
//! `TRYBUILD=overwrite cargo test -p ddp-macros --test ui` writes the expected texts anew.

#[test]
fn refusals() {
    trybuild::TestCases::new().compile_fail("tests/ui/*/*.rs");
}
