//! Frozen and unused parts need no flag.
//! has: teacher_vs.freeze();
//! has: if use_aux { aux.loss(&x) } else { Tensor::from(0f32) }

#[distributed]
fn train() -> Result<()> {
    teacher_vs.freeze();
    for (x, _) in data.train_iter(64) {
        let hint = teacher.forward(&x);
        let loss = student.loss(&x, &hint) + if use_aux { aux.loss(&x) } else { Tensor::from(0f32) };
        opt.backward_step(&loss);
    }
    Ok(())
}
