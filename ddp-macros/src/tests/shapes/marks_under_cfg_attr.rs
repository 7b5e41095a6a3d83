//! Marks under the condition that the attribute itself stands under.
//! has: for part in start((&&Items::new(games.chunks(4))).shard())
//! lacks: cfg_attr

#[distributed]
fn train() {
    #[cfg_attr(feature = "ddp", ddp(shard))]
    for part in games.chunks(4) {
        opt.backward_step(&net.loss(part));
    }
}
