//! An async function.
//! refused: a collective would block the executor; move the training into a plain function

#[distributed]
async fn train(db: &Pool) -> Result<()> {
    Ok(())
}
