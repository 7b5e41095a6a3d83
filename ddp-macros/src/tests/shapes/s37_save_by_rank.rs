//! A save under a condition on the rank.
//! refused: save waits for all ranks; take it out of the branch

#[distributed]
fn train() -> Result<()> {
    if rank() == 0 {
        vs.save("best.ot")?;
    }
    Ok(())
}
