fn train() {
    let __ddp_scope = engine::ddp::__private::enter(
        engine::ddp::__private::Options::new("train")
            .backend("gloo")
            .batch(engine::ddp::__private::Batch::Global)
            .loss("sum")
            .sync_batch_norm(true)
            .seed(7)
            .uneven("join")
            .accumulate(4)
            .print("all")
            .timeout_secs(300)
            .bucket_mb(25.0)
            .compress("bf16"),
    );
    work();
    #[allow(unreachable_code)] __ddp_scope.leave(())
}
fn again() {
    let __ddp_scope = ::ddp::__private::enter(
        ::ddp::__private::Options::new("again")
            .batch(::ddp::__private::Batch::PerRank)
            .sync_batch_norm(false)
            .bucket_mb(12.5),
    );
    ::ddp::__private::println(::core::format_args!(""));
    __ddp_scope.leave(())
}
