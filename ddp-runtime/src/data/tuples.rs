//! How many parts a tuple may have that is a sample or a batch.

/// Hands `$implement!`, which implements a trait for one tuple, the parts and places of each tuple of up to six.
macro_rules! each_tuple {
    ($implement:ident) => {
        $implement!(A 0);
        $implement!(A 0, B 1);
        $implement!(A 0, B 1, C 2);
        $implement!(A 0, B 1, C 2, D 3);
        $implement!(A 0, B 1, C 2, D 3, E 4);
        $implement!(A 0, B 1, C 2, D 3, E 4, F 5);
    };
}

pub(crate) use each_tuple;
