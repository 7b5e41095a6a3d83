//! Whether a loop's variable picks rows out of data: `xs.narrow(0, i * b, b)`, `xs.i(i..)`, `data[i]`.

use super::names::{any_expr, bound};
use crate::recognise;
use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprAssign, ExprIndex, ExprMethodCall, Local, Pat};

/// Methods whose arguments say which rows to take.
const PICKS: [&str; 12] = [
    "narrow",
    "narrow_copy",
    "i",
    "get",
    "get_unchecked",
    "select",
    "slice",
    "slice_copy",
    "skip",
    "nth",
    "index_select",
    "chunk",
];

/// Whether a name that the pattern binds picks rows in the body, also through index arithmetic in a `let`.
pub(crate) fn by(pat: &Pat, body: &Block) -> bool {
    let mut indexed = Indexed { names: bound(pat), found: false };
    indexed.visit_block(body);
    indexed.found
}

struct Indexed {
    /// The names that hold an index.
    names: Vec<String>,
    found: bool,
}

impl Indexed {
    fn mentions(&self, expr: &Expr) -> bool {
        any_expr(expr, &mut |expr| {
            recognise::as_path(expr)
                .and_then(|path| path.get_ident())
                .is_some_and(|ident| self.names.iter().any(|name| ident == name))
        })
    }
}

/// Whether the expression is arithmetic on indices, so that its value is an index again.
fn is_arithmetic(expr: &Expr) -> bool {
    match expr {
        Expr::Path(_) | Expr::Lit(_) | Expr::Field(_) => true,
        Expr::Binary(inner) => is_arithmetic(&inner.left) && is_arithmetic(&inner.right),
        Expr::Paren(inner) => is_arithmetic(&inner.expr),
        Expr::Cast(inner) => is_arithmetic(&inner.expr),
        Expr::Range(range) => {
            [&range.start, &range.end].into_iter().flatten().all(|e| is_arithmetic(e))
        }
        Expr::MethodCall(call) => {
            matches!(
                call.method.to_string().as_str(),
                "min" | "max" | "rem_euclid" | "into" | "len"
            ) && is_arithmetic(&call.receiver)
        }
        _ => false,
    }
}

impl Visit<'_> for Indexed {
    fn visit_local(&mut self, local: &Local) {
        visit::visit_local(self, local);
        if let Some(init) = &local.init
            && is_arithmetic(&init.expr)
            && self.mentions(&init.expr)
        {
            self.names.extend(bound(&local.pat));
        }
    }

    fn visit_expr_index(&mut self, expr: &ExprIndex) {
        self.found |= self.mentions(&expr.index);
        visit::visit_expr_index(self, expr);
    }

    fn visit_expr_method_call(&mut self, call: &ExprMethodCall) {
        let method = call.method.to_string();
        let mut words = method.split('_');
        let batch = words.clone().any(|word| word == "batch") && words.all(|word| word != "set");
        if batch || PICKS.contains(&method.as_str()) {
            self.found |= call.args.iter().any(|argument| self.mentions(argument));
        }
        visit::visit_expr_method_call(self, call);
    }

    /// What is written to, as in `history[epoch] = loss`, is no data to train on.
    fn visit_expr_assign(&mut self, expr: &ExprAssign) {
        if !matches!(*expr.left, Expr::Index(_)) {
            self.visit_expr(&expr.left);
        }
        self.visit_expr(&expr.right);
    }

    through_body!();
}
