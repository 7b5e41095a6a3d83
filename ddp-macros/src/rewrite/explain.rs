//! What `#[distributed(explain)]` says in the function's documentation: each line that was changed, and to what
//! end.

use super::emit::{at, first_span};
use crate::marks::Mark;
use crate::recognise::Site;
use proc_macro2::Span;
use quote::ToTokens;
use syn::{Attribute, Expr, LitStr, parse_quote_spanned};

/// The changes, in the order in which they were made; nothing where nobody asked.
#[derive(Debug)]
pub(crate) struct Notes(Option<Vec<(usize, String)>>);

impl Notes {
    /// Notes for a function that wants them, or that does not.
    pub(crate) fn new(wanted: bool) -> Self {
        Self(wanted.then(Vec::new))
    }

    /// Notes what was done at a place.
    pub(crate) fn add(&mut self, span: Span, text: impl Into<String>) {
        if let Some(lines) = &mut self.0 {
            lines.push((span.start().line, text.into()));
        }
    }

    /// Notes what counts the epochs.
    pub(crate) fn epoch(&mut self, counter: &Expr) {
        if self.0.is_some() {
            // Printed tokens stand apart; a place is short enough to close the gaps.
            let counter_text = counter.to_token_stream().to_string().replace(' ', "");
            let text =
                format!("`{counter_text}` is the epoch that the order of the batches follows");
            self.add(first_span(counter), text);
        }
    }

    /// Notes what was done at a site.
    pub(crate) fn site(&mut self, span: Span, site: Site) {
        self.add(span, match site {
            Site::Device | Site::DeviceFunction { .. } | Site::DeviceKind => {
                "a CUDA device is the device of the rank"
            }
            Site::Store => "the variable store starts with the main rank's values on every rank",
            Site::Data | Site::Iter2 { .. } => "the batches are dealt out, to each rank its own",
            Site::Folder => "where another rank was faster, the error of this folder says what to write",
            Site::Bar | Site::Progress => "the progress bar shows on the main rank",
            Site::Save => "a variable store is saved by the main rank, and the others wait for its result",
            Site::Seed => "the seed counts for all ranks until the weights are equal, then mixed with the rank",
        });
    }

    /// Notes what a mark on a loop does.
    pub(crate) fn mark(&mut self, span: Span, mark: Mark) {
        self.add(
            span,
            match mark {
                Mark::Shard => "each rank takes its share of the items",
                Mark::Each => "each rank runs all items, on data of its own",
                Mark::Same => "each rank does the same work",
            },
        );
    }

    /// The notes as attributes of the function, by line.
    pub(crate) fn into_docs(mut self, span: Span) -> Vec<Attribute> {
        let span = at(span);
        let Some(mut lines) = self.0.take() else { return Vec::new() };
        lines.sort_by_key(|(line, _)| *line);
        lines.dedup();
        let head = ["", " # On several ranks", "", " What `#[distributed]` changed, by line:", ""];
        let head = head.into_iter().map(str::to_owned);
        let lines = lines.iter().map(|(line, text)| format!(" - {line}: {text}"));
        let doc = |text: String| -> Attribute {
            let text = LitStr::new(&text, span);
            parse_quote_spanned!(span=> #[doc = #text])
        };
        head.chain(lines).map(doc).collect()
    }
}
