//! The ways out: the function's value goes through the scope, so that it can tell a return from an abandonment.

use super::diverge::{diverges, diverges_stmt, is_block_like, may_diverge, may_diverge_stmt};
use super::emit::{at, first_span, in_parens, method, name, reference, with_attrs};
use crate::{macros, marks, recognise};
use proc_macro2::{Ident, Span};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, Block, Expr, ExprAsync, ExprClosure, ExprMacro, ExprReturn, ExprTuple, Item, Macro,
    ReturnType, Stmt, Token, Type, parse_quote_spanned,
};

/// The name of the scope in the body.
pub(crate) const SCOPE: &str = "__ddp_scope";

/// Sends every value that leaves the function through the scope. A result is looked at there: with an error the scope is
/// not left but given up, as by `?`.
///
/// Input: `if done { return Ok(1); } Ok(2)`
///
/// Output: `if done { return __ddp_scope.leave_result(Ok(1)); } __ddp_scope.leave_result(Ok(2))`
///
/// Where the name of the type does not say whether it is a result, its type decides:
/// `(&&__ddp_scope.returning::<Outcome>()).leave_by_type(Ok(2))`.
///
/// `returns` says whether there may be a `return`. The answer is whether some exit is decided by its type.
pub(crate) fn rewrite(output: &ReturnType, body: &mut Block, returns: bool) -> bool {
    if returns_never(output) {
        return false;
    }
    let exit = Exit::of(output);
    if returns {
        Returns(exit).visit_block_mut(body);
    }
    match returns_unit(output) {
        true => leave_unit(exit, body),
        false => leave_value(exit, body),
    }
    matches!(exit, Exit::ByType(_))
}

/// How values go through the scope.
#[derive(Clone, Copy)]
enum Exit<'a> {
    /// The type is written as a `Result`, whosoever: std's, anyhow's, an alias of that name.
    Result,
    /// The type is no result.
    Value,
    /// The type may be an alias of one.
    ByType(&'a Type),
}

/// Types that are no results.
const VALUES: [&str; 28] = [
    "bool", "char", "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32",
    "u64", "u128", "usize", "Arc", "Box", "BTreeMap", "ExitCode", "HashMap", "Option", "Rc",
    "Self", "String", "Tensor", "VarStore", "Vec",
];

impl<'a> Exit<'a> {
    fn of(output: &'a ReturnType) -> Self {
        let ReturnType::Type(_, ty) = output else { return Exit::Value };
        let Type::Path(path) = &**ty else { return Exit::Value };
        let last = path.path.segments.last().map(|last| last.ident.to_string());
        match last.as_deref() {
            Some("Result") => Exit::Result,
            Some(name) if !VALUES.contains(&name) && !Opaque::is_in(ty) => Exit::ByType(ty),
            _ => Exit::Value,
        }
    }
}

/// Types that cannot be written in a body: `impl Trait`, and those of a macro.
struct Opaque(bool);

impl Opaque {
    fn is_in(ty: &Type) -> bool {
        let mut opaque = Self(false);
        opaque.visit_type(ty);
        opaque.0
    }
}

impl Visit<'_> for Opaque {
    fn visit_type(&mut self, ty: &Type) {
        self.0 |= matches!(ty, Type::ImplTrait(_) | Type::Macro(_));
        visit::visit_type(self, ty);
    }
}

fn returns_never(output: &ReturnType) -> bool {
    matches!(output, ReturnType::Type(_, ty) if matches!(**ty, Type::Never(_)))
}

fn returns_unit(output: &ReturnType) -> bool {
    match output {
        ReturnType::Default => true,
        ReturnType::Type(_, ty) => matches!(&**ty, Type::Tuple(tuple) if tuple.elems.is_empty()),
    }
}

