//! The store is a parameter, a field, or inside the model.
//! has: register(vs);
//! has: nn::Sgd::default().build(&self.vs, 0.1).unwrap()
//! lacks: register(net)

impl Trainer {
    #[distributed]
    fn fit(&mut self, vs: &nn::VarStore, net: &Net) -> Result<()> {
        let mut opt = nn::Sgd::default().build(&self.vs, 0.1).unwrap();
        let mut own = config.build(self.model.store(), lr)?;
        Ok(())
    }
}
