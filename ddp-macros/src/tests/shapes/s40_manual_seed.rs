//! manual_seed in the body.
//! has: manual_seed(42);
//! lacks: tch::manual_seed

#[distributed]
fn train() -> Result<()> {
    let vs = nn::VarStore::new(device);
    tch::manual_seed(42);
    let net = Net::new(&vs.root());
    Ok(())
}
