fn epochs() {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("epochs"),
    );
    #[allow(unused_imports)]
    use ::ddp_runtime::__private::by_type::*;
    'epochs: for epoch in ::ddp_runtime::__private::start(start..n) {
        ::ddp_runtime::__private::epoch(&epoch);
        for (x, y) in (&&::ddp_runtime::__private::Data(&data))
            .data_by_type(::ddp_runtime::__private::site!())
            .train_iter(64)
            .shuffle()
        {
            step(&x, &y);
            if should_stop(late()) {
                break 'epochs;
            }
        }
    }
    ::ddp_runtime::__private::synchronize();
    while epoch < config.epochs {
        ::ddp_runtime::__private::epoch(&epoch);
        for (x, y) in (&&::ddp_runtime::__private::Data(&data))
            .data_by_type(::ddp_runtime::__private::site!())
            .train_iter(64)
            .shuffle()
        {
            step(&x, &y);
        }
        epoch += 1;
    }
    for fold in ::ddp_runtime::__private::start(0..5) {
        for epoch in 0..10 {
            ::ddp_runtime::__private::epoch(&epoch);
            for (x, y) in (&&::ddp_runtime::__private::Data(&data))
                .data_by_type(::ddp_runtime::__private::site!())
                .train_iter(64)
            {
                step(&x, &y);
            }
        }
    }
    for path in ::ddp_runtime::__private::start(&paths) {
        for (x, y) in (&&::ddp_runtime::__private::Data(&load(path)))
            .data_by_type(::ddp_runtime::__private::site!())
            .train_iter(64)
        {
            step(&x, &y);
        }
    }
    for step in ::ddp_runtime::__private::start(0..5000) {
        let index = Tensor::randint(n, [64], kind::INT64_CPU);
        opt.backward_step(&net.loss(&xs.index_select(0, &index)));
    }
    for i in ::ddp_runtime::__private::start(bar.wrap_iter(0..n)) {
        opt.backward_step(&net.loss(&xs));
    }
    #[cfg(feature = "endless")] ::ddp_runtime::__private::synchronize();
    #[cfg(feature = "endless")]
    loop {
        for (x, y) in (&&::ddp_runtime::__private::Data(&data))
            .data_by_type(::ddp_runtime::__private::site!())
            .train_iter(64)
        {
            step(&x, &y);
        }
    }
}
