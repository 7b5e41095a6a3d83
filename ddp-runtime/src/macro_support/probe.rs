//! Type-directed dispatch without specialisation: method resolution tries the traits one reference level after the other.
//!
//! `(&&Data(&x)).data_by_type(site)` finds [`DataOf`] when `x` is a type it is implemented for (two references), and otherwise,
//! one level down, [`DataOther`]. The technique is David Tolnay's autoref specialisation.
//!
//! What holds a known type by a pointer of std is known as well, to any depth, since those have no methods of their own that
//! could be meant. Of other types that point to one it cannot be told whose method is meant; they are refused by the compiler, on
//! the user's call.
use std::cell::{Ref, RefMut};
use std::marker::PhantomData;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, MutexGuard, RwLockReadGuard, RwLockWriteGuard};

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

/// What makes batches that can be dealt out: a data set of tch, or a pointer to one.
pub trait KnownData<'a> {
    /// What makes them in its place.
    type Shared;
    /// That, for batches that are dealt out, or whole ones; `site` is where in the program the call stands.
    fn shared(&'a self, site: &'static str, whole: bool) -> Self::Shared;
}

/// A receiver that is known to make batches.
pub trait DataOf<'a> {
    /// What makes them in its place.
    type Shared;
    /// The source, whose batches are dealt out; `site` is where in the program it stands.
    fn data_by_type(&self, site: &'static str) -> Self::Shared;
    /// The source of whole batches, in one order on all ranks, for a loop that is marked.
    fn whole_by_type(&self, site: &'static str) -> Self::Shared;
}

impl<'a, T: KnownData<'a>> DataOf<'a> for &Data<'a, T> {
    type Shared = T::Shared;

    fn data_by_type(&self, site: &'static str) -> T::Shared {
        self.0.shared(site, false)
    }

    fn whole_by_type(&self, site: &'static str) -> T::Shared {
        self.0.shared(site, true)
    }
}

/// Any other receiver: without a mark nobody says how its batches are to be shared, so that the ranks would all train on the same
/// ones.
pub trait DataOther<'a, T> {
    /// Never called: no type is `Shareable`.
    fn data_by_type(&self, site: &'static str) -> &'a T
    where
        T: Shareable;
    /// The receiver itself, whose batches the marked loop deals out, or does not.
    fn whole_by_type(&self, site: &'static str) -> &'a T;
}

impl<'a, T> DataOther<'a, T> for Data<'a, T> {
    fn data_by_type(&self, _site: &'static str) -> &'a T
    where
        T: Shareable,
    {
        self.0
    }

    fn whole_by_type(&self, _site: &'static str) -> &'a T {
        self.0
    }
}

/// Implemented for nothing: its absence is what the compiler reports.
#[diagnostic::on_unimplemented(
    message = "cannot tell how to share the batches of `{Self}` among the ranks",
    label = "not one of tch's data sets",
    note = "write #[ddp(shard)], #[ddp(each)] or #[ddp(same)] on the loop that takes them, or #[ddp(skip)] on this statement if \
            they are not trained on"
)]
pub trait Shareable {}

/// A data set of tch, shared.
pub struct SharedDataset<'a> {
    data: &'a Dataset,
    site: &'static str,
    whole: bool,
}

impl<'a> KnownData<'a> for Dataset {
    type Shared = SharedDataset<'a>;
    fn shared(&'a self, site: &'static str, whole: bool) -> SharedDataset<'a> {
        SharedDataset { data: self, site, whole }
    }
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

impl<'a> KnownData<'a> for TextData {
    type Shared = SharedText<'a>;
    fn shared(&'a self, site: &'static str, whole: bool) -> SharedText<'a> {
        SharedText { data: self, site, whole }
    }
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

/// The type of a receiver, without a borrow of it.
pub struct TypeOf<T: ?Sized>(PhantomData<fn() -> *const T>);

