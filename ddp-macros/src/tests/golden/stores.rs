#[distributed]
fn stores(vs: &nn::VarStore, mut other: &mut VarStore, own: VarStore, named: &Named<VarStore>) {
    let vs = tch::nn::VarStore::new(vs.device());
    vs.save("last.ot").unwrap();
    if let Err(err) = self.vs.save(format!("{epoch}.ot")) {
        eprintln!("{err}");
    }
    self.store()?.save(path)?;
    picture.save(path, 90);
    stores[0].save(&path)
}
