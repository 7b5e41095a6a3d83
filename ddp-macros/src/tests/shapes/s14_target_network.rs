//! A target network, and a loop over variables in which nothing steps.
//! has: for (mut t, o) in target_vs.trainable_variables().into_iter().zip(vs.trainable_variables())
//! lacks: start(target

#[distributed]
fn train() -> Result<()> {
    target_vs.copy(&vs)?;
    tch::no_grad(|| {
        for (mut t, o) in target_vs.trainable_variables().into_iter().zip(vs.trainable_variables()) {
            t.copy_(&(&t * 0.995 + o * 0.005));
        }
    });
    Ok(())
}
