//! The shapes of real training code: each `shapes/sNN_name.rs` begins with what must become of it.
//!
//! `//! has: text` and `//! lacks: text` speak of the expansion, without blanks and without the path of the
//! runtime; `//! refused: text` lists the errors in order, where there are any.

use super::golden::{expand_file, pretty};
use proc_macro2::{TokenStream, TokenTree};
use std::fs;
use std::path::Path;

/// The messages of all `compile_error!`s, each without its help.
pub(super) fn messages(tokens: TokenStream) -> Vec<String> {
    let mut found = Vec::new();
    let mut after_error = false;
    for token in tokens {
        match token {
            TokenTree::Group(group) if after_error => {
                let text: syn::LitStr =
                    syn::parse2(group.stream()).expect("the message is a string");
                found.push(text.value().lines().next().unwrap_or_default().to_owned());
                after_error = false;
            }
            TokenTree::Group(group) => found.extend(messages(group.stream())),
            TokenTree::Ident(word) => after_error = word == "compile_error",
            _ => {}
        }
    }
    found
}

/// The text without what differs by layout alone.
fn plain(text: &str) -> String {
    let text: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
    text.replace("::ddp_runtime::__private::", "")
}

/// What is wrong with one case.
fn faults(source: &str) -> Vec<String> {
    let wanted = |key: &str| -> Vec<&str> {
        source.lines().filter_map(|line| line.strip_prefix(&format!("//! {key}: "))).collect()
    };
    let tokens = expand_file(source);
    let (refused, got) = (wanted("refused"), messages(tokens.clone()));
    if refused != got {
        return vec![format!("refused {got:#?} and not {refused:#?}")];
    }
    let text = plain(&tokens.to_string());
    let expansion = pretty(tokens);
    let missing = wanted("has").into_iter().filter(|part| !text.contains(&plain(part)));
    let present = wanted("lacks").into_iter().filter(|part| text.contains(&plain(part)));
    let missing = missing.map(|part| format!("has no `{part}`:\n{expansion}"));
    missing.chain(present.map(|part| format!("has `{part}`:\n{expansion}"))).collect()
}

#[test]
fn every_shape_becomes_what_it_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/shapes");
    let mut cases: Vec<_> = fs::read_dir(folder)
        .expect("the folder of the shapes")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    cases.sort();
    assert!(cases.len() >= 45, "only {} shapes", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let source = fs::read_to_string(&case).expect("the case");
        let says =
            ["has", "lacks", "refused"].iter().any(|key| source.contains(&format!("//! {key}: ")));
        assert!(says, "{} says nothing", case.display());
        wrong.extend(
            faults(&source).into_iter().map(|fault| format!("{}: {fault}", case.display())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_harness_finds_what_is_wrong() {
    let source = "//! has: nothing_like_it\n#[distributed] fn f() { g() }";
    assert_eq!(faults(source).len(), 1);
    let source = "//! lacks: g()\n#[distributed] fn f() { g() }";
    assert_eq!(faults(source).len(), 1);
    let source = "//! refused: another text\n#[distributed] async fn f() {}";
    assert_eq!(faults(source).len(), 1);
    let source = "//! has: g()\n#[distributed] fn f() { g() }";
    assert_eq!(faults(source), Vec::<String>::new());
}
