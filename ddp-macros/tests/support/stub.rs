//! A stand-in for the runtime's private module: it notes each call, so that tests can tell what ran.
//!
//! It is free of libtorch. `Dataset`, `TextData`, `VarStore` and the like stand for tch's types.

#![allow(dead_code, unused_macros, unused_imports, missing_docs, unreachable_pub)]
#![allow(clippy::pedantic, clippy::nursery)]

use std::any::{Any, type_name};
use std::cell::RefCell;
use std::fmt::{Arguments, Debug, Display};
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

#[derive(Debug)]
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

pub struct Data<'a, T: ?Sized>(pub &'a T);
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

pub trait DataOf<'a> {
    type Target;
    fn whole(&self, site: &'static str) -> &'a Self::Target;
    fn data(&self, site: &'static str) -> Shared<'a, Self::Target>;
}

pub trait DataOther<'a> {
    type Target: ?Sized;
    fn whole(&self, site: &'static str) -> &'a Self::Target;
    fn data(&self, site: &'static str) -> &'a Self::Target;
}

macro_rules! data_of {
    ($($target:ty: $by:ty),*) => {$(
        impl<'a> DataOf<'a> for &Data<'a, $by> {
            type Target = $target;
            fn whole(&self, _: &'static str) -> &'a $target {
                note("whole");
                self.0
            }
            fn data(&self, site: &'static str) -> Shared<'a, $target> {
                note(format!("site {site}"));
                Shared(self.0)
            }
        }
    )*};
}

data_of!(Dataset: Dataset, Dataset: &Dataset, TextData: TextData, TextData: &TextData);

impl<'a, T: ?Sized> DataOther<'a> for Data<'a, T> {
    type Target = T;
    fn whole(&self, _: &'static str) -> &'a T {
        self.0
    }
    fn data(&self, _: &'static str) -> &'a T {
        self.0
    }
}

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

pub trait SaveStore {
    fn save<P: AsRef<Path>>(
        &self,
        path: P,
        write: impl FnOnce(PathBuf) -> Result<(), String>,
    ) -> Result<(), String>;
}

pub trait SaveOther {
    fn save<P, R>(&self, path: P, write: impl FnOnce(P) -> R) -> R;
}

macro_rules! save_store {
    ($($by:ty),*) => {$(
        impl SaveStore for &TypeOf<$by> {
            fn save<P: AsRef<Path>>(
                &self,
                path: P,
                write: impl FnOnce(PathBuf) -> Result<(), String>,
            ) -> Result<(), String> {
                note("main rank saves");
                write(path.as_ref().with_extension("tmp"))
            }
        }
    )*};
}

save_store!(VarStore, &VarStore, &mut VarStore);

impl<T: ?Sized> SaveOther for TypeOf<T> {
    fn save<P, R>(&self, path: P, write: impl FnOnce(P) -> R) -> R {
        write(path)
    }
}
