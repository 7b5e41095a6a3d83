//! A `save` of a closure or of more arguments is no store's.
//! has: model.save(|w| w.flush());
//! has: picture.save(&path, 90);

#[distributed]
fn train() {
    model.save(|w| w.flush());
    picture.save(&path, 90);
}
