fn train(
    loader: &DataLoader<(Tensor, Tensor)>,
    own: &Own,
    opt: &mut Optimizer,
) -> Result<()> {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("train"),
    );
    #[allow(unused_imports)]
    use ::ddp_runtime::__private::by_type::*;
    for epoch in ::ddp_runtime::__private::start(0..10) {
        ::ddp_runtime::__private::epoch(&epoch);
        for batch in ::ddp_runtime::__private::batches(loader) {
            let (x, y) = batch?;
            opt.backward_step(&loss(&x, &y));
        }
        for batch in ::ddp_runtime::__private::batches(loader.iter().take(5)) {
            let (x, y) = batch?;
            opt.backward_step(&loss(&x, &y));
        }
        for (k, batch) in ::ddp_runtime::__private::batches(
            own.loader.batches().enumerate(),
        ) {
            let (x, y) = batch?;
            opt.backward_step(&loss(&x, &y));
        }
        for batch in (&&::ddp_runtime::__private::Items::new(own.stream.batches()))
            .shard()
        {
            opt.backward_step(&own.loss(&batch));
        }
    }
    let right = DataLoader::builder(own.test()).evaluation().build()?;
    let mut hits = 0.0;
    for batch in ::ddp_runtime::__private::start(&right) {
        let (x, y) = batch?;
        hits += own.hits(&x, &y);
    }
    for batch in ::ddp_runtime::__private::start(
        ::ddp_runtime::__private::batches(dispatch(|| own.lines(), Dispatch::Split)),
    ) {
        opt.backward_step(&own.loss(&batch?));
    }
    let count = own.batches();
    ::ddp_runtime::__private::println(::core::format_args!("{} of {count}", sum(hits)));
    __ddp_scope.leave_result(Ok(()))
}
