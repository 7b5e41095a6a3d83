//! Generators of the rand crate are left as written.
//! has: rows.shuffle(&mut rng);

#[distributed]
fn train() -> Result<()> {
    let mut rng = StdRng::seed_from_u64(7);
    rows.shuffle(&mut rng);
    let (train, test) = rows.split_at(rows.len() * 4 / 5);
    let batch: Vec<_> = train.choose_multiple(&mut rng, 32).collect();
    #[ddp(shard)]
    for row in train {
        opt.backward_step(&net.loss(row));
    }
    Ok(())
}
