fn iterators(xs: &Tensor, ys: &Tensor) {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("iterators"),
    );
    #[allow(unused_imports)]
    use ::ddp_runtime::__private::by_type::*;
    for (x, y) in ::ddp_runtime::__private::start(
        ::ddp_runtime::__private::iter2(
                Iter2::new,
                ::ddp_runtime::__private::site!(),
                &xs,
                &ys,
                32,
            )
            .to_device(device)
            .shuffle(),
    ) {
        step(&x, &y);
    }
    for text in ::ddp_runtime::__private::start(
        (&&::ddp_runtime::__private::Data(&corpus))
            .data_by_type(::ddp_runtime::__private::site!())
            .iter_shuffle(SEQ + 1, 16),
    ) {
        step_text(&text);
    }
    let mut it = ::ddp_runtime::__private::f_iter2(
        tch::data::Iter2::f_new,
        ::ddp_runtime::__private::site!(),
        &xs,
        &ys,
        32,
    )?;
    it.shuffle().return_smaller_last_batch();
    for (i, (x, y)) in ::ddp_runtime::__private::start(it.enumerate().take(50)) {
        step(&x, &y);
    }
    (&&::ddp_runtime::__private::Data(&self.data()))
        .data_by_type(::ddp_runtime::__private::site!())
        .train_iter(32)
        .for_each(|(x, y)| step(&x, &y));
    let n = (&&::ddp_runtime::__private::Data(&data))
        .data_by_type(::ddp_runtime::__private::site!())
        .train_iter(32)
        .count();
    for (x, y) in data.test_iter(256) {
        right += count_right(&net, &x, &y);
    }
    __ddp_scope.leave(())
}
