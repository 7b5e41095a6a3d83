//! No step to be seen: accepted as it is.
//! has: for part in games.chunks(4) { learner.learn(part); }
//! lacks: start(

#[distributed]
fn train() -> Result<()> {
    for part in games.chunks(4) {
        learner.learn(part);
    }
    Ok(())
}
