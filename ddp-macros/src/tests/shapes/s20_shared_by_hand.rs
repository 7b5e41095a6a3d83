//! Loops whose sharing the user writes himself are left as they are.
//! has: for x in start(ddp_runtime::data::shard(games.chunks(8), scope.share()))
//! has: for (x, y) in start(ShardedIter2::new(&xs, &ys, 64, share, order).shuffle())

#[distributed]
fn train() {
    for x in ddp_runtime::data::shard(games.chunks(8), scope.share()) {
        opt.backward_step(&net.loss(x));
    }
    for (x, y) in ShardedIter2::new(&xs, &ys, 64, share, order).shuffle() {
        opt.backward_step(&net.loss(&x, &y));
    }
}
