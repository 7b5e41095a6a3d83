extern crate self as ddp_runtime;
#[path = "../../support/stub.rs"]
mod __private;
#[allow(unused_imports)]
use __private::*;
use ddp_macros::distributed;

struct Model(VarStore);

impl std::ops::Deref for Model {
    type Target = VarStore;
    fn deref(&self) -> &VarStore {
        &self.0
    }
}

#[distributed]
fn train(model: &Model) -> Result<(), String> {
    model.save("net.ot")
}

fn main() {}
