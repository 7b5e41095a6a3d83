//! Methods, trait methods, generics.
//! has: fn fit<C: OptimizerConfig>(&mut self, config: C, data: &Dataset) -> Result<f64> {

trait Learner: Sized {
    #[distributed]
    fn fit<C: OptimizerConfig>(&mut self, config: C, data: &Dataset) -> Result<f64> {
        Ok(self.run(config, data)?)
    }
}
