fn train(loader: Loader) {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("train")
            .batch(::ddp_runtime::__private::Batch::Global),
    );
    for epoch in ::ddp_runtime::__private::start(0..9) {
        ::ddp_runtime::__private::epoch(&epoch);
        for (x, y) in ::ddp_runtime::__private::split(loader.batches(epoch)) {
            opt.backward_step(&net.loss(&x, &y));
        }
    }
    __ddp_scope.leave(())
}