/// `__ddp_scope.leave(value)`, with the attributes of the value on the outside.
fn leave(exit: Exit<'_>, mut value: Expr) -> Expr {
    let span = at(first_span(&value));
    let attrs = outer_attrs(&mut value);
    let scope = name(&Ident::new(SCOPE, span));
    let left = match exit {
        Exit::Result => method(scope, "leave_result", span, [value]),
        Exit::Value => method(scope, "leave", span, [value]),
        Exit::ByType(ty) => {
            let returning = parse_quote_spanned!(span=> #scope.returning::<#ty>());
            let seen = in_parens(reference(reference(returning, span), span), span);
            method(seen, "leave_by_type", span, [value])
        }
    };
    with_attrs(attrs, left)
}

/// As `leave`, for a value at the end of the body, which may turn out to be of type `!`.
fn leave_end(exit: Exit<'_>, value: Expr) -> Expr {
    let quiet = may_diverge(&value);
    let value = leave(exit, value);
    if quiet { unreachable_allowed(value) } else { value }
}

/// A call of the user may diverge, which is his right; that the scope's call behind it is unreachable then is
/// nothing to warn about.
fn unreachable_allowed(mut value: Expr) -> Expr {
    let span = at(first_span(&value));
    if let Some(attrs) = marks::leftmost_attrs_mut(&mut value) {
        attrs.push(parse_quote_spanned!(span=> #[allow(unreachable_code)]));
    }
    value
}

/// Takes the attributes of a value that stand outside of what is put around it.
fn outer_attrs(value: &mut Expr) -> Vec<Attribute> {
    match marks::leftmost_attrs_mut(value) {
        Some(attrs) => attrs.extract_if(.., |attr| !marks::stays(attr)).collect(),
        None => Vec::new(),
    }
}

fn unit(span: Span) -> Expr {
    Expr::Tuple(ExprTuple {
        attrs: Vec::new(),
        paren_token: syn::token::Paren(span),
        elems: Punctuated::new(),
    })
}

/// A function without a value: what stands at the end stays a statement, and the scope gets a unit.
fn leave_unit(exit: Exit<'_>, body: &mut Block) {
    let end = at(body.brace_token.span.close());
    match body.stmts.last_mut() {
        Some(stmt) if diverges_stmt(stmt) => return,
        Some(Stmt::Expr(value, semi @ None))
            if macros::invoked(value).is_some_and(has_unit_value) =>
        {
            *semi = Some(Token![;](end));
        }
        Some(Stmt::Expr(value, None)) if !is_block_like(value) => {
            let taken = std::mem::replace(value, Expr::Verbatim(Default::default()));
            *value = leave_end(exit, taken);
            return;
        }
        _ => {}
    }
    let quiet = body.stmts.last().is_some_and(may_diverge_stmt);
    let value = leave(exit, unit(end));
    body.stmts.push(Stmt::Expr(if quiet { unreachable_allowed(value) } else { value }, None));
}

/// A function with a value: the expression at the end, or each of those that a `cfg` chooses from.
fn leave_value(exit: Exit<'_>, body: &mut Block) {
    let mut last = true;
    for stmt in body.stmts.iter_mut().rev() {
        if let Stmt::Macro(mac) = stmt
            && mac.semi_token.is_none()
        {
            let attrs = std::mem::take(&mut mac.attrs);
            *stmt = Stmt::Expr(Expr::Macro(ExprMacro { attrs, mac: mac.mac.clone() }), None);
        }
        let Stmt::Expr(value, None) = stmt else { return };
        let chosen = marks::leftmost_attrs(value).is_some_and(is_chosen);
        if !last && !chosen {
            return;
        }
        if !diverges(value) {
            let taken = std::mem::replace(value, Expr::Verbatim(Default::default()));
            *value = if last { leave_end(exit, taken) } else { in_block(leave_end(exit, taken)) };
        }
        if !chosen {
            return;
        }
        last = false;
    }
}

fn is_chosen(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| attr.path().is_ident("cfg"))
}

/// `#[cfg(..)] { value }`, as only a block can stand before another statement without a semicolon.
fn in_block(mut value: Expr) -> Expr {
    let span = at(first_span(&value));
    let attrs = outer_attrs(&mut value);
    Expr::Block(syn::ExprBlock {
        attrs,
        label: None,
        block: Block { brace_token: syn::token::Brace(span), stmts: vec![Stmt::Expr(value, None)] },
    })
}

/// Every `return` of the function itself; those of closures, async blocks and nested items are theirs.
struct Returns<'a>(Exit<'a>);

impl VisitMut for Returns<'_> {
    fn visit_expr_return_mut(&mut self, expr: &mut ExprReturn) {
        visit_mut::visit_expr_return_mut(self, expr);
        let value =
            expr.expr.take().map_or_else(|| unit(at(expr.return_token.span)), |value| *value);
        let value = if diverges(&value) { value } else { leave(self.0, value) };
        expr.expr = Some(Box::new(value));
    }

    fn visit_expr_closure_mut(&mut self, _: &mut ExprClosure) {}
    fn visit_expr_async_mut(&mut self, _: &mut ExprAsync) {}
    fn visit_attribute_mut(&mut self, _: &mut Attribute) {}
    fn visit_item_mut(&mut self, _: &mut Item) {}
    crate::walk::expressions_only_mut!();
}

fn has_unit_value(mac: &Macro) -> bool {
    let asserts =
        ["assert", "assert_eq", "assert_ne", "debug_assert", "debug_assert_eq", "debug_assert_ne"];
    recognise::printer(mac).is_some() || macros::is_one_of(&mac.path, &asserts, &["std", "core"])
}
