//! Whether a rule can find anything in the body. It is noted on the one walk that every function takes, so that a rule
//! without a cause costs none of its own.

use super::ranks::{self, TELL};
use super::{devices, threads, variable};
use crate::recognise::{self, Site};
use syn::{Expr, ExprCall, ExprMethodCall, Member, Path};

/// What there is to look at: more than a rule will find, never less.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// CUDA devices that may be more than one.
    pub(crate) devices: bool,
    /// A name that tells ranks apart, or a section of one rank.
    pub(crate) ranks: bool,
    /// Something that hands work to another thread.
    pub(crate) threads: bool,
    /// The first device that is named by a number.
    first: Option<u64>,
}

impl Seen {
    /// Looks at a call of the method of this name.
    pub(super) fn method(&mut self, call: &ExprMethodCall, name: &str) {
        self.threads |= threads::hands_over(name) || threads::goes_parallel(name);
        self.ranks |= TELL.contains(&name);
        // A device that is a function may be given one number after the other.
        let is_function = |argument: &Expr| {
            matches!(argument, Expr::Path(_))
                && recognise::site(argument) == Some(Site::DeviceFunction { takes_index: true })
        };
        self.devices |= call.args.iter().any(is_function);
    }

    /// Looks at a call of the function at this path, of this name.
    pub(super) fn call(&mut self, call: &ExprCall, path: &Path, name: &str) {
        self.threads |= threads::hands_over(name);
        self.ranks |= ranks::is_section(name) || TELL.contains(&name);
        if recognise::call_site(call, path, name) == Some(Site::Device)
            && let Some(index) = call.args.first()
        {
            self.devices |= devices::number(index)
                .is_none_or(|number| *self.first.get_or_insert(number) != number);
        }
    }

    /// Looks at any other expression.
    pub(super) fn other(&mut self, expr: &Expr) {
        self.ranks |= match expr {
            Expr::Field(field) => {
                matches!(&field.member, Member::Named(name) if TELL.contains(&name.to_string().as_str()))
            }
            Expr::Path(_) => variable(expr).is_some_and(|name| TELL.contains(&name.as_str())),
            _ => false,
        };
    }
}
