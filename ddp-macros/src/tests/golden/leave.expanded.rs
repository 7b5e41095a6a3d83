fn unit() {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("unit"),
    );
    if done() {
        return __ddp_scope.leave(());
    }
    for x in xs {
        work(x);
    }
    __ddp_scope.leave(())
}
fn unit_with_tail() -> () {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("unit_with_tail"),
    );
    #[allow(unreachable_code)] __ddp_scope.leave(finish(|| return 1))
}
fn unit_with_macro() {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("unit_with_macro"),
    );
    ::ddp_runtime::__private::println(::core::format_args!("done"));
    __ddp_scope.leave(())
}
fn never(&self) -> ! {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("never"),
    );
    loop {
        self.superbatch()
    }
}
fn value() -> Result<f64, Error> {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("value"),
    );
    let count = |n: i64| -> i64 { return n + 1 };
    if count(1) > 1 {
        return __ddp_scope.leave_result(Err(Error::Empty));
    }
    __ddp_scope
        .leave_result(
            match find() {
                Some(best) => Ok(best),
                None => return __ddp_scope.leave_result(Ok(f64::try_from(&loss)?)),
            },
        )
}
fn ends_in_a_panic() -> f64 {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("ends_in_a_panic"),
    );
    work();
    todo!("later")
}
fn ends_in_a_return() -> f64 {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("ends_in_a_return"),
    );
    return __ddp_scope.leave(1.0);
}
fn ends_in_a_loop() -> f64 {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("ends_in_a_loop"),
    );
    loop {
        if done() {
            return __ddp_scope.leave(2.0);
        }
    }
}
fn breaks_with_a_value() -> f64 {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("breaks_with_a_value"),
    );
    __ddp_scope
        .leave(
            loop {
                if done() {
                    break 2.0;
                }
            },
        )
}
fn chosen_by_cfg() -> f64 {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("chosen_by_cfg"),
    );
    #[cfg(feature = "cuda")] { __ddp_scope.leave({ 1.0 }) }
    #[cfg(not(feature = "cuda"))] __ddp_scope.leave({ 2.0 })
}
fn ends_the_process() {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("ends_the_process"),
    );
    work();
    std::process::exit(0);
}
fn left_alone() -> i64 {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("left_alone"),
    );
    __ddp_scope
        .leave({
            println!("here");
            1
        })
}
