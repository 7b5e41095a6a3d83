//! The options of the attribute: one small check a key, each error with the values that are valid.

use crate::errors::{self, Errors};
use proc_macro2::{Ident, Span};
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Expr, ExprLit, Lit, LitBool, LitFloat, LitInt, LitStr, Path, Token, ext::IdentExt};

/// The options as they were given.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// The settings that are handed on to the runtime, in the order they were written.
    pub(crate) settings: Vec<Setting>,
    /// The path of the runtime crate, where it is not `::ddp_runtime`.
    pub(crate) runtime: Option<Path>,
    /// Whether the function's documentation says what was rewritten.
    pub(crate) explain: bool,
}

/// One call on the runtime's `Options`.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) method: &'static str,
    pub(crate) value: Value,
    pub(crate) span: Span,
}

/// A value that passed its check.
#[derive(Debug)]
pub(crate) enum Value {
    Text(LitStr),
    Whole(LitInt),
    Number(LitFloat),
    Switch(LitBool),
    /// A variant of the runtime's `Batch`.
    Batch(&'static str),
}

/// What a key takes.
enum Kind {
    Words(&'static [&'static str]),
    Batch,
    /// A whole number that is at least this.
    Whole(u64),
    Number,
    Switch,
    Runtime,
    Explain,
}

/// Every option: its key, the method that takes it on, and what it takes.
const KEYS: [(&str, &str, Kind); 14] = [
    ("backend", "backend", Kind::Words(&["auto", "nccl", "gloo", "shm"])),
    ("batch", "batch", Kind::Batch),
    ("loss", "loss", Kind::Words(&["mean", "sum"])),
    ("sync_batch_norm", "sync_batch_norm", Kind::Switch),
    ("seed", "seed", Kind::Whole(0)),
    ("uneven", "uneven", Kind::Words(&["error", "join"])),
    ("accumulate", "accumulate", Kind::Whole(1)),
    ("print", "print", Kind::Words(&["main", "all"])),
    ("timeout", "timeout_secs", Kind::Whole(1)),
    ("bucket_mb", "bucket_mb", Kind::Number),
    ("compress", "compress", Kind::Words(&["none", "fp16", "bf16", "powersgd"])),
    ("debug", "debug", Kind::Words(&["off", "checksum"])),
    ("crate", "", Kind::Runtime),
    ("explain", "", Kind::Explain),
];

/// `key` or `key = value`.
struct Entry {
    key: Ident,
    value: Option<Expr>,
}

impl Parse for Entry {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let key = Ident::parse_any(input)?;
        let value = match input.parse::<Option<Token![=]>>()? {
            Some(_) => Some(input.parse()?),
            None if input.is_empty() || input.peek(Token![,]) => None,
            None => return Err(input.error(errors::OPTION_SYNTAX)),
        };
        Ok(Self { key, value })
    }
}

/// Reads the attribute's arguments; what is wrong goes to `errors`.
pub(crate) fn parse(args: proc_macro2::TokenStream, errors: &mut Errors) -> Options {
    let entries = match Punctuated::<Entry, Token![,]>::parse_terminated.parse2(args) {
        Ok(entries) => entries,
        Err(error) => {
            errors.add(error);
            return Options::default();
        }
    };
    let mut options = Options::default();
    let mut seen: Vec<String> = Vec::new();
    for entry in entries {
        let name = entry.key.to_string();
        let Some((_, method, kind)) = KEYS.iter().find(|(key, ..)| *key == name) else {
            errors.on(&entry.key, errors::unknown_option(&name, &KEYS.map(|(key, ..)| key)));
            continue;
        };
        if seen.contains(&name) {
            errors.on(&entry.key, errors::repeated_option(&name));
            continue;
        }
        seen.push(name);
        options.take(&entry, method, kind, errors);
    }
    options
}

impl Options {
    /// Whether it is written that the ranks share each batch.
    pub(crate) fn shares_batches(&self) -> bool {
        self.settings.iter().any(|setting| matches!(setting.value, Value::Batch("Global")))
    }

