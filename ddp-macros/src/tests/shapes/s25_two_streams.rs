//! Two streams in lock-step: what feeds a marked loop is not shared again, and has one order on all ranks.
//! has: for ((x, y), (_, hint)) in start((&&Items::new(whole_iter2(Iter2::new, site!(), &xs, &ys, 32).zip(whole_iter2(Iter2::new, site!(), &xs, &hints, 32)))).shard())
//! has: let hints = whole_iter2(Iter2::new, site!(), &xs, &hints, 32);
//! lacks: (iter2(

#[distributed]
fn train() -> Result<()> {
    #[ddp(shard)]
    for ((x, y), (_, hint)) in Iter2::new(&xs, &ys, 32).zip(Iter2::new(&xs, &hints, 32)) {
        opt.backward_step(&net.loss(&x, &y, &hint));
    }
    let hints = Iter2::new(&xs, &hints, 32);
    #[ddp(shard)]
    for (hint, x) in hints.zip(more) {
        opt.backward_step(&net.loss(&x, &hint));
    }
    Ok(())
}
