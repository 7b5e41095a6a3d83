//! Expressions inside the tokens of well-known macros: `vec![..]`, `assert!(..)`, the formatting family.
//!
//! Only macros whose arguments are expressions are opened; the tokens of all others are left as they are. An opened
//! macro `name!(a, b)` stands in the tree as a call, `name!()(a, b)`, so that every visitor comes to the arguments by
//! itself and they are parsed only once. The last stage closes it again.

use crate::marks;
use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Expr, ExprCall, ExprMacro, Macro, Pat, Path, Result, StmtMacro, Token, token,
};

/// Macros whose arguments are texts and the values to put into them. Where those are no more than names, there is
/// nothing in them to look at or to change.
const OF_TEXT: [&str; 24] = [
    "anyhow",
    "bail",
    "debug",
    "ensure",
    "eprint",
    "eprintln",
    "error",
    "event",
    "eyre",
    "format",
    "format_args",
    "info",
    "log",
    "panic",
    "print",
    "println",
    "todo",
    "trace",
    "unimplemented",
    "unreachable",
    "warn",
    "write",
    "writeln",
    "tracing",
];

/// Other macros that take a list of expressions (`name = value` reads as an assignment, which is one as well).
const OF_VALUES: [&str; 16] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "chain",
    "dbg",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "izip",
    "matches",
    "max",
    "min",
    "tqdm",
    "try_join",
    "vec",
    "zip",
];

/// The attribute of an opened macro.
const OPEN: &str = "__ddp_open";

/// The attribute of a macro that the body defines itself, whatever its name.
pub(crate) const OWN: &str = "__ddp_own";

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

/// The macro that an expression invokes, whether it is open or not; none that the body defines itself.
pub(crate) fn invoked(expr: &Expr) -> Option<&Macro> {
    match expr {
        Expr::Macro(inner) if !has(&inner.attrs, OWN) => Some(&inner.mac),
        Expr::Call(call) => opened(call),
        _ => None,
    }
}

/// The macro whose arguments a call holds, if it stands for an opened one.
pub(crate) fn opened(call: &ExprCall) -> Option<&Macro> {
    match &*call.func {
        Expr::Macro(inner) if has(&inner.attrs, OPEN) => Some(&inner.mac),
        _ => None,
    }
}

/// The values of a macro, in their order.
pub(crate) type Values = Punctuated<Expr, Token![,]>;

/// The values that an opened macro is given.
pub(crate) fn values(expr: &Expr) -> Option<&Values> {
    match expr {
        Expr::Call(call) if opened(call).is_some() => Some(&call.args),
        _ => None,
    }
}

fn has(attrs: &[Attribute], tag: &str) -> bool {
    attrs.iter().any(|attr| attr.path().is_ident(tag))
}

/// Opens the expression, if it is a macro whose arguments can be told; those of the names `own` are the body's.
pub(crate) fn open(expr: &mut Expr, own: &[String]) {
    if let Expr::Macro(ExprMacro { attrs, mac }) = expr
        && !has(attrs, OPEN)
        && let Some(opened) = opened_form(attrs, mac, own)
    {
        *expr = opened;
    }
}

/// As `open`, for a macro that is a statement.
pub(crate) fn open_statement(stmt: &mut StmtMacro, own: &[String]) -> Option<Expr> {
    opened_form(&mut stmt.attrs, &stmt.mac, own)
}

fn opened_form(attrs: &mut Vec<Attribute>, mac: &Macro, own: &[String]) -> Option<Expr> {
    if mac.path.get_ident().is_some_and(|name| own.iter().any(|own| name == own)) {
        attrs.push(marks::tag(OWN));
        return None;
    }
    let arguments = arguments(mac)?;
    Some(Expr::Call(call(std::mem::take(attrs), mac.clone(), arguments)))
}

