//! Index arithmetic and slices without a mark: asked, once for each loop.
//! refused: cannot tell how to share this loop; write #[ddp(shard)], #[ddp(each)] or #[ddp(same)] on it
//! refused: cannot tell how to share this loop; write #[ddp(shard)], #[ddp(each)] or #[ddp(same)] on it
//! refused: cannot tell how to share this loop; write #[ddp(shard)], #[ddp(each)] or #[ddp(same)] on it
//! refused: cannot tell how to share this loop; write #[ddp(each)] if every rank draws its own batches

#[distributed]
fn train() -> Result<()> {
    for start in (0..n).step_by(32) {
        opt.backward_step(&net.loss(&xs.narrow(0, start, 32.min(n - start))));
    }
    for i in 0..n / 32 {
        opt.backward_step(&net.loss(&xs.narrow(0, i * 32, 32)));
    }
    for (i, part) in games.chunks(256).enumerate() {
        opt.backward_step(&net.loss(&to_tensor(part)));
    }
    while start < n {
        opt.backward_step(&net.loss(&xs.narrow(0, start, 32)));
        start += 32;
    }
    Ok(())
}
