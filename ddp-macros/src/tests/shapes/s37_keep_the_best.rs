//! Keep the best: all ranks decide alike.
//! has: if accuracy > best { best = accuracy; (&&&&type_of(&vs)).save_by_type(

#[distributed]
fn train() -> Result<()> {
    if accuracy > best {
        best = accuracy;
        vs.save("best.ot")?;
    }
    Ok(())
}
