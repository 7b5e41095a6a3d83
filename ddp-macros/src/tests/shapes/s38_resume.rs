//! Load the path just written; resume.
//! has: vs.load("last.ot")?;

#[distributed]
fn train() -> Result<()> {
    if Path::new("last.ot").exists() {
        vs.load("last.ot")?;
        start = vs.root().get("epoch").map_or(0, |t| t.int64_value(&[]));
    }
    Ok(())
}
