//! A stand-in for the runtime's private module: it notes each call, so that tests can tell what ran.
//!
//! It is free of libtorch. `Dataset`, `TextData`, `VarStore` and the like stand for tch's types.

#![allow(dead_code, unused_macros, unused_imports, missing_docs, unreachable_pub)]
#![allow(clippy::pedantic, clippy::nursery)]

use std::any::{Any, type_name};
use std::cell::RefCell;
use std::fmt::{Arguments, Debug, Display};
use std::ops::Deref;
use std::path::{Path, PathBuf};

thread_local! {
    static NOTES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Notes something that happened.
pub fn note(text: impl Display) {
    NOTES.with_borrow_mut(|notes| notes.push(text.to_string()));
}

/// Everything noted on this thread since the last call.
pub fn notes() -> Vec<String> {
    NOTES.take()
}

#[derive(Debug)]
pub enum Batch {
    PerRank,
    Global,
}

#[derive(Debug, Clone, Copy)]
pub enum Level {
    Info,
    Debug,
    Trace,
}

#[derive(Default)]
pub struct Options(String);

impl Options {
    pub fn new(name: &str) -> Self {
        Self(name.to_owned())
    }
    fn with(self, key: &str, value: impl Debug) -> Self {
        Self(format!("{} {key}={value:?}", self.0))
    }
    pub fn batch(self, batch: Batch) -> Self {
        self.with("batch", batch)
    }
    pub fn loss(self, form: &str) -> Self {
        self.with("loss", form)
    }
    pub fn timeout_secs(self, seconds: u64) -> Self {
        self.with("timeout_secs", seconds)
    }
    pub fn seed(self, seed: u64) -> Self {
        self.with("seed", seed)
    }
    pub fn bucket_mb(self, size: f64) -> Self {
        self.with("bucket_mb", size)
    }
    pub fn backend(self, name: &str) -> Self {
        self.with("backend", name)
    }
    pub fn uneven(self, rule: &str) -> Self {
        self.with("uneven", rule)
    }
    pub fn accumulate(self, steps: usize) -> Self {
        self.with("accumulate", steps)
    }
    pub fn print(self, ranks: &str) -> Self {
        self.with("print", ranks)
    }
    pub fn sync_batch_norm(self, on: bool) -> Self {
        self.with("sync_batch_norm", on)
    }
    pub fn debug(self, checks: &str) -> Self {
        self.with("debug", checks)
    }
    pub fn compress(self, form: &str) -> Self {
        self.with("compress", form)
    }
}

pub struct Scope(std::cell::Cell<bool>);

pub fn enter(options: Options) -> Scope {
    note(format!("enter {}", options.0));
    Scope(std::cell::Cell::new(false))
}

impl Scope {
    pub fn leave<T>(&self, value: T) -> T {
        self.0.set(true);
        value
    }
    pub fn leave_result<T, E>(&self, value: Result<T, E>) -> Result<T, E> {
        self.0.set(value.is_ok());
        value
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        note(if self.0.get() { "left" } else { "abandoned" });
    }
}

// Devices and stores.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    Cpu,
    Cuda(usize),
}

impl Device {
    pub fn cuda_if_available() -> Self {
        Device::Cpu
    }
}

#[derive(Debug)]
pub struct VarStore(pub &'static str);

impl VarStore {
    pub fn new(_: Device) -> Self {
        Self("new")
    }
    pub fn save<P: AsRef<Path>>(&self, path: P) -> Result<(), String> {
        note(format!("written {}", path.as_ref().display()));
        Ok(())
    }
}

pub fn device<D: 'static>(device: D) -> D {
    note("device");
    let mut boxed: Box<dyn Any> = Box::new(device);
    if let Some(device) = boxed.downcast_mut::<Device>() {
        *device = Device::Cuda(3);
    }
    *boxed.downcast().unwrap_or_else(|_| unreachable!("it went in as this type"))
}

pub fn device_kind<K: 'static>(kind: K) -> K {
    note("device_kind");
    kind
}

