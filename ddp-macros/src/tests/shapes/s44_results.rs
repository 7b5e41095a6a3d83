//! Results of every form.
//! has: __ddp_scope.leave(net)
//! has: __ddp_scope.leave_result(Ok((&&&&type_of(&vs)).save_by_type("m.ot", |__ddp_path| vs.save(__ddp_path)).map(|_| best)?))
//! has: loop { self.superbatch() } }

#[distributed]
fn train(data: &Dataset) -> impl Module {
    net
}

#[distributed]
fn best(data: &Dataset) -> Result<f64> {
    Ok(vs.save("m.ot").map(|_| best)?)
}

#[distributed]
fn endless(n: i64) {
    loop {
        self.superbatch()
    }
}
