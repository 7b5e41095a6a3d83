trait Learner: Sized {
    /// Fits.
    #[allow(clippy::too_many_lines)]
    fn fit<'a, C: OptimizerConfig, const N: usize>(
        &'a mut self,
        config: C,
        data: &'a Dataset,
    ) -> Result<f64>
    where
        Self: 'a,
    {
        let __ddp_scope = ::ddp_runtime::__private::enter(
            ::ddp_runtime::__private::Options::new("fit"),
        );
        #[allow(unreachable_code)] __ddp_scope.leave_result(self.run::<N>(config, data))
    }
}
impl Learner for Net {
    #[inline]
    pub(crate) unsafe extern "C" fn raw(
        self: Box<Self>,
        (a, _): (i64, i64),
    ) -> impl Module + use<> {
        let __ddp_scope = ::ddp_runtime::__private::enter(
            ::ddp_runtime::__private::Options::new("raw"),
        );
        #[allow(unreachable_code)] __ddp_scope.leave(self.model(a))
    }
}
fn r#loop() {
    #![allow(clippy::needless_return)]
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("loop"),
    );
    work();
    return __ddp_scope.leave(());
}
