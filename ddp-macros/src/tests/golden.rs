//! Golden tests: each `golden/NAME.rs` holds items of the user, `golden/NAME.expanded.rs` what they become.
//!
//! `DDP_BLESS=1 cargo test -p ddp-macros golden` writes the second from the first.

use crate::expand::expand;
use proc_macro2::TokenStream;
use quote::ToTokens;
use std::fs;
use std::path::{Path, PathBuf};
use syn::{Attribute, ImplItem, Item, Meta, TraitItem};

/// The folder of the cases.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/golden")
}

/// Expands the attribute wherever it stands in the file.
pub(super) fn expand_file(source: &str) -> TokenStream {
    let file = syn::parse_file(source).expect("the case parses");
    file.items.into_iter().map(expand_item).collect()
}

fn expand_item(item: Item) -> TokenStream {
    match item {
        Item::Fn(mut item) => match take(&mut item.attrs) {
            Some(args) => expand(args, item.into_token_stream()),
            None => item.into_token_stream(),
        },
        Item::Impl(mut item) => {
            for inner in &mut item.items {
                if let ImplItem::Fn(method) = inner
                    && let Some(args) = take(&mut method.attrs)
                {
                    *inner = ImplItem::Verbatim(expand(args, method.to_token_stream()));
                }
            }
            item.into_token_stream()
        }
        Item::Trait(mut item) => {
            for inner in &mut item.items {
                if let TraitItem::Fn(method) = inner
                    && let Some(args) = take(&mut method.attrs)
                {
                    *inner = TraitItem::Verbatim(expand(args, method.to_token_stream()));
                }
            }
            item.into_token_stream()
        }
        other => other.into_token_stream(),
    }
}

/// The arguments of the attribute, which is taken away.
fn take(attrs: &mut Vec<Attribute>) -> Option<TokenStream> {
    let place = attrs.iter().position(|attr| attr.path().is_ident("distributed"))?;
    match attrs.remove(place).meta {
        Meta::List(list) => Some(list.tokens),
        _ => Some(TokenStream::new()),
    }
}

/// The expansion as text, which must parse as Rust.
pub(super) fn pretty(tokens: TokenStream) -> String {
    let text = tokens.to_string();
    match syn::parse2(tokens) {
        Ok(file) => prettyplease::unparse(&file),
        Err(error) => panic!("the expansion does not parse: {error}\n{text}"),
    }
}

#[test]
fn expansions_are_as_they_were_blessed() {
    let mut cases: Vec<PathBuf> = fs::read_dir(folder())
        .expect("the folder of the cases")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            path.file_name().is_some_and(|name| !name.to_string_lossy().contains(".expanded."))
        })
        .collect();
    cases.sort();
    assert!(!cases.is_empty(), "no cases in {}", folder().display());
    let mut wrong = Vec::new();
    for case in cases {
        let source = fs::read_to_string(&case).expect("the case");
        let got = pretty(expand_file(&source));
        assert!(!got.contains("compile_error"), "{}: refused\n{got}", case.display());
        let golden = case.with_extension("expanded.rs");
        if std::env::var_os("DDP_BLESS").is_some() {
            fs::write(&golden, &got).expect("the golden file is written");
        } else if fs::read_to_string(&golden).unwrap_or_default() != got {
            wrong.push(format!("{}\n{got}", golden.display()));
        }
    }
    assert!(wrong.is_empty(), "expansion changed (DDP_BLESS=1 accepts it):\n{}", wrong.join("\n"));
}
