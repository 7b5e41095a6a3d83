//! One line of the doctor.

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ok,
    /// Training works, but not as well as it could.
    Warn,
    /// Training does not work.
    Missing,
}

/// What was found about one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) state: State,
    pub(super) subject: &'static str,
    pub(super) text: String,
    pub(super) cure: Option<String>,
}

impl Finding {
    pub(super) fn ok(subject: &'static str, text: impl Into<String>) -> Self {
        Self { state: State::Ok, subject, text: text.into(), cure: None }
    }

    pub(super) fn warn(
        subject: &'static str,
        text: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self { state: State::Warn, subject, text: text.into(), cure: Some(cure.into()) }
    }

    pub(super) fn missing(
        subject: &'static str,
        text: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self { state: State::Missing, subject, text: text.into(), cure: Some(cure.into()) }
    }
}

/// `1.5 GiB`, `64 MiB`.
pub(super) fn size(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    if bytes >= GIB {
        format!("{}.{} GiB", bytes / GIB, bytes % GIB * 10 / GIB)
    } else {
        format!("{} MiB", bytes >> 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(64 << 20), "64 MiB");
        assert_eq!(size((3 << 30) + (1 << 29)), "3.5 GiB");
    }
}
