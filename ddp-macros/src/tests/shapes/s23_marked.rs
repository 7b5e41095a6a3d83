//! Index arithmetic and slices with a mark.
//! has: for start in start((&&Items::new((0..n).step_by(32))).shard())
//! has: for (i, part) in start((&&Items::new(games.chunks(256).enumerate())).shard())

#[distributed]
fn train() -> Result<()> {
    #[ddp(shard)]
    for start in (0..n).step_by(32) {
        opt.backward_step(&net.loss(&xs.narrow(0, start, 32.min(n - start))));
    }
    #[ddp(shard)]
    for (i, part) in games.chunks(256).enumerate() {
        step(&to_tensor(part));
    }
    Ok(())
}
