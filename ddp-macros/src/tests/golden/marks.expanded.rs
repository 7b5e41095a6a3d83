fn marked(games: &[Game]) {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("marked"),
    );
    #[allow(unused_imports)]
    use ::ddp_runtime::__private::by_type::*;
    for start in ::ddp_runtime::__private::start(
        (&&::ddp_runtime::__private::Items::new((0..n).step_by(32))).shard(),
    ) {
        opt.backward_step(&net.loss(&xs.narrow(0, start, 32.min(n - start))));
    }
    for ((x, y), (_, hint)) in ::ddp_runtime::__private::start(
        (&&::ddp_runtime::__private::Items::new(
            ::ddp_runtime::__private::whole_iter2(
                    Iter2::new,
                    ::ddp_runtime::__private::site!(),
                    &xs,
                    &ys,
                    32,
                )
                .zip(
                    ::ddp_runtime::__private::whole_iter2(
                        Iter2::new,
                        ::ddp_runtime::__private::site!(),
                        &xs,
                        &hints,
                        32,
                    ),
                ),
        ))
            .shard(),
    ) {
        opt.backward_step(&net.loss(&x, &y, &hint));
    }
    let own = data.train_iter(32);
    for (x, y) in ::ddp_runtime::__private::start(::ddp_runtime::__private::each(own)) {
        opt.backward_step(&net.loss(&x, &y));
    }
    ::ddp_runtime::__private::synchronize();
    while let Ok(batch) = receiver.recv() {
        for (x, y) in Iter2::new(&batch.xs, &batch.ys, 32) {
            opt.backward_step(&net.loss(&x, &y));
        }
    }
    for fold in ::ddp_runtime::__private::start(::ddp_runtime::__private::same(folds)) {
        for (x, y) in ::ddp_runtime::__private::iter2(
            Iter2::new,
            ::ddp_runtime::__private::site!(),
            &fold.xs,
            &fold.ys,
            32,
        ) {
            opt.backward_step(&net.loss(&x, &y));
        }
    }
    println!("every rank says this");
    for part in games.chunks(256) {
        for one in part {
            println!("{one}");
            opt.backward_step(&net.loss(one));
        }
    }
    __ddp_scope.leave(())
}
