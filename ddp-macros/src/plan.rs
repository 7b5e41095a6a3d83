//! The plan: what is to be done at each loop and parameter, as plain decisions.

use crate::analysis;
use crate::analysis::loops::{Facts, Kind, Loops};
use crate::analysis::names;
use crate::analysis::source::Source;
use crate::marks::Mark;
use proc_macro2::Ident;
use syn::{Attribute, Expr, FnArg, Pat, PatType, Signature, Type};

/// All decisions about one function.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) registers: Vec<Register>,
    pub(crate) loops: Vec<LoopPlan>,
    /// What counts the epochs of a `while` or `loop`, by the number of the loop.
    pub(crate) counters: Vec<(usize, Expr)>,
    /// The numbers of the `let`s whose batches a marked loop takes, with its mark.
    pub(crate) feeding: Vec<(usize, Mark)>,
    /// The places, given a value by an assignment, whose batches a marked loop takes.
    pub(crate) feeding_places: Vec<String>,
    /// The function may leave by a `return`.
    pub(crate) returns: bool,
}

/// Whose the batches are that are made somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Batches {
    /// The runtime deals them out to the ranks.
    #[default]
    Dealt,
    /// Every rank gets all of them, in one order: the loop that takes them deals them out, or does not.
    Whole,
    /// They are the rank's own, made as it is written.
    Own,
}

impl Batches {
    /// Of what a loop with this mark takes its items from.
    pub(crate) fn of(mark: Mark) -> Self {
        match mark {
            Mark::Shard | Mark::Same => Batches::Whole,
            Mark::Each => Batches::Own,
        }
    }
}

/// A parameter that is a variable store.
#[derive(Debug)]
pub(crate) struct Register {
    pub(crate) name: Ident,
    pub(crate) form: StoreForm,
    /// The `cfg`s of the parameter.
    pub(crate) attrs: Vec<Attribute>,
}

/// How a store is passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreForm {
    Shared,
    Exclusive,
    Owned,
}

/// What is done with one loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LoopPlan {
    /// The mark the user wrote.
    pub(crate) mark: Option<Mark>,
    /// Its items must be of a type that deals them out by itself.
    pub(crate) by_type: bool,
    /// Weights are made equal before its first item.
    pub(crate) start: bool,
    /// Its variable is the number of the epoch.
    pub(crate) epoch: bool,
    /// The batches made in its body are the rank's own.
    pub(crate) own_data: bool,
}

/// Decides everything there is to decide.
pub(crate) fn decide(signature: &Signature, loops: &Loops, returns: bool) -> Plan {
    let facts = &loops.facts;
    let decided = facts.iter().map(|one| LoopPlan {
        mark: one.mark,
        by_type: one.kind == Kind::For
            && one.source == Source::Loader
            && one.mark.is_none()
            && !one.covered
            && one.exposed,
        start: trains(one) && !around(facts, one).any(trains),
        epoch: false,
        own_data: matches!(one.mark, Some(Mark::Shard | Mark::Each)),
    });
    let mut decided: Vec<LoopPlan> = decided.collect();
    let mut counters = Vec::new();
    for number in epochs(facts) {
        match &facts[number].counter {
            Some(counter) => counters.push((number, counter.clone())),
            None => decided[number].epoch = true,
        }
    }
    Plan {
        registers: stores(signature),
        loops: decided,
        counters,
        feeding: loops.feeding.clone(),
        feeding_places: loops.feeding_places.clone(),
        returns,
    }
}

fn trains(facts: &Facts) -> bool {
    facts.trains || facts.holds_shared || facts.is_shared()
}

/// The loops around a loop, the nearest first.
fn around<'a>(all: &'a [Facts], facts: &Facts) -> impl Iterator<Item = &'a Facts> {
    std::iter::successors(facts.parent, |number| all[*number].parent).map(|number| &all[number])
}

/// For each shared loop the loop around it that counts the epochs, if one does.
///
/// Where several loops over numbers stand around it, the one whose variable says so counts; where none says
/// so, none is told, as a sampler moves on by itself.
fn epochs(all: &[Facts]) -> Vec<usize> {
    let mut found = Vec::new();
    for facts in all.iter().filter(|facts| facts.is_shared()) {
        let numbers: Vec<usize> = std::iter::successors(facts.parent, |number| all[*number].parent)
            .take_while(|number| !all[*number].is_shared())
            .filter(|number| counts(&all[*number]))
            .collect();
        let named = numbers.iter().copied().find(|number| says_epoch(&all[*number]));
        let only = (numbers.len() == 1).then(|| numbers[0]);
        found.extend(named.or(only));
    }
    found
}

fn counts(facts: &Facts) -> bool {
    let numbers = facts.source == Source::Plain
        && facts.variable.is_some()
        && facts.mark.is_none_or(|mark| mark == Mark::Same);
    facts.counter.is_some() || (facts.kind == Kind::For && numbers)
}

fn says_epoch(facts: &Facts) -> bool {
    facts.counter.is_some() || facts.variable.as_deref().is_some_and(analysis::says_epoch)
}

/// The parameters that are variable stores.
fn stores(signature: &Signature) -> Vec<Register> {
    let mut found = Vec::new();
    for input in &signature.inputs {
        let FnArg::Typed(PatType { pat, ty, attrs, .. }) = input else { continue };
        let Pat::Ident(pat) = &**pat else { continue };
        let form = match &**ty {
            Type::Reference(reference) if reference.mutability.is_some() => StoreForm::Exclusive,
            Type::Reference(_) => StoreForm::Shared,
            _ => StoreForm::Owned,
        };
        let depth =
            matches!(&**ty, Type::Reference(outer) if matches!(*outer.elem, Type::Reference(_)));
        if !depth && names::type_name(ty).is_some_and(|name| name == "VarStore") {
            let attrs = attrs.iter().filter(|attr| attr.path().is_ident("cfg")).cloned().collect();
            found.push(Register { name: pat.ident.clone(), form, attrs });
        }
    }
    found
}
