//! The step in another method.
//! has: for (x, y) in start((&&Data(&data)).data_by_type(site!()).train_iter(self.batch)) { self.learn(&x, &y); }

impl Trainer {
    #[distributed]
    fn fit(&mut self, data: &Dataset) {
        for (x, y) in data.train_iter(self.batch) {
            self.learn(&x, &y);
        }
    }
}
