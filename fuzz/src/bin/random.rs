//! The same without libFuzzer, on a stable compiler: the cases of ddp-macros, cut up and put together at random.
//!
//! `cargo run --manifest-path fuzz/Cargo.toml --bin random -- SECONDS [SEED]`

use proc_macro2::{Group, TokenStream, TokenTree};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Arguments of the attribute, right and wrong.
const ARGUMENTS: [&str; 8] = [
    "",
    "explain",
    "seed = 1, batch = \"global\"",
    "crate = \"a::b\", timeout = 3",
    "bach = 1",
    "accumulate = 4, print = \"all\"",
    "loss = \"sum\", batch = \"global\"",
    "uneven =",
];

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds = args.next().and_then(|text| text.parse().ok()).unwrap_or(60);
    let seed = args.next().and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
    let corpus = corpus();
    println!("{} functions, seed {seed}", corpus.len());
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut count = 0_u64;
    while Instant::now() < end {
        let mut item = random.choice(&corpus).cloned().unwrap_or_default();
        for _ in 0..random.u8(0..6) {
            item = changed(item, &corpus, &mut random);
        }
        let text = format!("{}\n{item}", ARGUMENTS[random.usize(..ARGUMENTS.len())]);
        let run = std::panic::catch_unwind(|| ddp_fuzz::expand_text(&text));
        assert!(run.is_ok(), "seed {seed}, case {count}:\n{text}");
        count += 1;
    }
    println!("{count} cases");
}

/// Every annotated function among the cases of ddp-macros.
fn corpus() -> Vec<TokenStream> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ddp-macros");
    let folders = ["src/tests/shapes", "src/tests/golden", "tests/run"];
    let files = folders.iter().flat_map(|folder| files(&tests.join(folder)));
    files.flat_map(|file| functions(&file)).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn functions(file: &Path) -> Vec<TokenStream> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let Ok(file) = syn::parse_file(&text) else { return Vec::new() };
    let functions = file.items.into_iter().filter_map(|item| match item {
        syn::Item::Fn(mut function) => {
            function.attrs.retain(|attr| !attr.path().is_ident("distributed"));
            Some(quote::quote!(#function))
        }
        _ => None,
    });
    functions.collect()
}

/// The tokens with one change, at some depth: a token less, one twice, two in each other's place, or one of another
/// function in place of one.
fn changed(tokens: TokenStream, corpus: &[TokenStream], random: &mut fastrand::Rng) -> TokenStream {
    let mut trees: Vec<TokenTree> = tokens.into_iter().collect();
    if trees.is_empty() {
        return TokenStream::new();
    }
    let at = random.usize(..trees.len());
    if let TokenTree::Group(group) = &trees[at]
        && random.u8(..8) > 0
    {
        let inner = changed(group.stream(), corpus, random);
        trees[at] = Group::new(group.delimiter(), inner).into();
        return trees.into_iter().collect();
    }
    match random.u8(..4) {
        0 => drop(trees.remove(at)),
        1 => trees.insert(at, trees[at].clone()),
        2 => {
            let other = random.usize(..trees.len());
            trees.swap(at, other);
        }
        _ => {
            trees[at] = random
                .choice(corpus)
                .and_then(|other| any(other.clone(), random))
                .unwrap_or(trees[at].clone())
        }
    }
    trees.into_iter().collect()
}

/// Some token tree of a function.
fn any(tokens: TokenStream, random: &mut fastrand::Rng) -> Option<TokenTree> {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let tree = random.choice(&trees)?.clone();
    match &tree {
        TokenTree::Group(group) if random.bool() => any(group.stream(), random).or(Some(tree)),
        _ => Some(tree),
    }
}
