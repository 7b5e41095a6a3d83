//! The ways out: the function's value goes through the scope, so that it can tell a return from an abandonment.

use super::emit::at;
use crate::{macros, marks, recognise};
use proc_macro2::{Ident, Span};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Arm, Attribute, Block, Expr, ExprAsync, ExprClosure, ExprConst, ExprMacro, ExprMethodCall,
    ExprPath, ExprReturn, ExprTuple, Item, Macro, Pat, ReturnType, Stmt, Token, Type,
};

/// The name of the scope in the body.
pub(crate) const SCOPE: &str = "__ddp_scope";

/// Sends every value that leaves the function through the scope.
///
/// Input: `if done { return Ok(1); } Ok(2)`
///
/// Output: `if done { return __ddp_scope.leave(Ok(1)); } __ddp_scope.leave(Ok(2))`
pub(crate) fn rewrite(output: &ReturnType, body: &mut Block) {
    if returns_never(output) {
        return;
    }
    Returns.visit_block_mut(body);
    match returns_unit(output) {
        true => leave_unit(body),
        false => leave_value(body),
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
fn leave(mut value: Expr) -> Expr {
    let span = at(value.span());
    let attrs = outer_attrs(&mut value);
    Expr::MethodCall(ExprMethodCall {
        attrs,
        receiver: Box::new(Expr::Path(ExprPath {
            attrs: Vec::new(),
            qself: None,
            path: Ident::new(SCOPE, span).into(),
        })),
        dot_token: Token![.](span),
        method: Ident::new("leave", span),
        turbofish: None,
        paren_token: syn::token::Paren(span),
        args: [value].into_iter().collect(),
    })
}

/// Takes the attributes of a value that stand outside of what is put around it.
fn outer_attrs(value: &mut Expr) -> Vec<Attribute> {
    match marks::leftmost_attrs_mut(value) {
        Some(attrs) => attrs.extract_if(.., |attr| !marks::is_number(attr)).collect(),
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
fn leave_unit(body: &mut Block) {
    let end = at(body.brace_token.span.close());
    match body.stmts.last_mut() {
        Some(stmt) if diverges_stmt(stmt) => return,
        Some(Stmt::Expr(Expr::Macro(mac), semi @ None)) if has_unit_value(&mac.mac) => {
            *semi = Some(Token![;](end));
        }
        Some(Stmt::Expr(value, None)) if !is_block_like(value) => {
            let taken = std::mem::replace(value, Expr::Verbatim(Default::default()));
            *value = leave(taken);
            return;
        }
        _ => {}
    }
    body.stmts.push(Stmt::Expr(leave(unit(end)), None));
}

/// A function with a value: the expression at the end, or each of those that a `cfg` chooses from.
fn leave_value(body: &mut Block) {
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
            *value = if last { leave(taken) } else { in_block(leave(taken)) };
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
    let span = at(value.span());
    let attrs = outer_attrs(&mut value);
    Expr::Block(syn::ExprBlock {
        attrs,
        label: None,
        block: Block { brace_token: syn::token::Brace(span), stmts: vec![Stmt::Expr(value, None)] },
    })
}

/// Expressions that end a statement without a semicolon.
fn is_block_like(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::Block(_)
            | Expr::ForLoop(_)
            | Expr::If(_)
            | Expr::Loop(_)
            | Expr::Match(_)
            | Expr::Unsafe(_)
            | Expr::While(_)
    )
}

fn has_unit_value(mac: &Macro) -> bool {
    let asserts =
        ["assert", "assert_eq", "assert_ne", "debug_assert", "debug_assert_eq", "debug_assert_ne"];
    recognise::printer(mac).is_some() || macros::is_one_of(&mac.path, &asserts, &["std", "core"])
}

/// Whether control never comes out of the end of the expression, as far as the tokens tell.
fn diverges(expr: &Expr) -> bool {
    match expr {
        Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => true,
        Expr::Paren(inner) => diverges(&inner.expr),
        Expr::Block(inner) => inner.label.is_none() && diverges_block(&inner.block),
        Expr::Unsafe(inner) => diverges_block(&inner.block),
        Expr::Loop(inner) => !breaks_out(inner),
        Expr::If(inner) => {
            let otherwise = inner.else_branch.as_ref().is_some_and(|(_, branch)| diverges(branch));
            diverges_block(&inner.then_branch) && otherwise
        }
        Expr::Match(inner) => {
            diverges(&inner.expr)
                || !inner.arms.is_empty() && inner.arms.iter().all(|arm: &Arm| diverges(&arm.body))
        }
        Expr::Macro(inner) => diverges_macro(&inner.mac),
        Expr::Call(call) => recognise::callee(call).is_some_and(|path| {
            let ends_process =
                ["exit", "abort"].iter().any(|name| recognise::ends(path, &["process", name]));
            ends_process || recognise::ends(path, &["panic", "panic_any"])
        }),
        _ => false,
    }
}

fn diverges_stmt(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Expr(expr, _) => diverges(expr),
        Stmt::Macro(mac) => diverges_macro(&mac.mac),
        Stmt::Local(_) | Stmt::Item(_) => false,
    }
}

fn diverges_block(block: &Block) -> bool {
    block.stmts.last().is_some_and(diverges_stmt)
}

fn diverges_macro(mac: &Macro) -> bool {
    let names = ["panic", "todo", "unimplemented", "unreachable"];
    macros::is_one_of(&mac.path, &names, &["std", "core"])
        || macros::is_one_of(&mac.path, &["bail"], &["anyhow", "eyre"])
}

/// Whether a `break` leaves this loop.
fn breaks_out(outer: &syn::ExprLoop) -> bool {
    struct Breaks<'a> {
        label: Option<&'a syn::Lifetime>,
        depth: usize,
        found: bool,
    }
    impl syn::visit::Visit<'_> for Breaks<'_> {
        fn visit_expr_break(&mut self, expr: &syn::ExprBreak) {
            self.found |= match &expr.label {
                Some(label) => self.label.is_some_and(|own| own.ident == label.ident),
                None => self.depth == 0,
            };
            syn::visit::visit_expr_break(self, expr);
        }
        fn visit_expr(&mut self, expr: &Expr) {
            let inner = matches!(expr, Expr::Loop(_) | Expr::While(_) | Expr::ForLoop(_));
            self.depth += usize::from(inner);
            syn::visit::visit_expr(self, expr);
            self.depth -= usize::from(inner);
        }
        fn visit_macro(&mut self, mac: &Macro) {
            // A macro that is not opened may hide a `break`.
            self.found |= mac.tokens.clone().into_iter().any(
                |token| matches!(token, proc_macro2::TokenTree::Ident(word) if word == "break"),
            );
        }
        fn visit_item(&mut self, _: &Item) {}
        fn visit_expr_closure(&mut self, _: &ExprClosure) {}
    }
    let label = outer.label.as_ref().map(|label| &label.name);
    let mut breaks = Breaks { label, depth: 0, found: false };
    syn::visit::Visit::visit_block(&mut breaks, &outer.body);
    breaks.found
}

/// Every `return` of the function itself; those of closures, async blocks and nested items are theirs.
struct Returns;

impl VisitMut for Returns {
    fn visit_expr_return_mut(&mut self, expr: &mut ExprReturn) {
        visit_mut::visit_expr_return_mut(self, expr);
        let value =
            expr.expr.take().map_or_else(|| unit(at(expr.return_token.span)), |value| *value);
        let value = if diverges(&value) { value } else { leave(value) };
        expr.expr = Some(Box::new(value));
    }

    fn visit_macro_mut(&mut self, mac: &mut Macro) {
        macros::open_mut(mac, |expr| self.visit_expr_mut(expr));
    }

    fn visit_expr_closure_mut(&mut self, _: &mut ExprClosure) {}
    fn visit_expr_async_mut(&mut self, _: &mut ExprAsync) {}
    fn visit_expr_const_mut(&mut self, _: &mut ExprConst) {}
    fn visit_item_mut(&mut self, _: &mut Item) {}
    fn visit_type_mut(&mut self, _: &mut Type) {}
    fn visit_pat_mut(&mut self, _: &mut Pat) {}
}