    fn take(&mut self, entry: &Entry, method: &'static str, kind: &Kind, errors: &mut Errors) {
        let value = match kind {
            Kind::Runtime => match runtime_path(entry.value.as_ref()) {
                Some(path) => return self.runtime = Some(path),
                None => None,
            },
            Kind::Explain => match switch(entry) {
                Some(on) => return self.explain = on.value,
                None => None,
            },
            Kind::Switch => switch(entry).map(Value::Switch),
            Kind::Words(words) => word(entry.value.as_ref(), words).map(Value::Text),
            Kind::Batch => batch(entry.value.as_ref()).map(Value::Batch),
            Kind::Whole(least) => whole(entry.value.as_ref(), *least).map(Value::Whole),
            Kind::Number => number(entry.value.as_ref()).map(Value::Number),
        };
        match value {
            Some(value) => self.settings.push(Setting { method, value, span: entry.key.span() }),
            None => {
                let fault = errors::option_value(&entry.key.to_string(), &kind.described());
                match &entry.value {
                    Some(value) => errors.on(value, fault),
                    None => errors.on(&entry.key, fault),
                }
            }
        }
    }
}

impl Kind {
    /// The valid values in words, as they stand after "takes".
    fn described(&self) -> String {
        match self {
            Kind::Words(words) => quoted(words),
            Kind::Batch => quoted(&["per_rank", "global"]),
            Kind::Whole(0) => "a whole number, as in `seed = 7`".to_owned(),
            Kind::Whole(_) => "a whole number from 1 up".to_owned(),
            Kind::Number => "a number of MiB above 0, as in `bucket_mb = 25`".to_owned(),
            Kind::Switch | Kind::Explain => "true or false, or stands alone for true".to_owned(),
            Kind::Runtime => "a path in quotes, as in `crate = \"::ddp_runtime\"`".to_owned(),
        }
    }
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" or ")
}

fn literal(value: Option<&Expr>) -> Option<&Lit> {
    match value? {
        Expr::Lit(ExprLit { lit, attrs }) if attrs.is_empty() => Some(lit),
        _ => None,
    }
}

fn text(value: Option<&Expr>) -> Option<&LitStr> {
    match literal(value)? {
        Lit::Str(text) if text.suffix().is_empty() => Some(text),
        _ => None,
    }
}

fn word(value: Option<&Expr>, words: &[&str]) -> Option<LitStr> {
    text(value).filter(|text| words.contains(&text.value().as_str())).cloned()
}

fn batch(value: Option<&Expr>) -> Option<&'static str> {
    match text(value)?.value().as_str() {
        "per_rank" => Some("PerRank"),
        "global" => Some("Global"),
        _ => None,
    }
}

fn whole(value: Option<&Expr>, least: u64) -> Option<LitInt> {
    match literal(value)? {
        Lit::Int(number) if number.suffix().is_empty() => {
            number.base10_parse::<u64>().ok().filter(|given| *given >= least)?;
            Some(number.clone())
        }
        _ => None,
    }
}

/// A number as a float literal, since the runtime takes `f64`.
fn number(value: Option<&Expr>) -> Option<LitFloat> {
    let literal = literal(value)?;
    let given = match literal {
        Lit::Int(number) if number.suffix().is_empty() => number.base10_parse::<u32>().ok()?.into(),
        Lit::Float(number) if number.suffix().is_empty() => number.base10_parse::<f64>().ok()?,
        _ => return None,
    };
    (given > 0.0 && given.is_finite()).then(|| LitFloat::new(&format!("{given:?}"), literal.span()))
}

fn switch(entry: &Entry) -> Option<LitBool> {
    match &entry.value {
        None => Some(LitBool::new(true, entry.key.span())),
        value => match literal(value.as_ref())? {
            Lit::Bool(on) => Some(on.clone()),
            _ => None,
        },
    }
}

/// The path of a `crate = ".."`.
pub(crate) fn runtime_path(value: Option<&Expr>) -> Option<Path> {
    let text = text(value)?;
    let path: Path = text.parse_with(Path::parse_mod_style).ok()?;
    // A bare name means the crate of that name, whatever module the function stands in.
    let bare = path.leading_colon.is_none() && path.segments.len() == 1;
    let keyword = ["crate", "self", "super"].iter().any(|word| path.is_ident(word));
    let colon = (bare && !keyword).then(|| Token![::](text.span()));
    Some(Path { leading_colon: path.leading_colon.or(colon), ..path })
}
