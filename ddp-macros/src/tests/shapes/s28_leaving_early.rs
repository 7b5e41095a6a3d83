//! Leaving early by the clock, by the validation set, by a vote, in a loop that samples.
//! has: if started.elapsed() > limit { break 'epochs; }
//! has: if validation_loss(&net) > best { break; }
//! has: if should_stop(f64::try_from(&loss)? < 0.1) { break; }

#[distributed]
fn train() -> Result<()> {
    'epochs: for epoch in 0..100 {
        for (x, y) in data.train_iter(64).shuffle() {
            let loss = net.loss(&x, &y);
            opt.backward_step(&loss);
            if started.elapsed() > limit {
                break 'epochs;
            }
            if should_stop(f64::try_from(&loss)? < 0.1) {
                break;
            }
            loop {
                let action = net.sample(&x);
                if action.double_value(&[]) > 0.5 {
                    break;
                }
            }
            match f64::try_from(&loss)? {
                value if value > 1.0 => break,
                _ => {}
            }
        }
        let mut sum = 0.0;
        for (x, y) in data.test_iter(256) {
            sum += f64::try_from(&net.loss(&x, &y))?;
        }
        if sum > best {
            break;
        }
        if validation_loss(&net) > best {
            break;
        }
    }
    Ok(())
}
