//! Whether control comes out of the end of an expression, as far as the tokens tell.

use crate::{macros, recognise};
use proc_macro2::TokenTree;
use syn::visit::{self, Visit};
use syn::{Arm, Block, Expr, ExprBreak, ExprClosure, ExprLoop, Item, Lifetime, Macro, Stmt};

/// Expressions that end a statement without a semicolon.
pub(super) fn is_block_like(expr: &Expr) -> bool {
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

/// Whether control never comes out of the end of the expression, as far as the tokens tell.
pub(super) fn diverges(expr: &Expr) -> bool {
    if let Some(mac) = macros::invoked(expr) {
        return diverges_macro(mac);
    }
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
        Expr::Call(call) => recognise::callee(call).is_some_and(|path| {
            let ends_process =
                ["exit", "abort"].iter().any(|name| recognise::ends(path, &["process", name]));
            ends_process || recognise::ends(path, &["panic", "panic_any"])
        }),
        _ => false,
    }
}

pub(super) fn diverges_stmt(stmt: &Stmt) -> bool {
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
fn breaks_out(outer: &ExprLoop) -> bool {
    struct Breaks<'a> {
        label: Option<&'a Lifetime>,
        depth: usize,
        found: bool,
    }
    impl Visit<'_> for Breaks<'_> {
        fn visit_expr_break(&mut self, expr: &ExprBreak) {
            self.found |= match &expr.label {
                Some(label) => self.label.is_some_and(|own| own.ident == label.ident),
                None => self.depth == 0,
            };
            visit::visit_expr_break(self, expr);
        }
        fn visit_expr(&mut self, expr: &Expr) {
            let inner = matches!(expr, Expr::Loop(_) | Expr::While(_) | Expr::ForLoop(_));
            self.depth += usize::from(inner);
            visit::visit_expr(self, expr);
            self.depth -= usize::from(inner);
        }
        fn visit_macro(&mut self, mac: &Macro) {
            // A macro that is not opened may hide a `break`.
            self.found |= mac
                .tokens
                .clone()
                .into_iter()
                .any(|token| matches!(token, TokenTree::Ident(word) if word == "break"));
        }
        fn visit_item(&mut self, _: &Item) {}
        fn visit_expr_closure(&mut self, _: &ExprClosure) {}
    }
    let label = outer.label.as_ref().map(|label| &label.name);
    let mut breaks = Breaks { label, depth: 0, found: false };
    Visit::visit_block(&mut breaks, &outer.body);
    breaks.found
}

/// Whether the expression can be of type `!`: a call of which only its type tells, in every branch.
pub(super) fn may_diverge(expr: &Expr) -> bool {
    if let Some(mac) = macros::invoked(expr) {
        return !has_value(mac);
    }
    match expr {
        Expr::MethodCall(_) => true,
        Expr::Call(call) => recognise::callee(call).is_none_or(|path| {
            // Names of variants, as in `Ok(..)`, begin with a capital.
            macros::name(path).starts_with(|first: char| !first.is_uppercase())
        }),
        Expr::Paren(inner) => may_diverge(&inner.expr),
        Expr::Block(inner) => inner.label.is_none() && may_diverge_block(&inner.block),
        Expr::Unsafe(inner) => may_diverge_block(&inner.block),
        Expr::If(inner) => {
            let otherwise =
                inner.else_branch.as_ref().is_some_and(|(_, branch)| may_diverge(branch));
            may_diverge_block(&inner.then_branch) && otherwise
        }
        Expr::Match(inner) => inner.arms.iter().all(|arm| may_diverge(&arm.body)),
        expr => diverges(expr),
    }
}

/// As `may_diverge`, for a statement.
pub(super) fn may_diverge_stmt(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Expr(expr, _) => may_diverge(expr),
        Stmt::Macro(mac) => !has_value(&mac.mac),
        Stmt::Local(local) => local.init.as_ref().is_some_and(|init| may_diverge(&init.expr)),
        Stmt::Item(_) => false,
    }
}

fn may_diverge_block(block: &Block) -> bool {
    block.stmts.last().is_some_and(may_diverge_stmt)
}

/// Macros that always come out with a value.
fn has_value(mac: &Macro) -> bool {
    let names = ["vec", "format", "write", "writeln", "matches", "anyhow"];
    recognise::printer(mac).is_some() || names.contains(&macros::name(&mac.path).as_str())
}
