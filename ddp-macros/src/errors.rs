//! The catalogue of everything the attribute refuses, and the list that collects what was found.

use quote::ToTokens;
use std::borrow::Cow;
use std::fmt::{self, Display};

/// One text of the catalogue: what is wrong with the line to write instead, and why it matters.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    message: Cow<'static, str>,
    help: Cow<'static, str>,
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.help.is_empty() {
            return f.write_str(&self.message);
        }
        write!(f, "{}\nhelp: {}", self.message, self.help)
    }
}

const fn fault(message: &'static str, help: &'static str) -> Fault {
    Fault { message: Cow::Borrowed(message), help: Cow::Borrowed(help) }
}

fn made(message: String, help: &'static str) -> Fault {
    Fault { message: Cow::Owned(message), help: Cow::Borrowed(help) }
}

// The item the attribute stands on.

pub(crate) const NOT_A_FUNCTION: Fault = fault(
    "#[distributed] belongs on a function",
    "move it to the function whose body holds the training loop",
);
pub(crate) const NO_BODY: Fault = fault(
    "#[distributed] needs a function body",
    "write it on the implementation, or on a method with a default body",
);
pub(crate) const ASYNC: Fault = fault(
    "a collective would block the executor; move the training into a plain function",
    "call that function through `spawn_blocking`",
);
pub(crate) const CONST: Fault = fault(
    "a const fn cannot talk to other processes; take `const` away",
    "#[distributed] joins the group of processes when the function is called",
);

// Options.

pub(crate) fn unknown_option(name: &str, valid: &[&str]) -> Fault {
    made(
        format!("unknown option `{name}`; the options are {}", listed(valid)),
        "for example #[distributed(batch = \"global\", timeout = 300)]",
    )
}

pub(crate) const OPTION_SYNTAX: Fault = fault(
    "options are written `name = value`, with commas between them",
    "for example #[distributed(batch = \"global\", timeout = 300)]",
);

pub(crate) fn repeated_option(name: &str) -> Fault {
    made(format!("option `{name}` is given twice; keep one of them"), "")
}

pub(crate) fn option_value(name: &str, valid: &str) -> Fault {
    made(
        format!("option `{name}` takes {valid}"),
        "each option can be set from the environment as well, as DDP_ and its name in capitals",
    )
}

// Batches of the user's own.

pub(crate) const BATCH_NOT_A_STRUCT: Fault = fault(
    "`SplitBatch` is derived for structs, whose fields are the columns of a batch; implement it for this type",
    "its two methods say how many samples there are, and take some of them",
);
pub(crate) const BATCH_WITHOUT_COLUMNS: Fault = fault(
    "a batch has at least one column; add a field that holds samples, or take #[batch(whole)] off one",
    "a field marked so goes to every rank as it is, and the ranks share the others",
);
pub(crate) const BATCH_ATTRIBUTE: Fault = fault(
    "write #[batch(whole)] on a field, or #[batch(crate = \"path\")] on the struct",
    "whole: every rank gets the field as it is; crate: where the runtime is",
);

pub(crate) fn batch_crate() -> Fault {
    made("`crate` takes a path in quotes, as in `crate = \"::ddp_runtime\"`".to_owned(), "")
}

// Marks.

pub(crate) fn unknown_mark(word: &str) -> Fault {
    made(
        format!(
            "unknown mark `{word}`; the marks are #[ddp(shard)], #[ddp(each)] and #[ddp(same)] on a \
             loop, and #[ddp(skip)] on a statement"
        ),
        "",
    )
}

pub(crate) const MARK_SYNTAX: Fault = fault(
    "a mark is one word; write #[ddp(shard)], #[ddp(each)] or #[ddp(same)] on a loop, or \
     #[ddp(skip)] on a statement",
    "",
);

pub(crate) fn mark_needs_loop(word: &str) -> Fault {
    made(
        format!(
            "#[ddp({word})] belongs on a loop; put it on the line of its `for`, `while` or `loop`"
        ),
        "",
    )
}

pub(crate) const SKIP_NEEDS_STATEMENT: Fault = fault(
    "#[ddp(skip)] belongs on a statement; put it on the line where the statement begins",
    "nothing inside that statement is rewritten or checked",
);
pub(crate) const TWO_MARKS: Fault =
    fault("this loop has more than one mark; keep the one that is meant", "");
pub(crate) const SHARD_NEEDS_FOR: Fault = fault(
    "#[ddp(shard)] needs a `for` loop; iterate over the batches, or write #[ddp(each)] if every \
     rank draws its own batches",
    "a `while` or `loop` has no items that could be dealt out to the ranks",
);

