//! Output: print macros, `dbg!`, and the log macros.

use super::emit::{Runtime, absolute, at, invoke, path_span};
use crate::macros::{self, Values};
use crate::recognise;
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::{Expr, Macro, Stmt, Token, parse_quote_spanned};

/// What became of a macro.
pub(crate) enum Output {
    /// An expression of the same value.
    Value(Expr),
    /// A condition around the macro, which needs no semicolon.
    Guarded(Expr),
}

/// Rewrites a macro that prints or logs, after its arguments; `texts` are those as they were written.
///
/// Input: `println!("{x}")` Output: `::ddp_runtime::__private::println(::core::format_args!("{x}"))`
///
/// Input: `dbg!(x)` Output: `::ddp_runtime::__private::dbg(site!(), ::core::stringify!(x), x)`
///
/// Input: `log::info!("{x}")` Output: `if ::ddp_runtime::__private::logs(Level::Info) { log::info!("{x}") }`
pub(crate) fn rewrite(texts: &Values, expr: &mut Expr, runtime: &Runtime) -> Option<Output> {
    let mac = macros::invoked(expr)?;
    if recognise::is_dbg(mac) {
        let span = path_span(&mac.path);
        return macros::values(expr).map(|values| Output::Value(dbg(texts, values, span, runtime)));
    }
    let level = recognise::log_level(expr, mac);
    macros::close(expr);
    let mac = macros::invoked(expr)?;
    if let Some(printer) = recognise::printer(mac) {
        return Some(Output::Value(print(printer, mac, runtime)));
    }
    let span = path_span(&mac.path);
    let level = runtime.item(&["Level", level?], span);
    let condition = runtime.call(&["logs"], span, [level]);
    Some(Output::Guarded(parse_quote_spanned!(at(span)=> if #condition { #mac; })))
}

/// A macro in braces is a statement without a semicolon, and the call that takes its place is none.
pub(crate) fn end_statement(stmt: &mut Stmt) {
    let (mac, semi) = match stmt {
        Stmt::Macro(stmt) => (Some(&stmt.mac), &mut stmt.semi_token),
        Stmt::Expr(expr, semi) => (macros::invoked(expr), semi),
        _ => return,
    };
    if let Some(mac) = mac.filter(|mac| recognise::printer(mac).is_some() || recognise::is_dbg(mac))
    {
        semi.get_or_insert_with(|| Token![;](at(path_span(&mac.path))));
    }
}

fn print(printer: &str, mac: &Macro, runtime: &Runtime) -> Expr {
    let span = path_span(&mac.path);
    let tokens = match &mac.tokens {
        tokens if tokens.is_empty() => quote_spanned!(at(span)=> ""),
        tokens => tokens.clone(),
    };
    runtime.call(&[printer], span, [core("format_args", span, tokens)])
}

/// `::core::name!(tokens)`
fn core(name: &str, span: Span, tokens: TokenStream) -> Expr {
    invoke(absolute(&["core", name], at(span)), at(span), tokens)
}

/// `dbg!` of one value is that value, of several a tuple of them, of none the place alone.
fn dbg(texts: &Values, values: &Values, span: Span, runtime: &Runtime) -> Expr {
    let mut calls =
        texts.iter().zip(values).map(|(text, value)| dbg_one(text, value, span, runtime));
    match (values.len(), calls.next()) {
        (1, Some(call)) => call,
        (_, Some(first)) => parse_quote_spanned!(at(span)=> (#first #(, #calls)*)),
        (_, None) => {
            let site = runtime.site(span);
            let text = core("format_args", span, quote_spanned!(at(span)=> "[{}]", #site));
            runtime.call(&["eprintln"], span, [text])
        }
    }
}

fn dbg_one(text: &Expr, value: &Expr, span: Span, runtime: &Runtime) -> Expr {
    let text = core("stringify", span, text.to_token_stream());
    runtime.call(&["dbg"], span, [runtime.site(span), text, value.clone()])
}
