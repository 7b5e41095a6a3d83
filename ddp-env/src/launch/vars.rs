//! Typed access to environment variables.

use std::str::FromStr;

use super::error::EnvError;

/// Variables of one process; an empty one counts as not set.
pub(super) struct Vars<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Vars<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { lookup }
    }

    /// The value without the blanks around it.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let value = (self.lookup)(name)?;
        let trimmed = value.trim();
        (!trimmed.is_empty()).then(|| trimmed.to_owned())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// The first of `names` that is set.
    pub(super) fn first<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        names.iter().copied().find(|name| self.has(name))
    }

    /// A count or position, if it is set.
    pub(super) fn number(&self, name: &'static str) -> Result<Option<usize>, EnvError> {
        self.parse(name, "a whole number from 0", "set it to a number, or unset it")
    }

    /// A count or position that `present` makes necessary.
    pub(super) fn required(
        &self,
        name: &'static str,
        present: &'static str,
        cure: &'static str,
    ) -> Result<usize, EnvError> {
        self.number(name)?.ok_or(EnvError::Missing { missing: name, present, cure })
    }

    /// A TCP port, if it is set.
    pub(super) fn port(&self, name: &'static str) -> Result<Option<u16>, EnvError> {
        let (expected, cure) =
            ("a TCP port (1 to 65535)", "set it to a free port of rank 0's host");
        match self.parse(name, expected, cure)? {
            Some(0) => Err(EnvError::Invalid { name, value: "0".to_owned(), expected, cure }),
            other => Ok(other),
        }
    }

    /// Any other number, if it is set.
    pub(super) fn parse<T: FromStr>(
        &self,
        name: &'static str,
        expected: &'static str,
        cure: &'static str,
    ) -> Result<Option<T>, EnvError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match value.parse() {
            Ok(parsed) => Ok(Some(parsed)),
            Err(_) => Err(EnvError::Invalid { name, value, expected, cure }),
        }
    }
}