// Loops.

pub(crate) const CANNOT_SHARE: Fault = fault(
    "cannot tell how to share this loop; write #[ddp(shard)], #[ddp(each)] or #[ddp(same)] on it",
    "shard: every rank takes its share of the items; each: every rank runs them all on data of its \
     own; same: every rank does the same work",
);
pub(crate) const CANNOT_SHARE_WHILE: Fault = fault(
    "cannot tell how to share this loop; write #[ddp(each)] if every rank draws its own batches",
    "or #[ddp(same)] if every rank is to do the same work; only a `for` loop can be dealt out with \
     #[ddp(shard)]",
);

// What cannot be done rightly on several ranks.

pub(crate) const SEVERAL_DEVICES: Fault = fault(
    "this function places work on several devices itself; use one device",
    "the launcher starts one process for each device, and gives each rank its own; #[ddp(skip)] on the \
     statement leaves its devices as they are",
);
pub(crate) const STEP_ON_THREAD: Fault = fault(
    "this step runs on a thread of its own; step on the marked function's thread",
    "the ranks meet in every backward, so all of them must take their steps in one order; #[ddp(skip)] on the \
     statement if this is another kind of step",
);

pub(crate) fn collective_in_branch(name: &str) -> Fault {
    made(
        format!("{name} waits for all ranks; take it out of the branch"),
        "only some ranks run this branch, and they would wait for the others; saving a store on the \
         main rank alone, and printing there, is done by #[distributed] as it is; #[ddp(skip)] on the \
         statement if all ranks do run it",
    )
}

pub(crate) fn collective_in_main_only(name: &str) -> Fault {
    made(
        format!("{name} waits for all ranks; take it out of the section of the main rank"),
        "only one rank runs this section, and it would wait for the others; #[ddp(skip)] on the statement if \
         this is no call of ddp's",
    )
}

pub(crate) const CONTINUE_UNVOTED: Fault = fault(
    "each rank would decide this `continue` alone; write `if skip_if(cond) { continue }`",
    "the value is the rank's own: a rank that skips the backward leaves the others waiting for its \
     gradients, so all ranks must skip together; #[ddp(skip)] on the `if` says that they do",
);
pub(crate) const BREAK_UNVOTED: Fault = fault(
    "each rank would decide this `break` alone; write `if should_stop(cond) { break }`",
    "the value is the rank's own: a rank that stops leaves the others waiting for its gradients, so \
     all ranks must stop together; #[ddp(skip)] on the `if` says that they do",
);
pub(crate) const RETURN_UNVOTED: Fault = fault(
    "each rank would decide this `return` alone; write `if should_stop(cond) { return .. }`",
    "the value is the rank's own: a rank that leaves has the others wait for its gradients, so all \
     ranks must leave together; #[ddp(skip)] on the `if` says that they do",
);
pub(crate) const STEP_UNVOTED: Fault = fault(
    "each rank would decide this step alone; write `if skip_if(!cond) { continue }` before it",
    "the value is the rank's own: a rank without this step has other weights than the others, or lets \
     them wait, so all ranks must skip together; #[ddp(skip)] on the `if` says that they do",
);
pub(crate) const WHILE_UNVOTED: Fault = fault(
    "each rank would decide the end of this loop alone; write `while agree(cond)`",
    "the value is the rank's own: a rank that stops leaves the others waiting for its gradients, so all \
     ranks must stop together; a condition on `mean(value)` does as well",
);
pub(crate) const RANDOM_ORDER: Fault = fault(
    "each rank would draw another order here; use a seeded generator",
    "for example `StdRng::seed_from_u64(epoch)`: the ranks deal out one order, which all must agree on; \
     #[ddp(skip)] on the statement if this order is not dealt out",
);

/// The words of a list, each in quotes, the last after "and".
fn listed(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// Everything found wrong so far, to be reported together.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    found: Option<syn::Error>,
}

impl Errors {
    /// Notes a fault on the given tokens.
    pub(crate) fn on(&mut self, tokens: impl ToTokens, fault: impl Display) {
        self.add(syn::Error::new_spanned(tokens, fault));
    }

    /// Notes an error of the parser.
    pub(crate) fn add(&mut self, error: syn::Error) {
        match &mut self.found {
            Some(found) => found.combine(error),
            None => self.found = Some(error),
        }
    }

    /// Goes on only if nothing is wrong.
    pub(crate) fn propagate(self) -> syn::Result<()> {
        self.found.map_or(Ok(()), Err)
    }
}
