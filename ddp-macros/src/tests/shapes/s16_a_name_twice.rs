//! A name used twice: what is registered is the value.
//! has: let vs = store(nn::VarStore::new(device));
//! has: let mut vs = store(nn::VarStore::new(Device::Cpu));

#[distributed]
fn train() -> Result<()> {
    let vs = nn::VarStore::new(device);
    let mut opt = nn::Adam::default().build(&vs, 1e-3)?;
    let net = Net::new(&vs.root());
    let mut vs = nn::VarStore::new(Device::Cpu);
    Ok(())
}
