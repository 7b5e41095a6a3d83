//! The only stage that refuses a program: everything that cannot be done rightly on several ranks.

use crate::analysis::exits::Unvoted;
use crate::analysis::loops::{Facts, Kind, Loops};
use crate::analysis::ranks::Place;
use crate::analysis::source::Source;
use crate::analysis::{devices, exits, orders, ranks, threads, through_body};
use crate::errors::{self, Errors};
use crate::marks::{self, Mark};
use syn::visit::{self, Visit};
use syn::{Block, Expr};

/// Checks the body against all rules.
pub(crate) fn check(body: &Block, loops: &Loops, errors: &mut Errors) {
    let refused = unclear(&loops.facts);
    if refused.contains(&true) {
        Unclear { refused: &refused, errors }.visit_block(body);
    }
    let seen = &loops.seen;
    for device in look(seen.devices, || devices::further(body)) {
        errors.on(device, errors::SEVERAL_DEVICES);
    }
    for step in look(seen.threads, || threads::steps(body)) {
        errors.on(step, errors::STEP_ON_THREAD);
    }
    for lonely in look(seen.ranks, || ranks::lonely_collectives(body)) {
        let name = lonely.name.to_string();
        errors.on(
            &lonely.name,
            match lonely.place {
                Place::Branch => errors::collective_in_branch(&name),
                Place::MainOnly => errors::collective_in_main_only(&name),
            },
        );
    }
    for exit in look(loops.may_differ(), || exits::unvoted(body, loops)) {
        match exit {
            Unvoted::Break(exit) => errors.on(exit, errors::BREAK_UNVOTED),
            Unvoted::Continue(exit) => errors.on(exit, errors::CONTINUE_UNVOTED),
            Unvoted::Return(exit) => errors.on(exit, errors::RETURN_UNVOTED),
            Unvoted::Step(step) => errors.on(step, errors::STEP_UNVOTED),
            Unvoted::While(condition) => errors.on(condition, errors::WHILE_UNVOTED),
        }
    }
    let deals = loops.facts.iter().any(|facts| facts.mark == Some(Mark::Shard));
    for generator in look(deals, || orders::unseeded(body)) {
        errors.on(generator, errors::RANDOM_ORDER);
    }
}

/// What a rule finds, where there is something for it to look at: each goes through the whole body again.
fn look<T>(cause: bool, rule: impl FnOnce() -> Vec<T>) -> Vec<T> {
    if cause { rule() } else { Vec::new() }
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
        (Kind::For | Kind::WhileLet, _) => facts.exposed,
        (Kind::While | Kind::Loop, _) => facts.direct,
    }
}

/// Puts the errors of unclear loops on their heads.
struct Unclear<'a> {
    refused: &'a [bool],
    errors: &'a mut Errors,
}

impl Unclear<'_> {
    fn is_refused(&self, attrs: &[syn::Attribute]) -> bool {
        marks::number(attrs)
            .and_then(|number| self.refused.get(number))
            .is_some_and(|refused| *refused)
    }
}

impl Visit<'_> for Unclear<'_> {
    fn visit_expr(&mut self, expr: &Expr) {
        match expr {
            Expr::ForLoop(inner) if self.is_refused(&inner.attrs) => {
                self.errors.on(&inner.expr, errors::CANNOT_SHARE);
            }
            Expr::While(inner) if self.is_refused(&inner.attrs) => {
                self.errors.on(inner.while_token, errors::CANNOT_SHARE_WHILE);
            }
            Expr::Loop(inner) if self.is_refused(&inner.attrs) => {
                self.errors.on(inner.loop_token, errors::CANNOT_SHARE_WHILE);
            }
            _ => {}
        }
        visit::visit_expr(self, expr);
    }

    through_body!();
}