/// The type of `_value`.
pub fn type_of<T: ?Sized>(_value: &T) -> TypeOf<T> {
    TypeOf(PhantomData)
}

/// A variable store, or a pointer to one.
pub trait IsStore {}

impl IsStore for VarStore {}

/// A receiver whose `save` writes a variable store.
pub trait SaveStore {
    /// The main rank saves, the others wait; all get its result.
    ///
    /// # Errors
    /// As `VarStore::save`; also when the other ranks cannot be waited for.
    fn save_by_type<P: AsRef<Path>>(
        &self,
        path: P,
        write: impl FnOnce(PathBuf) -> Result<(), TchError>,
    ) -> Result<(), TchError>;
}

impl<T: IsStore + ?Sized> SaveStore for &&&TypeOf<T> {
    fn save_by_type<P: AsRef<Path>>(
        &self,
        path: P,
        write: impl FnOnce(PathBuf) -> Result<(), TchError>,
    ) -> Result<(), TchError> {
        save::store(path.as_ref(), write)
    }
}

/// A receiver that points to a variable store and may have a `save` of its own: refused.
pub trait SaveUnclear<T: ?Sized> {
    /// Never called: no type is `SavesItself`.
    fn save_by_type<P, R>(&self, path: P, write: impl FnOnce(P) -> R) -> R
    where
        T: SavesItself;
}

/// As [`SaveUnclear`], through one more pointer.
pub trait SaveUnclearBehind<T: ?Sized> {
    /// Never called: no type is `SavesItself`.
    fn save_by_type<P, R>(&self, path: P, write: impl FnOnce(P) -> R) -> R
    where
        T: SavesItself;
}

impl<T: Deref<Target: IsStore> + ?Sized> SaveUnclear<T> for &&TypeOf<T> {
    fn save_by_type<P, R>(&self, path: P, write: impl FnOnce(P) -> R) -> R
    where
        T: SavesItself,
    {
        write(path)
    }
}

impl<T: Deref<Target: Deref<Target: IsStore>> + ?Sized> SaveUnclearBehind<T::Target>
    for &TypeOf<T>
{
    fn save_by_type<P, R>(&self, path: P, write: impl FnOnce(P) -> R) -> R
    where
        T::Target: SavesItself,
    {
        write(path)
    }
}

/// Implemented for nothing: its absence is what the compiler reports.
#[diagnostic::on_unimplemented(
    message = "cannot tell whether `save` is that of the variable store or one of `{Self}` itself",
    label = "this points to a variable store",
    note = "write `(*x).save(path)`, with as many `*` as lead to the store, to have the main rank save it, or #[ddp(skip)] on the \
            statement if every rank is to call this"
)]
pub trait SavesItself {}

/// Any other receiver: its own method, as written.
pub trait SaveOther {
    /// Calls it.
    fn save_by_type<P, R>(&self, path: P, write: impl FnOnce(P) -> R) -> R;
}

impl<T: ?Sized> SaveOther for TypeOf<T> {
    fn save_by_type<P, R>(&self, path: P, write: impl FnOnce(P) -> R) -> R {
        write(path)
    }
}

/// What is known of a type is known of std's pointers to it.
macro_rules! through_pointers {
    ($($pointer:ty),*) => {$(
        impl<T: IsStore + ?Sized> IsStore for $pointer {}

        impl<'a, T: KnownData<'a> + ?Sized> KnownData<'a> for $pointer {
            type Shared = T::Shared;
            fn shared(&'a self, site: &'static str, whole: bool) -> T::Shared {
                (**self).shared(site, whole)
            }
        }
    )*};
}
through_pointers!(
    &T,
    &mut T,
    Box<T>,
    Rc<T>,
    Arc<T>,
    Ref<'_, T>,
    RefMut<'_, T>,
    MutexGuard<'_, T>,
    RwLockReadGuard<'_, T>,
    RwLockWriteGuard<'_, T>
);
