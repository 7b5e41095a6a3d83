//! Expressions inside the tokens of well-known macros: `vec![..]`, `assert!(..)`, the formatting family.
//!
//! Only macros whose arguments are expressions are opened; the tokens of all others are left as they are.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Expr, Macro, Path, Token};

/// Macros that take a list of expressions (`name = value` reads as an assignment, which is one as well).
const OF_EXPRESSIONS: [&str; 37] = [
    "anyhow",
    "assert",
    "assert_eq",
    "assert_ne",
    "bail",
    "dbg",
    "debug",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "ensure",
    "eprint",
    "eprintln",
    "error",
    "format",
    "format_args",
    "info",
    "izip",
    "log",
    "panic",
    "print",
    "println",
    "todo",
    "tqdm",
    "trace",
    "unimplemented",
    "unreachable",
    "vec",
    "warn",
    "write",
    "writeln",
    "eyre",
    "chain",
    "max",
    "min",
    "try_join",
    "zip",
];

/// The last name of a macro's path.
pub(crate) fn name(path: &Path) -> String {
    path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
}

/// Whether the macro is one of `names`, bare or behind a path that begins with one of `roots`.
pub(crate) fn is_one_of(path: &Path, names: &[&str], roots: &[&str]) -> bool {
    names.contains(&name(path).as_str())
        && match path.segments.first() {
            Some(first) if path.segments.len() == 2 => roots.iter().any(|root| first.ident == root),
            Some(_) => path.segments.len() == 1,
            None => false,
        }
}

/// The expressions among a macro's arguments, or `None` where they cannot be told.
pub(crate) fn open(mac: &Macro) -> Option<Vec<Expr>> {
    arguments(mac).map(|arguments| match arguments {
        Arguments::List(list) => list.into_iter().collect(),
        Arguments::Repeat(element, _, count) => vec![*element, *count],
    })
}

/// Changes the expressions among a macro's arguments in place, where they can be told.
pub(crate) fn open_mut(mac: &mut Macro, mut change: impl FnMut(&mut Expr)) {
    if is_plain(&mac.tokens) {
        return;
    }
    match arguments(mac) {
        Some(Arguments::List(mut list)) => {
            list.iter_mut().for_each(&mut change);
            mac.tokens = list.into_token_stream();
        }
        Some(Arguments::Repeat(mut element, semi, mut count)) => {
            change(&mut element);
            change(&mut count);
            mac.tokens =
                [element.to_token_stream(), semi.to_token_stream(), count.to_token_stream()]
                    .into_iter()
                    .collect();
        }
        None => {}
    }
}

/// Whether the tokens are literals and variables only, so that they hold nothing to look at or to change.
pub(crate) fn is_plain(tokens: &TokenStream) -> bool {
    tokens.clone().into_iter().all(|token| match token {
        TokenTree::Literal(_) => true,
        TokenTree::Punct(punct) => matches!(punct.as_char(), ',' | '=' | '.'),
        TokenTree::Ident(word) => {
            let word = word.to_string();
            word != "return" && !word.ends_with("_CUDA")
        }
        TokenTree::Group(_) => false,
    })
}

enum Arguments {
    List(Punctuated<Expr, Token![,]>),
    Repeat(Box<Expr>, Token![;], Box<Expr>),
}

fn arguments(mac: &Macro) -> Option<Arguments> {
    let name = name(&mac.path);
    if !OF_EXPRESSIONS.contains(&name.as_str()) {
        return None;
    }
    let tokens = mac.tokens.clone();
    let repeat = |input: ParseStream<'_>| {
        Ok(Arguments::Repeat(input.parse()?, input.parse()?, input.parse()?))
    };
    let list = Punctuated::parse_terminated.parse2(tokens.clone()).map(Arguments::List).ok();
    list.or_else(|| (name == "vec").then(|| repeat.parse2(tokens).ok()).flatten())
}

/// Whether the tokens hold `.name` for a name that `wanted` accepts, at any depth.
pub(crate) fn calls_method(tokens: TokenStream, wanted: &dyn Fn(&str) -> bool) -> bool {
    let mut after_dot = false;
    for token in tokens {
        match token {
            TokenTree::Group(group) if calls_method(group.stream(), wanted) => return true,
            TokenTree::Ident(ident) if after_dot && wanted(&ident.to_string()) => return true,
            TokenTree::Punct(punct) if punct.as_char() == '.' => {
                after_dot = true;
                continue;
            }
            _ => {}
        }
        after_dot = false;
    }
    false
}

/// The tokens without any `#[ddp(..)]`, at any depth, also inside macros.
pub(crate) fn without_marks(tokens: TokenStream) -> TokenStream {
    take_marks(&tokens).unwrap_or(tokens)
}

/// As `without_marks`, or `None` where there is no mark, so that groups without one keep all their spans.
fn take_marks(tokens: &TokenStream) -> Option<TokenStream> {
    let mut kept: Vec<TokenTree> = Vec::new();
    let mut taken = false;
    for token in tokens.clone() {
        match token {
            TokenTree::Group(group) if is_mark(&kept, &group) => {
                kept.pop();
                taken = true;
            }
            TokenTree::Group(group) => match take_marks(&group.stream()) {
                Some(rest) => {
                    let mut inner = Group::new(group.delimiter(), rest);
                    inner.set_span(group.span());
                    kept.push(TokenTree::Group(inner));
                    taken = true;
                }
                None => kept.push(TokenTree::Group(group)),
            },
            other => kept.push(other),
        }
    }
    taken.then(|| kept.into_iter().collect())
}

fn is_mark(before: &[TokenTree], group: &Group) -> bool {
    let hash = matches!(before.last(), Some(TokenTree::Punct(punct)) if punct.as_char() == '#');
    if !hash || group.delimiter() != Delimiter::Bracket {
        return false;
    }
    let mut tokens = group.stream().into_iter();
    match (tokens.next(), tokens.next()) {
        (Some(TokenTree::Ident(word)), _) if word == "ddp" => true,
        (Some(TokenTree::Ident(word)), Some(TokenTree::Group(parts))) if word == "cfg_attr" => {
            let is_ddp = |token| matches!(token, TokenTree::Ident(word) if word == "ddp");
            parts.stream().into_iter().any(is_ddp)
        }
        _ => false,
    }
}
