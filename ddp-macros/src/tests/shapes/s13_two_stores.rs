//! Two stores, frozen in turn.
//! has: let gen_vs = store(nn::VarStore::new(device));
//! has: let disc_vs = store(nn::VarStore::new(device));
//! has: gen_vs.freeze(); disc_vs.unfreeze(); disc_opt.backward_step(&disc_loss);

#[distributed]
fn train() -> Result<()> {
    let gen_vs = nn::VarStore::new(device);
    let disc_vs = nn::VarStore::new(device);
    for (x, _) in data.train_iter(64) {
        gen_vs.freeze();
        disc_vs.unfreeze();
        disc_opt.backward_step(&disc_loss);
    }
    Ok(())
}
