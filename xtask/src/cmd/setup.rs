//! `cargo xtask setup`.

use anyhow::Result;

use crate::workspace::Workspace;
use crate::{setup, style};

/// Provides libtorch and says which one is in use.
pub(crate) fn run(ws: &Workspace) -> Result<()> {
    let libtorch = setup::provide(ws)?;
    let folder = libtorch.folder.display();
    style::doing("Ready", &format!("libtorch {}: target/libtorch -> {folder}", libtorch.version));
    Ok(())
}
