fn stores(
    vs: &nn::VarStore,
    mut other: &mut VarStore,
    own: VarStore,
    named: &Named<VarStore>,
) {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("stores"),
    );
    #[allow(unused_imports)]
    use ::ddp_runtime::__private::by_type::*;
    ::ddp_runtime::__private::register(vs);
    ::ddp_runtime::__private::register(&*other);
    ::ddp_runtime::__private::register(&own);
    let vs = ::ddp_runtime::__private::store(tch::nn::VarStore::new(vs.device()));
    (&&&&::ddp_runtime::__private::type_of(&vs))
        .save_by_type("last.ot", |__ddp_path| vs.save(__ddp_path))
        .unwrap();
    if let Err(err) = (&&&&::ddp_runtime::__private::type_of(&self.vs))
        .save_by_type(format!("{epoch}.ot"), |__ddp_path| self.vs.save(__ddp_path))
    {
        ::ddp_runtime::__private::eprintln(::core::format_args!("{err}"));
    }
    (match (self.store()?) {
        mut __ddp_receiver => {
            (&&&&::ddp_runtime::__private::type_of(&__ddp_receiver))
                .save_by_type(path, |__ddp_path| __ddp_receiver.save(__ddp_path))
        }
    })?;
    picture.save(path, 90);
    #[allow(unreachable_code)]
    __ddp_scope
        .leave(
            (&&&&::ddp_runtime::__private::type_of(&stores[0]))
                .save_by_type(&path, |__ddp_path| stores[0].save(__ddp_path)),
        )
}
