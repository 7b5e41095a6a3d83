//! Questions about the body, each answered by a small visitor that only reads.

pub(crate) mod indexed;
pub(crate) mod loops;
pub(crate) mod names;
pub(crate) mod source;
pub(crate) mod steps;

use crate::marks;
use syn::Stmt;

/// Whether the user asked to leave this statement alone.
pub(crate) fn is_skipped(stmt: &Stmt) -> bool {
    marks::attrs_of(stmt).is_some_and(marks::skipped)
}
