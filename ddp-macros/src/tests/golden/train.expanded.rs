fn train(data: &Dataset, epochs: i64) -> Result<()> {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("train"),
    );
    #[allow(unused_imports)]
    use ::ddp_runtime::__private::by_type::*;
    let vs = ::ddp_runtime::__private::store(
        nn::VarStore::new(::ddp_runtime::__private::device(Device::cuda_if_available())),
    );
    let net = Net::new(&vs.root());
    let mut opt = nn::Adam::default().build(&vs, 1e-3)?;
    for epoch in ::ddp_runtime::__private::start(1..=epochs) {
        ::ddp_runtime::__private::epoch(&epoch);
        for (x, y) in (&&::ddp_runtime::__private::Data(&data))
            .data_by_type(::ddp_runtime::__private::site!())
            .train_iter(64)
            .shuffle()
            .to_device(vs.device())
        {
            let loss = net.forward_t(&x, true).cross_entropy_for_logits(&y);
            opt.backward_step(&loss);
        }
        ::ddp_runtime::__private::println(
            ::core::format_args!("{epoch}: {:.4}", net.accuracy(& data.test_images) ?),
        );
    }
    (&&&&::ddp_runtime::__private::type_of(&vs))
        .save_by_type("net.ot", |__ddp_path| vs.save(__ddp_path))?;
    __ddp_scope.leave_result(Ok(()))
}
