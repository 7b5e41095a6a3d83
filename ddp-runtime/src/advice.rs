//! What the main rank says when an annotated function has trained: what was harmless, and may still not be what was meant.
//!
//! Nothing is said with one rank, and nothing twice.
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tch::nn::{VarStore, Variables};

/// What happened in the outermost scope.
struct Notes {
    /// Whether anything was dealt out to the ranks, or a mark said that nothing is to be.
    dealt_out: bool,
    stores: Vec<Weak<Mutex<Variables>>>,
    said: BTreeSet<String>,
}

static NOTES: Mutex<Notes> =
    Mutex::new(Notes { dealt_out: false, stores: Vec::new(), said: BTreeSet::new() });

fn notes() -> MutexGuard<'static, Notes> {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An outermost scope begins.
pub(crate) fn begin() {
    let mut notes = notes();
    notes.dealt_out = false;
    notes.stores.clear();
}

/// Each rank gets its own part of some data, or the program says that it need not.
pub(crate) fn dealt_out() {
    notes().dealt_out = true;
}

/// The function has this store.
pub(crate) fn store(store: &VarStore) {
    notes().stores.push(Arc::downgrade(&store.variables_));
}

/// The outermost scope, called `name`, is left well after `backwards` of them.
pub(crate) fn end(name: &str, world_size: usize, backwards: i64) {
    let mut notes = notes();
    let is_empty = |store: &Weak<Mutex<Variables>>| {
        let Some(variables) = store.upgrade() else { return false };
        let variables = variables.lock().unwrap_or_else(PoisonError::into_inner);
        variables.named_variables.is_empty()
    };
    let empty = notes.stores.iter().any(is_empty);
    for text in advice(name, world_size, backwards, notes.dealt_out, empty) {
        if notes.said.insert(text.clone()) {
            std::eprintln!("{text}");
        }
    }
}

fn advice(
    name: &str,
    world_size: usize,
    backwards: i64,
    dealt_out: bool,
    empty_store: bool,
) -> Vec<String> {
    let mut lines = Vec::new();
    if backwards > 0 && !dealt_out {
        lines.push(format!(
            "note: nothing was shared in `{name}`: its {world_size} ranks took all steps on the same data, unless each \
             drew its own; #[ddp(same)] or #[ddp(each)] on the loop says which is meant"
        ));
    }
    if empty_store {
        lines.push(format!(
            "warning: a variable store of `{name}` has no variables; an optimizer on it moves nothing"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::advice;

    #[test]
    fn s21_steps_on_data_that_nobody_shared_are_noted() {
        assert!(advice("train", 2, 5, true, false).is_empty());
        assert!(advice("validate", 2, 0, false, false).is_empty());
        let lines = advice("train", 2, 5, false, false);
        assert!(lines.len() == 1 && lines[0].starts_with("note: nothing was shared in `train`"));
    }

    #[test]
    fn s16_a_store_without_variables_is_noted() {
        let lines = advice("train", 2, 5, true, true);
        assert!(lines.len() == 1 && lines[0].starts_with("warning: a variable store of `train`"));
    }
}
