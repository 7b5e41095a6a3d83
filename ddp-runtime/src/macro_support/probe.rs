//! Type-directed dispatch without specialisation: method resolution tries the traits one reference level after the other.
//!
//! `(&&Data(&x)).data(site)` finds [`DataOf`] when `x` is a type it is implemented for (two references), and otherwise, one
//! level down, [`DataOther`], which hands `x` itself back so that its own method is called. The technique is David Tolnay's
//! autoref specialisation.
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use tch::TchError;
use tch::data::TextData;
use tch::nn::VarStore;
use tch::vision::dataset::Dataset;

use super::{batch_rule, deal_out, order};
use crate::data::{ShardedIter2, ShardedTextIter};
use crate::options::Batch;
use crate::save;
use crate::scope::current_share;

/// The receiver of a call that may make batches.
pub struct Data<'a, T>(pub &'a T);

/// A receiver that is known to make batches.
pub trait DataOf<'a> {
    /// What makes them in its place.
    type Source;
    /// The source, whose batches are dealt out; `site` is where in the program it stands.
    fn data(&self, site: &'static str) -> Self::Source;
    /// The source of whole batches, in one order on all ranks.
    fn whole(&self, site: &'static str) -> Self::Source;
}

/// Any other receiver.
pub trait DataOther<'a, T> {
    /// The receiver itself.
    fn data(&self, site: &'static str) -> &'a T;
    /// The receiver itself.
    fn whole(&self, site: &'static str) -> &'a T;
}

impl<'a, T> DataOther<'a, T> for Data<'a, T> {
    fn data(&self, _site: &'static str) -> &'a T {
        self.0
    }

    fn whole(&self, _site: &'static str) -> &'a T {
        self.0
    }
}

/// A data set of tch, shared.
pub struct SharedDataset<'a> {
    data: &'a Dataset,
    site: &'static str,
    whole: bool,
}

impl SharedDataset<'_> {
    /// As `Dataset::train_iter`, this rank's share.
    #[must_use]
    pub fn train_iter(&self, batch_size: i64) -> ShardedIter2 {
        let (xs, ys) = (&self.data.train_images, &self.data.train_labels);
        if self.whole {
            super::whole_iter2((), self.site, xs, ys, batch_size)
        } else {
            super::shared_rows(self.site, xs, ys, batch_size)
        }
    }
}

/// A text of tch, shared.
pub struct SharedText<'a> {
    data: &'a TextData,
    site: &'static str,
    whole: bool,
}

impl SharedText<'_> {
    /// As `TextData::iter_shuffle`, this rank's share.
    #[must_use]
    pub fn iter_shuffle(&self, seq_len: i64, batch_size: i64) -> ShardedTextIter {
        let (text, share) = (self.data, current_share());
        if self.whole {
            let order = super::whole_order(self.site);
            return ShardedTextIter::whole(text, seq_len, batch_size, share, order);
        }
        deal_out();
        match batch_rule() {
            Batch::PerRank => {
                ShardedTextIter::new(text, seq_len, batch_size, share, order(self.site))
            }
            Batch::Global => ShardedTextIter::split(text, seq_len, batch_size, share),
        }
    }
}

macro_rules! known_data {
    ($source:ident: $($holder:ty),*) => {$(
        impl<'a> DataOf<'a> for &Data<'a, $holder> {
            type Source = $source<'a>;
            fn data(&self, site: &'static str) -> $source<'a> {
                $source { data: self.0, site, whole: false }
            }
            fn whole(&self, site: &'static str) -> $source<'a> {
                $source { data: self.0, site, whole: true }
            }
        }
    )*};
}
known_data!(SharedDataset: Dataset, &Dataset, &mut Dataset, Box<Dataset>, Rc<Dataset>, Arc<Dataset>, &Arc<Dataset>, &Rc<Dataset>);
known_data!(SharedText: TextData, &TextData, &mut TextData, Box<TextData>, Rc<TextData>, Arc<TextData>, &Arc<TextData>, &Rc<TextData>);

/// The type of a receiver, without a borrow of it.
pub struct TypeOf<T: ?Sized>(PhantomData<fn() -> *const T>);

/// The type of `_value`.
pub fn type_of<T: ?Sized>(_value: &T) -> TypeOf<T> {
    TypeOf(PhantomData)
}

/// A receiver whose `save` writes a variable store.
pub trait SaveStore {
    /// The main rank saves, the others wait; all get its result.
    ///
    /// # Errors
    /// As `VarStore::save`; also when the other ranks cannot be waited for.
    fn save<P: AsRef<Path>>(
        &self,
        path: P,
        write: impl FnOnce(PathBuf) -> Result<(), TchError>,
    ) -> Result<(), TchError>;
}

/// Any other receiver: its own method, as written.
pub trait SaveOther {
    /// Calls it.
    fn save<P, R>(&self, path: P, write: impl FnOnce(P) -> R) -> R;
}

impl<T: ?Sized> SaveOther for TypeOf<T> {
    fn save<P, R>(&self, path: P, write: impl FnOnce(P) -> R) -> R {
        write(path)
    }
}

macro_rules! known_stores {
    ($($holder:ty),*) => {$(
        impl SaveStore for &TypeOf<$holder> {
            fn save<P: AsRef<Path>>(
                &self,
                path: P,
                write: impl FnOnce(PathBuf) -> Result<(), TchError>,
            ) -> Result<(), TchError> {
                save::store(path.as_ref(), write)
            }
        }
    )*};
}
known_stores!(VarStore, &VarStore, &mut VarStore, Box<VarStore>, Rc<VarStore>, Arc<VarStore>);
