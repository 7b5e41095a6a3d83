//! The only stage that refuses a program: everything that cannot be done rightly on several ranks.

use crate::analysis::loops::{Facts, Kind, Loops};
use crate::analysis::source::Source;
use crate::errors::{self, Errors};
use crate::{macros, marks};
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Block, Expr, Item, Macro, Stmt};

/// Checks the body against all rules.
pub(crate) fn check(body: &Block, loops: &Loops, errors: &mut Errors) {
    let refused = unclear(&loops.facts);
    Loudly { refused: &refused, errors }.visit_block(body);
}

/// The loops of which it cannot be told how to share them, by number.
fn unclear(all: &[Facts]) -> Vec<bool> {
    let mut refused: Vec<bool> = all.iter().map(is_unclear).collect();
    // A loop around one that is asked about is clear once that one is.
    for number in (0..all.len()).filter(|number| is_unclear(&all[*number])) {
        let parents = std::iter::successors(all[number].parent, |parent| all[*parent].parent);
        parents.for_each(|parent| refused[parent] = false);
    }
    refused
}

fn is_unclear(facts: &Facts) -> bool {
    if facts.mark.is_some() || facts.covered || facts.holds_shared || facts.is_shared() {
        return false;
    }
    match (facts.kind, facts.source) {
        (Kind::For, Source::Plain) => facts.exposed && facts.indexes,
        (Kind::For, Source::Whole) => false,
        (Kind::For, _) | (Kind::WhileLet, _) => facts.exposed,
        (Kind::While | Kind::Loop, _) => facts.direct,
    }
}

/// Puts the errors of loops on their heads.
struct Loudly<'a> {
    refused: &'a [bool],
    errors: &'a mut Errors,
}

impl Visit<'_> for Loudly<'_> {
    fn visit_expr(&mut self, expr: &Expr) {
        let attrs = match expr {
            Expr::ForLoop(inner) => &inner.attrs,
            Expr::While(inner) => &inner.attrs,
            Expr::Loop(inner) => &inner.attrs,
            _ => return visit::visit_expr(self, expr),
        };
        let refused = marks::number(attrs).and_then(|number| self.refused.get(number));
        if refused.is_some_and(|refused| *refused) {
            match expr {
                Expr::ForLoop(inner) => self.errors.on(&inner.expr, errors::CANNOT_SHARE),
                Expr::While(inner) => {
                    self.errors.on(inner.while_token.to_token_stream(), errors::CANNOT_SHARE_WHILE);
                }
                Expr::Loop(inner) => self.errors.on(inner.loop_token, errors::CANNOT_SHARE_WHILE),
                _ => {}
            }
        }
        visit::visit_expr(self, expr);
    }

    fn visit_macro(&mut self, mac: &Macro) {
        for expr in macros::open(mac).into_iter().flatten() {
            self.visit_expr(&expr);
        }
    }

    fn visit_stmt(&mut self, stmt: &Stmt) {
        if !crate::analysis::is_skipped(stmt) {
            visit::visit_stmt(self, stmt);
        }
    }

    fn visit_item(&mut self, _: &Item) {}
}
