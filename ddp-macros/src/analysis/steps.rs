//! Which expressions take a training step, as far as the tokens tell.

use super::names::Names;
use crate::{macros, recognise};
use syn::{Expr, ExprCall, ExprMethodCall, Macro, Path};

/// How sure it is that an expression takes a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// It hands an optimizer, or a closure that steps, to someone else.
    Handed,
    /// It is a `backward` or a `step` itself.
    Direct,
}

/// Words in the name of a function that takes an optimizer and does no step with it.
const NO_STEP: [&str; 16] = [
    "lr",
    "rate",
    "schedule",
    "scheduler",
    "decay",
    "save",
    "load",
    "zero",
    "freeze",
    "reset",
    "set",
    "add",
    "build",
    "len",
    "clip",
    "grad",
];

/// Words in the name of a function that takes an optimizer to step with it.
const TRAIN: [&str; 7] = ["train", "step", "update", "fit", "learn", "optimize", "descend"];

/// Whether a method is a backward, under any of tch's names.
pub(crate) fn is_backward(method: &str) -> bool {
    matches!(method, "backward" | "f_backward") || method.starts_with("backward_step")
}

/// The step that this expression takes itself, apart from those of the expressions inside it.
pub(crate) fn of(expr: &Expr, names: &Names) -> Option<Step> {
    match expr {
        Expr::MethodCall(call) => of_method(call, &call.method.to_string(), names),
        Expr::Call(call) => {
            let path = recognise::callee(call)?;
            of_call(call, path, &macros::name(path), names)
        }
        _ => None,
    }
}

/// The step that a call of the method of this name takes itself.
pub(crate) fn of_method(call: &ExprMethodCall, method: &str, names: &Names) -> Option<Step> {
    let own = method == "step" && call.args.is_empty() && names.is_optimizer(&call.receiver);
    if own || is_backward(method) {
        return Some(Step::Direct);
    }
    handed(method, call.args.iter(), names)
}

/// The step that a call of the function at this path, of this name, takes itself.
pub(crate) fn of_call(call: &ExprCall, path: &Path, name: &str, names: &Names) -> Option<Step> {
    let own = path.get_ident().is_some() && names.get(name).is_some_and(|binding| binding.steps);
    match own {
        true => Some(Step::Handed),
        false => handed(name, call.args.iter(), names),
    }
}

fn handed<'a>(
    function: &str,
    mut arguments: impl ExactSizeIterator<Item = &'a Expr>,
    names: &Names,
) -> Option<Step> {
    let says = |words: &[&str]| function.split('_').any(|word| words.contains(&word));
    let takes = |argument: &Expr| match argument {
        Expr::Reference(inner) if inner.mutability.is_some() => names.is_optimizer(&inner.expr),
        Expr::Path(_) => names.is_optimizer(argument),
        _ => false,
    };
    let several = arguments.len() > 1;
    let trains = || says(&TRAIN) || (several && !says(&NO_STEP));
    (arguments.any(takes) && trains()).then_some(Step::Handed)
}

/// The step that a macro takes whose arguments are not expressions.
pub(crate) fn of_macro(mac: &Macro, names: &Names) -> Option<Step> {
    let named = names.stepping_macros.contains(&macros::name(&mac.path));
    let visible = named || macros::calls_method(mac.tokens.clone(), &is_backward);
    visible.then_some(Step::Direct)
}