pub fn store<T: 'static>(store: T) -> T {
    note(format!("store {}", type_name::<T>().rsplit("::").next().unwrap_or_default()));
    store
}

pub fn register<T: ?Sized + 'static>(_: &T) {
    note("register");
}

// Batches.

pub struct Dataset;
pub struct TextData;

#[derive(Debug, Clone)]
pub struct Iter2(pub i64);

impl Dataset {
    pub fn train_iter(&self, n: i64) -> Iter2 {
        Iter2(n)
    }
}

impl TextData {
    pub fn iter_shuffle(&self, length: i64, n: i64) -> Iter2 {
        Iter2(length + n)
    }
}

impl Iter2 {
    pub fn new(_: &i64, _: &i64, n: i64) -> Self {
        Self(n)
    }
    pub fn f_new(_: &i64, _: &i64, n: i64) -> Result<Self, String> {
        Ok(Self(n))
    }
    pub fn shuffle(&mut self) -> &mut Self {
        self
    }
}

impl Iterator for Iter2 {
    type Item = i64;
    fn next(&mut self) -> Option<i64> {
        (self.0 > 0).then(|| {
            self.0 -= 1;
            self.0
        })
    }
}

pub struct Data<'a, T>(pub &'a T);
pub struct Shared<'a, T>(&'a T);

impl Shared<'_, Dataset> {
    pub fn train_iter(&self, n: i64) -> Iter2 {
        note("shared");
        Iter2(n / 2)
    }
}

impl Shared<'_, TextData> {
    pub fn iter_shuffle(&self, _: i64, n: i64) -> Iter2 {
        note("shared");
        Iter2(n / 2)
    }
}

pub trait KnownData<'a> {
    type Known: 'a;
    fn known(&'a self) -> Shared<'a, Self::Known>;
}

