fn output() {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("output"),
    );
    ::ddp_runtime::__private::println(::core::format_args!(""));
    ::ddp_runtime::__private::println(
        ::core::format_args!("{epoch}: {:.4}", f64::try_from(loss) ?),
    );
    ::ddp_runtime::__private::print(::core::format_args!("\r{i}/{n}"));
    ::ddp_runtime::__private::eprint(::core::format_args!("{n}", n = count()));
    match level {
        1 => ::ddp_runtime::__private::println(::core::format_args!("one")),
        2 => {
            if ::ddp_runtime::__private::logs(::ddp_runtime::__private::Level::Info) {
                log::info!("two");
            }
        }
        _ => {
            ::ddp_runtime::__private::eprintln(
                ::core::format_args!(
                    "{}",
                    ::ddp_runtime::__private::dbg(::ddp_runtime::__private::site!(),
                    ::core::stringify!(level), level)
                ),
            )
        }
    }
    let tell = |x: i64| ::ddp_runtime::__private::println(::core::format_args!("{x}"));
    let both = (
        ::ddp_runtime::__private::dbg(
            ::ddp_runtime::__private::site!(),
            ::core::stringify!(left + 1),
            left + 1,
        ),
        ::ddp_runtime::__private::dbg(
            ::ddp_runtime::__private::site!(),
            ::core::stringify!(& right),
            &right,
        ),
    );
    ::ddp_runtime::__private::eprintln(
        ::core::format_args!("[{}]", ::ddp_runtime::__private::site!()),
    );
    if ::ddp_runtime::__private::logs(::ddp_runtime::__private::Level::Info) {
        log::info!("epoch {epoch} loss {mean:.4}");
    }
    log::warn!("still here");
    if ::ddp_runtime::__private::logs(::ddp_runtime::__private::Level::Debug) {
        tracing::debug!(target : "loop", ? loss);
    }
    #[cfg(debug_assertions)]
    ::ddp_runtime::__private::println(::core::format_args!("debug"));
    let bar = ::ddp_runtime::__private::bar(indicatif::ProgressBar::new(n))
        .with_message("epoch");
    let spinner = ::ddp_runtime::__private::bar(ProgressBar::new_spinner());
    writeln!(table, "{epoch},{mean}")?;
    ::ddp_runtime::__private::manual_seed(42);
    ::ddp_runtime::__private::manual_seed({
        let _ = manual_seed;
        seed
    });
    #[allow(unreachable_code)] __ddp_scope.leave(())
}
