//! Questions about the body, each answered by a small visitor that only reads.

/// What every visitor of a body does alike: it leaves out what the user wants left alone, items inside the body, which
/// are functions of their own, and what is no expression of the body at all.
macro_rules! through_body {
    () => {
        fn visit_stmt(&mut self, stmt: &syn::Stmt) {
            if !crate::analysis::is_skipped(stmt) {
                syn::visit::visit_stmt(self, stmt);
            }
        }

        fn visit_item(&mut self, _: &syn::Item) {}
        crate::walk::expressions_only!();
    };
}

pub(crate) use through_body;

pub(crate) mod devices;
pub(crate) mod exits;
pub(crate) mod indexed;
pub(crate) mod loops;
pub(crate) mod names;
pub(crate) mod orders;
pub(crate) mod ranks;
pub(crate) mod seen;
pub(crate) mod source;
pub(crate) mod steps;
pub(crate) mod threads;

use crate::marks;
use syn::{Expr, ExprField, Member, Stmt};

/// Whether the user asked to leave this statement alone.
pub(crate) fn is_skipped(stmt: &Stmt) -> bool {
    marks::attrs_of(stmt).is_some_and(marks::skipped)
}

/// The place that an expression is, as text: `it`, `self.batches`, through parentheses and references.
pub(crate) fn place(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Reference(inner) => place(&inner.expr),
        Expr::Paren(inner) => place(&inner.expr),
        Expr::Field(field) => match &field.member {
            Member::Named(name) => Some(format!("{}.{name}", place(&field.base)?)),
            Member::Unnamed(index) => Some(format!("{}.{}", place(&field.base)?, index.index)),
        },
        expr => crate::recognise::as_path(expr)?.get_ident().map(ToString::to_string),
    }
}

/// The name of a variable, where the expression is one, through parentheses, references and casts.
pub(crate) fn variable(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Reference(inner) => variable(&inner.expr),
        Expr::Paren(inner) => variable(&inner.expr),
        Expr::Cast(inner) => variable(&inner.expr),
        Expr::Unary(inner) => variable(&inner.expr),
        expr => crate::recognise::as_path(expr)?.get_ident().map(ToString::to_string),
    }
}

/// The last name of a place: `epoch` of `*epoch`, of `self.epoch`, of `self.state().epoch`.
pub(crate) fn last_name(place: &Expr) -> Option<String> {
    match place {
        Expr::Field(ExprField { member: Member::Named(name), .. }) => Some(name.to_string()),
        Expr::Paren(inner) => last_name(&inner.expr),
        Expr::Unary(inner) => last_name(&inner.expr),
        place => crate::recognise::as_path(place)?.get_ident().map(ToString::to_string),
    }
}

/// The variable that a place is or is a part of, if nothing is called on the way to it.
pub(crate) fn root(place: &Expr) -> Option<String> {
    match place {
        Expr::Field(inner) => root(&inner.base),
        Expr::Paren(inner) => root(&inner.expr),
        Expr::Unary(inner) => root(&inner.expr),
        place => crate::recognise::as_path(place)?.get_ident().map(ToString::to_string),
    }
}

/// Whether the name says that it counts epochs.
pub(crate) fn says_epoch(name: &str) -> bool {
    name.split('_').any(|word| matches!(word, "epoch" | "epochs" | "ep"))
}
