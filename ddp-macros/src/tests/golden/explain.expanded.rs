/// Trains a net.
///
/// # On several ranks
///
/// What `#[distributed]` changed, by line:
///
/// - 3: the variable store is registered
/// - 4: a CUDA device is the device of the rank
/// - 5: the seed counts for all ranks until the weights are equal, then mixed with the rank
/// - 6: before this loop the weights become equal on every rank
/// - 6: `epoch` is the epoch that the order of the batches follows
/// - 7: the batches are dealt out, to each rank its own
/// - 10: this goes out on the main rank
/// - 11: a variable store is saved by the main rank, and the others wait for its result
/// - 13: where another rank was faster, the error of this folder says what to write
/// - 14: before this loop the weights become equal on every rank
/// - 15: the batches are dealt out, to each rank its own
/// - 15: the progress bar shows on the main rank
/// - 18: this goes out on the main rank
/// - 19: `self.epoch` is the epoch that the order of the batches follows
/// - 22: each rank runs all items, on data of its own
/// - 22: before this loop the weights become equal on every rank
fn train(vs: &nn::VarStore, data: &Dataset) -> Result<()> {
    let __ddp_scope = ::ddp_runtime::__private::enter(
        ::ddp_runtime::__private::Options::new("train"),
    );
    #[allow(unused_imports)]
    use ::ddp_runtime::__private::by_type::*;
    ::ddp_runtime::__private::register(vs);
    let device = ::ddp_runtime::__private::device(Device::Cuda(0));
    ::ddp_runtime::__private::manual_seed(1);
    for epoch in ::ddp_runtime::__private::start(0..9) {
        ::ddp_runtime::__private::epoch(&epoch);
        for (x, y) in (&&::ddp_runtime::__private::Data(&data))
            .data_by_type(::ddp_runtime::__private::site!())
            .train_iter(64)
        {
            opt.backward_step(&net.loss(&x, &y));
        }
        ::ddp_runtime::__private::println(
            ::core::format_args!(
                "{epoch}: {}",
                ::ddp_runtime::__private::dbg(::ddp_runtime::__private::site!(),
                ::core::stringify!(epoch), epoch)
            ),
        );
        (&&&&::ddp_runtime::__private::type_of(&vs))
            .save_by_type("last.ot", |__ddp_path| vs.save(__ddp_path))?;
    }
    ::ddp_runtime::__private::new_folder(std::fs::create_dir("runs"))?;
    ::ddp_runtime::__private::synchronize();
    while self.epoch < 9 {
        ::ddp_runtime::__private::epoch(&self.epoch);
        for x in ::ddp_runtime::__private::progress!(
            (& & ::ddp_runtime::__private::Data(& corpus))
            .data_by_type(::ddp_runtime::__private::site!()).iter_shuffle(8, 4)
            .progress()
        ) {
            opt.backward_step(&net.text_loss(&x));
        }
        if ::ddp_runtime::__private::logs(::ddp_runtime::__private::Level::Info) {
            log!(Level::Info, "epoch {}", self.epoch);
        }
        self.epoch += 1;
    }
    ::ddp_runtime::__private::synchronize();
    loop {
        opt.backward_step(&net.sample());
    }
}
