//! Evaluation in the loop sees the whole set.
//! has: for (x, y) in data.test_iter(256)
//! has: if let Some(opt) = opt.as_mut() { opt.backward_step(&loss); }
//! lacks: Data(&data)).data_by_type(site!()).test_iter

#[distributed]
fn train() -> Result<()> {
    for (x, y) in data.train_iter(64) {
        let loss = net.loss(&x, &y);
        if let Some(opt) = opt.as_mut() {
            opt.backward_step(&loss);
        }
    }
    let accuracy = net.batch_accuracy_for_logits(&data.test_images, &data.test_labels, device, 512);
    let loss = tch::no_grad(|| net.forward(&val_x).mse_loss(&val_y, Reduction::Mean));
    for (x, y) in data.test_iter(256) {
        right += count_right(&net, &x, &y);
    }
    Ok(())
}
