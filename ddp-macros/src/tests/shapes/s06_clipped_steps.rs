//! The three one-call forms, in match arms.
//! has: Some(max) => opt.backward_step_clip(&loss, max),
//! has: None => opt.backward_step_clip_norm(loss.as_ref(), 0.5),

#[distributed]
fn train() -> Result<()> {
    for (x, y) in data.train_iter(64) {
        match clip {
            Some(max) => opt.backward_step_clip(&loss, max),
            None => opt.backward_step_clip_norm(loss.as_ref(), 0.5),
        }
    }
    Ok(())
}
