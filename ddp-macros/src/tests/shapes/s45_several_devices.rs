//! Several devices in one function.
//! refused: this function places work on several devices itself; use one device

#[distributed]
fn train() -> Result<()> {
    let stores: Vec<_> = (0..8).map(|i| nn::VarStore::new(Device::Cuda(i))).collect();
    Ok(())
}
