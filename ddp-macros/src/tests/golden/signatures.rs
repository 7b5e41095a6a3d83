trait Learner: Sized {
    /// Fits.
    #[distributed]
    #[allow(clippy::too_many_lines)]
    fn fit<'a, C: OptimizerConfig, const N: usize>(&'a mut self, config: C, data: &'a Dataset) -> Result<f64>
    where
        Self: 'a,
    {
        self.run::<N>(config, data)
    }
}

impl Learner for Net {
    #[distributed]
    #[inline]
    pub(crate) unsafe extern "C" fn raw(self: Box<Self>, (a, _): (i64, i64)) -> impl Module + use<> {
        self.model(a)
    }
}

#[distributed]
fn r#loop() {
    #![allow(clippy::needless_return)]
    work();
    return;
}
