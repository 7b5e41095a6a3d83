//! An unseeded shuffle beside a `shard` loop.
//! refused: each rank would draw another order here; use a seeded generator

#[distributed]
fn train() -> Result<()> {
    rows.shuffle(&mut thread_rng());
    #[ddp(shard)]
    for row in rows {
        opt.backward_step(&net.loss(row));
    }
    Ok(())
}
