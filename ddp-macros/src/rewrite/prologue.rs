//! What stands before the user's first statement.

use super::emit::{Runtime, at, method};
use super::leave::SCOPE;
use crate::options::{Options, Setting, Value};
use crate::plan::{Register, StoreForm};
use proc_macro2::{Ident, Span};
use syn::{Expr, ExprLit, Lit, LitStr, Stmt, parse_quote_spanned};

/// The statements at the start of the body.
///
/// Output:
/// ```text
/// let __ddp_scope = ::ddp_runtime::__private::enter(
///     ::ddp_runtime::__private::Options::new("train").seed(7));
/// #[allow(unused_imports)]
/// use ::ddp_runtime::__private::by_type::*;
/// ::ddp_runtime::__private::register(vs);
/// ```
pub(crate) fn statements(
    function: &Ident,
    options: &Options,
    registers: &[Register],
    by_type: bool,
    runtime: &Runtime,
) -> Vec<Stmt> {
    let mut stmts = vec![enter(function, options, runtime)];
    stmts.extend(by_type.then(|| traits(runtime)));
    stmts.extend(registers.iter().map(|store| register(store, runtime)));
    stmts
}

fn enter(function: &Ident, options: &Options, runtime: &Runtime) -> Stmt {
    let span = function.span();
    let name = function.to_string();
    let text = LitStr::new(name.trim_start_matches("r#"), at(span));
    let new = runtime.call(&["Options", "new"], span, [literal(Lit::Str(text))]);
    let options = options.settings.iter().fold(new, |options, one| setting(options, one, runtime));
    let enter = runtime.call(&["enter"], span, [options]);
    let scope = Ident::new(SCOPE, at(span));
    parse_quote_spanned!(at(span)=> let #scope = #enter;)
}

fn setting(options: Expr, setting: &Setting, runtime: &Runtime) -> Expr {
    let span = at(setting.span);
    let value = match &setting.value {
        Value::Text(text) => literal(Lit::Str(text.clone())),
        Value::Whole(number) => literal(Lit::Int(number.clone())),
        Value::Number(number) => literal(Lit::Float(number.clone())),
        Value::Switch(on) => literal(Lit::Bool(on.clone())),
        Value::Batch(variant) => runtime.item(&["Batch", variant], setting.span),
    };
    method(options, setting.method, span, [value])
}

fn literal(lit: Lit) -> Expr {
    Expr::Lit(ExprLit { attrs: Vec::new(), lit })
}

/// The traits by whose methods a type decides what becomes of a call.
fn traits(runtime: &Runtime) -> Stmt {
    let path = runtime.module();
    parse_quote_spanned! {Span::mixed_site()=>
        #[allow(unused_imports)]
        use #path::by_type::*;
    }
}

fn register(store: &Register, runtime: &Runtime) -> Stmt {
    let Register { name, form, attrs } = store;
    let span = at(name.span());
    let argument = match form {
        StoreForm::Shared => parse_quote_spanned!(span=> #name),
        StoreForm::Exclusive => parse_quote_spanned!(span=> &*#name),
        StoreForm::Owned => parse_quote_spanned!(span=> &#name),
    };
    let call = runtime.call(&["register"], name.span(), [argument]);
    parse_quote_spanned!(span=> #(#attrs)* #call;)
}