/// Puts the arguments of an opened macro back into it.
pub(crate) fn close(expr: &mut Expr) {
    let Expr::Call(call) = expr else { return };
    if opened(call).is_none() {
        return;
    }
    let Expr::Macro(inner) = &mut *call.func else { return };
    let between = std::mem::take(&mut inner.mac.tokens);
    let tokens = if between.is_empty() {
        call.args.to_token_stream()
    } else {
        let mut values = call.args.iter();
        let mut tokens = values.next().to_token_stream();
        tokens.extend(between);
        values.for_each(|value| value.to_tokens(&mut tokens));
        tokens
    };
    let mac = Macro { tokens, ..inner.mac.clone() };
    *expr = Expr::Macro(ExprMacro { attrs: std::mem::take(&mut call.attrs), mac });
}

/// The call that stands for an opened macro. What stands between its values, where that is more than commas, is
/// kept as the tokens of the macro that is called.
fn call(attrs: Vec<Attribute>, mac: Macro, arguments: Arguments) -> ExprCall {
    let Arguments { values, between } = arguments;
    let mac = Macro { tokens: between, ..mac };
    ExprCall {
        attrs,
        func: Box::new(Expr::Macro(ExprMacro { attrs: vec![marks::tag(OPEN)], mac })),
        paren_token: token::Paren(Span::call_site()),
        args: values,
    }
}

/// Whether the tokens are literals and variables only, so that they hold nothing to look at or to change.
fn is_plain(tokens: &TokenStream) -> bool {
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

/// What a macro is given.
struct Arguments {
    values: Values,
    /// What stands between the first value and the second, in `vec![x; n]` and `matches!(x, pattern if y)`.
    between: TokenStream,
}

impl Arguments {
    fn list(values: Values) -> Self {
        Self { values, between: TokenStream::new() }
    }
}

/// The arguments of a macro, where they can be told and may matter.
fn arguments(mac: &Macro) -> Option<Arguments> {
    let name = name(&mac.path);
    if OF_TEXT.contains(&name.as_str()) {
        if is_plain(&mac.tokens) {
            return None;
        }
    } else if !OF_VALUES.contains(&name.as_str()) {
        return None;
    }
    let tokens = mac.tokens.clone();
    if name == "matches" {
        return matching.parse2(tokens).ok();
    }
    if let Ok(values) = Punctuated::parse_terminated.parse2(tokens.clone()) {
        return Some(Arguments::list(values));
    }
    match name.as_str() {
        "vec" => repeat.parse2(tokens).ok(),
        _ => pieces.parse2(tokens).ok().map(Arguments::list),
    }
}

/// `value; count`
fn repeat(input: ParseStream<'_>) -> Result<Arguments> {
    let mut values = Punctuated::new();
    values.push(input.parse()?);
    let between = input.parse::<Token![;]>()?.into_token_stream();
    values.push(input.parse()?);
    Ok(Arguments { values, between })
}

/// `value, pattern` or `value, pattern if condition`
fn matching(input: ParseStream<'_>) -> Result<Arguments> {
    let mut values = Punctuated::new();
    values.push(input.parse()?);
    let mut between = input.parse::<Token![,]>()?.into_token_stream();
    Pat::parse_multi_with_leading_vert(input)?.to_tokens(&mut between);
    if let Some(condition) = input.parse::<Option<Token![if]>>()? {
        condition.to_tokens(&mut between);
        values.push(input.parse()?);
    }
    input.parse::<Option<Token![,]>>()?;
    Ok(Arguments { values, between })
}

/// A list in which not all is an expression, as `target: "net"` and `%loss` in log macros: what is none stays tokens.
fn pieces(input: ParseStream<'_>) -> Result<Values> {
    let mut values = Punctuated::new();
    let ends = |input: ParseStream<'_>| input.is_empty() || input.peek(Token![,]);
    while !input.is_empty() {
        let ahead = input.fork();
        match ahead.parse::<Expr>() {
            Ok(value) if ends(&ahead) => {
                syn::parse::discouraged::Speculative::advance_to(input, &ahead);
                values.push_value(value);
            }
            _ => {
                let mut tokens = TokenStream::new();
                while !ends(input) {
                    input.parse::<TokenTree>()?.to_tokens(&mut tokens);
                }
                values.push_value(Expr::Verbatim(tokens));
            }
        }
        if input.is_empty() {
            break;
        }
        values.push_punct(input.parse()?);
    }
    Ok(values)
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
