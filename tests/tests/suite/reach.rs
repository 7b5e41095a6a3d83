//! Wherever the backward stands, an annotated program follows the course of one process.
use crate::worker;

macro_rules! places {
    ($($name:ident: $place:literal;)*) => {$(
        #[test]
        fn $name() {
            for ranks in [1, 2, 3] {
                let _ = worker("reach").arg($place).ranks(ranks).run().success();
            }
        }
    )*};
}
places! {
    in_a_helper: "helper";
    in_a_method: "method";
    in_a_closure: "closure";
    in_an_own_optimizer: "own-optimizer";
}