impl<'a> KnownData<'a> for Dataset {
    type Known = Self;
    fn known(&'a self) -> Shared<'a, Self> {
        Shared(self)
    }
}

impl<'a> KnownData<'a> for TextData {
    type Known = Self;
    fn known(&'a self) -> Shared<'a, Self> {
        Shared(self)
    }
}

pub trait DataOf<'a> {
    type Known;
    fn whole_by_type(&self, site: &'static str) -> &'a Self::Known;
    fn data_by_type(&self, site: &'static str) -> Shared<'a, Self::Known>;
}

impl<'a, T: KnownData<'a>> DataOf<'a> for &Data<'a, T> {
    type Known = T::Known;
    fn whole_by_type(&self, _: &'static str) -> &'a T::Known {
        note("whole");
        self.0.known().0
    }
    fn data_by_type(&self, site: &'static str) -> Shared<'a, T::Known> {
        note(format!("site {site}"));
        self.0.known()
    }
}

pub trait DataOther<'a, T> {
    fn whole_by_type(&self, site: &'static str) -> &'a T;
    fn data_by_type(&self, site: &'static str) -> &'a T
    where
        T: Shareable;
}

impl<'a, T> DataOther<'a, T> for Data<'a, T> {
    fn whole_by_type(&self, _: &'static str) -> &'a T {
        self.0
    }
    fn data_by_type(&self, _: &'static str) -> &'a T
    where
        T: Shareable,
    {
        self.0
    }
}

#[diagnostic::on_unimplemented(
    message = "cannot tell how to share the batches of `{Self}` among the ranks",
    label = "not one of tch's data sets",
    note = "write #[ddp(shard)], #[ddp(each)] or #[ddp(same)] on the loop that takes them, or #[ddp(skip)] on this statement if \
            they are not trained on"
)]
pub trait Shareable {}

pub fn iter2<C>(_: C, site: &'static str, _: &i64, _: &i64, n: i64) -> Iter2 {
    note(format!("iter2 {site}"));
    Iter2(n / 2)
}

pub fn f_iter2<C>(_: C, _: &'static str, _: &i64, _: &i64, n: i64) -> Result<Iter2, String> {
    note("f_iter2");
    Ok(Iter2(n / 2))
}

pub fn whole_iter2<C>(_: C, site: &'static str, _: &i64, _: &i64, n: i64) -> Iter2 {
    note(format!("whole_iter2 {site}"));
    Iter2(n)
}

pub fn f_whole_iter2<C>(_: C, _: &'static str, _: &i64, _: &i64, n: i64) -> Result<Iter2, String> {
    note("f_whole_iter2");
    Ok(Iter2(n))
}

macro_rules! site {
    () => {
        ::core::concat!(::core::file!(), ":", ::core::line!(), ":", ::core::column!())
    };
}
pub(crate) use site;

// Loops.

pub fn start<I>(items: I) -> I {
    note("start");
    items
}

pub fn synchronize() {
    note("synchronize");
}

pub fn epoch<T: 'static + Debug>(number: &T) {
    note(format!("epoch {number:?}"));
}

pub struct Items<I>(std::cell::Cell<Option<I>>);

impl<I: IntoIterator> Items<I> {
    pub fn new(items: I) -> Self {
        Self(std::cell::Cell::new(Some(items)))
    }
    fn dealt(&self, what: &str) -> std::iter::StepBy<I::IntoIter> {
        note(what);
        self.0.take().expect("it is asked once").into_iter().step_by(2)
    }
}

pub trait ShardBatches {
    type Dealt;
    fn shard(&self) -> Self::Dealt;
}

impl<I: IntoIterator<Item: SplitBatch>> ShardBatches for &Items<I> {
    type Dealt = std::iter::StepBy<I::IntoIter>;
    fn shard(&self) -> Self::Dealt {
        self.dealt("shard batches")
    }
}

pub trait ShardItems {
    type Dealt;
    fn shard(&self) -> Self::Dealt;
}

impl<I: IntoIterator> ShardItems for Items<I> {
    type Dealt = std::iter::StepBy<I::IntoIter>;
    fn shard(&self) -> Self::Dealt {
        self.dealt("shard")
    }
}

pub fn split<I: IntoIterator<Item: SplitBatch>>(items: I) -> I {
    note("split");
    items
}

#[derive(Debug)]
pub struct DataError;

#[derive(Debug, PartialEq)]
pub enum BatchSize {
    Samples(i64),
    Whole,
}

impl BatchSize {
    pub fn of_columns<const N: usize>(columns: [(&str, BatchSize); N]) -> Result<Self, DataError> {
        columns.into_iter().for_each(|(name, size)| note(format!("column {name} {size:?}")));
        Ok(BatchSize::Whole)
    }
}

#[diagnostic::on_unimplemented(message = "`{Self}` is not a batch that the ranks can share")]
pub trait SplitBatch: Sized {
    fn batch_size(&self) -> Result<BatchSize, DataError>;
    fn into_samples(self, start: i64, length: i64) -> Result<Self, DataError>;
}

impl<T> SplitBatch for Vec<T> {
    fn batch_size(&self) -> Result<BatchSize, DataError> {
        Ok(BatchSize::Samples(i64::try_from(self.len()).map_err(|_| DataError)?))
    }
    fn into_samples(mut self, start: i64, length: i64) -> Result<Self, DataError> {
        let index = |at: i64| usize::try_from(at).map_err(|_| DataError);
        Ok(self.drain(index(start)?..index(start + length)?).collect())
    }
}

pub fn each<I: IntoIterator>(items: I) -> I {
    note("each");
    items
}

pub fn same<I: IntoIterator>(items: I) -> I {
    note("same");
    items
}

// Output.

pub fn println(text: Arguments<'_>) {
    note(format!("println {text}"));
}

pub fn print(text: Arguments<'_>) {
    note(format!("print {text}"));
}

pub fn eprintln(text: Arguments<'_>) {
    note(format!("eprintln {text}"));
}

pub fn eprint(text: Arguments<'_>) {
    note(format!("eprint {text}"));
}

pub fn dbg<T: Debug>(site: &str, text: &str, value: T) -> T {
    note(format!("dbg [{site}] {text} = {value:?}"));
    value
}

pub fn logs(level: Level) -> bool {
    note(format!("logs {level:?}"));
    false
}

pub fn bar<T: 'static>(bar: T) -> T {
    note("bar");
    bar
}

pub fn manual_seed(seed: i64) {
    note(format!("manual_seed {seed}"));
}

// Saving.

pub struct TypeOf<T: ?Sized>(std::marker::PhantomData<fn() -> *const T>);

pub fn type_of<T: ?Sized>(_: &T) -> TypeOf<T> {
    TypeOf(std::marker::PhantomData)
}

pub trait IsStore {}

impl IsStore for VarStore {}

pub trait SaveStore {
    fn save_by_type<P: AsRef<Path>>(
        &self,
        path: P,
        write: impl FnOnce(PathBuf) -> Result<(), String>,
    ) -> Result<(), String>;
}

impl<T: IsStore + ?Sized> SaveStore for &&&TypeOf<T> {
    fn save_by_type<P: AsRef<Path>>(
        &self,
        path: P,
        write: impl FnOnce(PathBuf) -> Result<(), String>,
    ) -> Result<(), String> {
        note("main rank saves");
        write(path.as_ref().with_extension("tmp"))
    }
}

pub trait SaveUnclear<T: ?Sized> {
    fn save_by_type<P, R>(&self, path: P, write: impl FnOnce(P) -> R) -> R
    where
        T: SavesItself;
}

pub trait SaveUnclearBehind<T: ?Sized> {
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

#[diagnostic::on_unimplemented(
    message = "cannot tell whether `save` is that of the variable store or one of `{Self}` itself",
    label = "this points to a variable store",
    note = "write `(*x).save(path)`, with as many `*` as lead to the store, to have the main rank save it, or #[ddp(skip)] on the \
            statement if every rank is to call this"
)]
pub trait SavesItself {}

pub trait SaveOther {
    fn save_by_type<P, R>(&self, path: P, write: impl FnOnce(P) -> R) -> R;
}

impl<T: ?Sized> SaveOther for TypeOf<T> {
    fn save_by_type<P, R>(&self, path: P, write: impl FnOnce(P) -> R) -> R {
        write(path)
    }
}

macro_rules! through_pointers {
    ($($pointer:ty),*) => {$(
        impl<T: IsStore + ?Sized> IsStore for $pointer {}

        impl<'a, T: KnownData<'a> + ?Sized> KnownData<'a> for $pointer {
            type Known = T::Known;
            fn known(&'a self) -> Shared<'a, T::Known> {
                (**self).known()
            }
        }
    )*};
}
through_pointers!(&T, &mut T, Box<T>, std::rc::Rc<T>, std::sync::MutexGuard<'_, T>);

// Leaving by type.

pub struct Returning<'a, T>(&'a Scope, std::marker::PhantomData<fn() -> T>);

impl Scope {
    pub fn returning<T>(&self) -> Returning<'_, T> {
        Returning(self, std::marker::PhantomData)
    }
}

pub trait LeaveResult<T, E> {
    fn leave_by_type(&self, value: Result<T, E>) -> Result<T, E>;
}

impl<T, E> LeaveResult<T, E> for &Returning<'_, Result<T, E>> {
    fn leave_by_type(&self, value: Result<T, E>) -> Result<T, E> {
        self.0.leave_result(value)
    }
}

pub trait LeaveOther<T> {
    fn leave_by_type(&self, value: T) -> T;
}

impl<T> LeaveOther<T> for Returning<'_, T> {
    fn leave_by_type(&self, value: T) -> T {
        self.0.leave(value)
    }
}

// Folders and bars.

pub fn new_folder<T: 'static>(result: T) -> T {
    note("new_folder");
    result
}

macro_rules! progress {
    ($iterator:expr) => {{
        $crate::__private::note("progress");
        $iterator
    }};
}
pub(crate) use progress;

pub mod by_type {
    pub use super::{DataOf as _, DataOther as _, LeaveOther as _, LeaveResult as _};
    pub use super::{SaveOther as _, SaveStore as _, SaveUnclear as _, SaveUnclearBehind as _};
    pub use super::{ShardBatches as _, ShardItems as _};
}
