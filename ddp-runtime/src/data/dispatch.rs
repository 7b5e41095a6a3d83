//! Batches that the main rank reads for all: for data that the other ranks cannot read.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use tch::Tensor;

use super::loader::LoaderError;
use super::parcel::{self, Label};
use super::part::Part;
use super::weight::Holder;
use super::{BoxError, DataError, Share, TensorTree};
use crate::advice;
use crate::control::Operation;
use crate::error::{During, Error, Result};
use crate::hash::hash_of;
use crate::session::{self, Session};
use crate::steps;

/// What a rank gets of what the main rank reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dispatch {
    /// Its rows of each batch (Accelerate: `split_batches=True`): the ranks take a step on one batch, as one process would.
    /// Rank 0 has the first rows; where the ranks do not divide a batch, the first ones have a row more, and each part counts
    /// by its rows. A batch of fewer rows than ranks is an error.
    #[default]
    Split,
    /// A batch of its own: the ranks take a step on as many batches as there are ranks. Batches at the end that are fewer than
    /// the ranks are left out.
    Whole,
}

/// Batches that the main rank reads and sends to all ranks, as Accelerate does with `dispatch_batches=True`.
///
/// `items` is called, and what it returns read, on the main rank alone. All ranks must call this, and draw as many batches:
/// each draw is a collective. With one rank, or outside of any scope, the items come as they are.
///
/// The main rank sends the batches of all ranks to each of them, in one message a step; a rank keeps its own. So this serves
/// where nothing else can: for a stream that only one process may open, or data on one host. Where every rank can read, a
/// [`DataLoader`](super::DataLoader) on each of them costs nothing.
///
/// Batches arrive on the CPU. To read ahead, let `items` be the batches of a loader that has workers and is
/// [`whole`](super::Builder::whole).
///
/// An error that the main rank reads ends the pass on every rank.
///
/// ```
/// use ddp_runtime::data::{BoxError, Dispatch, dispatch};
/// use tch::{Tensor, kind};
///
/// let lines = || (0..3).map(|k| Ok::<_, BoxError>(Tensor::full([4, 2], k, kind::FLOAT_CPU)));
/// for batch in dispatch(lines, Dispatch::Split) {
///     assert_eq!(batch?.size()[1], 2);
/// }
/// # Ok::<(), ddp_runtime::data::LoaderError>(())
/// ```
pub fn dispatch<I, B, E>(
    items: impl FnOnce() -> I,
    dispatch: Dispatch,
) -> Dispatched<I::IntoIter, B>
where
    I: IntoIterator<Item = std::result::Result<B, E>>,
    B: TensorTree,
    E: Into<BoxError>,
{
    let session = session::current();
    if session.is_some() {
        advice::dealt_out();
    }
    let reads = session.as_ref().is_none_or(|session| session.topology().is_main());
    Dispatched {
        items: reads.then(|| items().into_iter()),
        dispatch,
        session,
        holder: Holder::new(),
        over: false,
        batch: PhantomData,
    }
}

/// The batches of this rank; see [`dispatch()`].
#[must_use = "iterators do nothing unless they are iterated over"]
pub struct Dispatched<I, B> {
    /// On the main rank.
    items: Option<I>,
    dispatch: Dispatch,
    session: Option<Arc<Session>>,
    holder: Holder,
    over: bool,
    batch: PhantomData<fn() -> B>,
}

/// What the main rank has for a step.
enum Round {
    /// The tensors of one batch, or of one for each rank.
    Tensors(Vec<Tensor>),
    End,
    Failed(String),
}

/// How a round begins on the wire.
const TENSORS: i64 = 0;
const END: i64 = 1;
const FAILED: i64 = 2;

impl<I, B, E> Dispatched<I, B>
where
    I: Iterator<Item = std::result::Result<B, E>>,
    B: TensorTree,
    E: Into<BoxError>,
{
    fn advance(&mut self) -> std::result::Result<Option<B>, LoaderError> {
        let Some(session) = self.session.clone() else {
            let item = self.items.as_mut().and_then(Iterator::next);
            return item.transpose().map_err(|error| LoaderError::Read(error.into()));
        };
        let topology = session.topology();
        let share = Share::new(topology.rank, topology.world_size).map_err(DataError::from)?;
        let (round, own_error) = match &mut self.items {
            Some(items) => match read(items, self.dispatch, share) {
                Ok(round) => (Some(round), None),
                Err(error) => (Some(Round::Failed(error.to_string())), Some(error)),
            },
            None => (None, None),
        };
        let sent = send(&session, round, self.dispatch)?;
        match sent {
            Sent::End => Ok(None),
            Sent::Failed(message) => {
                Err(own_error.map_or(LoaderError::MainRank { message }, LoaderError::Read))
            }
            Sent::Tensors(tensors) => self.own_part(tensors, share).map(Some),
        }
    }

    /// This rank's part of the tensors of a round.
    fn own_part(
        &mut self,
        tensors: Vec<Tensor>,
        share: Share,
    ) -> std::result::Result<B, LoaderError> {
        let own: Vec<Tensor> = match self.dispatch {
            Dispatch::Whole => {
                let each = tensors.len() / share.world_size();
                tensors.into_iter().skip(each * share.rank()).take(each).collect()
            }
            Dispatch::Split => {
                let rows = tensors.first().and_then(|tensor| tensor.size().first().copied());
                let rows = rows.unwrap_or(0);
                if rows < share.world_size() as i64 {
                    return Err(DataError::BatchTooSmall {
                        samples: rows,
                        world_size: share.world_size(),
                    }
                    .into());
                }
                let part = Part::of(rows, share);
                self.holder.hold(part)?;
                let narrow = |tensor: &Tensor| tensor.f_narrow(0, part.start, part.rows);
                tensors
                    .iter()
                    .map(narrow)
                    .collect::<std::result::Result<_, _>>()
                    .map_err(DataError::from)?
            }
        };
        // Copies, so that the parts of the others are let go.
        let own: Vec<Tensor> = own
            .iter()
            .map(Tensor::f_detach_copy)
            .collect::<std::result::Result<_, _>>()
            .map_err(DataError::from)?;
        B::unflatten(&mut own.into_iter()).ok_or_else(|| LoaderError::MainRank {
            message: "it sent fewer tensors than a batch has".to_owned(),
        })
    }
}

/// What the main rank sends next.
fn read<B: TensorTree, E: Into<BoxError>>(
    items: &mut impl Iterator<Item = std::result::Result<B, E>>,
    dispatch: Dispatch,
    share: Share,
) -> std::result::Result<Round, BoxError> {
    let count = match dispatch {
        Dispatch::Split => 1,
        Dispatch::Whole => share.world_size(),
    };
    let mut tensors = Vec::new();
    for _ in 0..count {
        let Some(item) = items.next() else { return Ok(Round::End) };
        item.map_err(Into::into)?.flatten(&mut tensors);
    }
    if dispatch == Dispatch::Split {
        check_rows(&tensors)?;
    }
    match tensors.iter().find(|tensor| Label::of(tensor).is_none()) {
        Some(tensor) => Err(format!("a tensor of dtype {:?} cannot be sent", tensor.kind()).into()),
        None => Ok(Round::Tensors(tensors)),
    }
}

/// A batch that is cut has as many rows in each of its tensors.
fn check_rows(tensors: &[Tensor]) -> std::result::Result<(), BoxError> {
    let rows = |tensor: &Tensor| tensor.size().first().copied();
    let first = tensors.first().and_then(rows);
    match tensors.iter().find(|tensor| rows(tensor).is_none() || rows(tensor) != first) {
        Some(tensor) => Err(format!(
            "a batch that the ranks share has tensors of {:?} and {:?}; give all of them as many rows",
            tensors[0].size(),
            tensor.size()
        )
        .into()),
        None => Ok(()),
    }
}

/// What all ranks have of a round.
enum Sent {
    Tensors(Vec<Tensor>),
    End,
    Failed(String),
}

/// Sends the main rank's round to all; the others pass none.
fn send(session: &Session, round: Option<Round>, dispatch: Dispatch) -> Result<Sent> {
    let operation = "dispatching a batch";
    let (words, tensors) = round.map_or((Vec::new(), Vec::new()), describe);
    let (subject, count) = (hash_of(&(operation, dispatch)), words.len() as i64);
    session.collective_with_word(Operation::Collective, subject, count, |group, count| {
        let is_main = group.topology().is_main();
        let table = if is_main {
            Tensor::f_from_slice(&words)
        } else {
            Tensor::f_zeros([count], (tch::Kind::Int64, tch::Device::Cpu))
        };
        let table = table.during(operation)?;
        let (control, watch) = group.control();
        control.broadcast(watch, &table, 0)?;
        let words = Vec::<i64>::try_from(&table).during(operation)?;
        let labels = match words.split_first() {
            Some((&END, _)) => return Ok(Sent::End),
            Some((&FAILED, text)) => return Ok(Sent::Failed(to_text(text))),
            Some((&TENSORS, labels)) => parcel::read_labels(labels),
            _ => None,
        };
        let bytes = labels.as_deref().and_then(parcel::total);
        let (Some(labels), Some(bytes)) = (labels, bytes) else {
            return Err(Error::mismatch(
                "the main rank sent a batch that cannot be read",
                "start all ranks from one and the same binary",
            ));
        };
        let packed = if is_main { parcel::pack(&tensors, &labels) } else { parcel::empty(bytes) };
        let packed = packed.during(operation)?;
        if bytes > 0 {
            group.broadcast(&packed, 0, operation)?;
        }
        parcel::unpack(&packed, &labels).during(operation).map(Sent::Tensors)
    })
}

/// A round as words, with the tensors that they describe.
fn describe(round: Round) -> (Vec<i64>, Vec<Tensor>) {
    match round {
        Round::End => (vec![END], Vec::new()),
        Round::Failed(text) => {
            let mut words = vec![FAILED, text.len() as i64];
            words.extend(text.bytes().map(i64::from));
            (words, Vec::new())
        }
        Round::Tensors(tensors) => {
            // Each has a label: that was checked when it was read.
            let labels: Vec<Label> = tensors.iter().filter_map(Label::of).collect();
            let mut words = vec![TENSORS];
            words.extend(parcel::write_labels(&labels));
            (words, tensors)
        }
    }
}

fn to_text(words: &[i64]) -> String {
    let bytes: Vec<u8> =
        words.iter().skip(1).map(|&word| u8::try_from(word).unwrap_or(b'?')).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl<I, B, E> Iterator for Dispatched<I, B>
where
    I: Iterator<Item = std::result::Result<B, E>>,
    B: TensorTree,
    E: Into<BoxError>,
{
    type Item = std::result::Result<B, LoaderError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.advance();
        if !matches!(next, Ok(Some(_))) {
            self.over = true;
            self.holder.release();
        }
        if let Ok(batch) = &next {
            steps::drawn(batch.is_some());
        }
        next.transpose()
    }
}

impl<I, B> fmt::Debug for Dispatched<I, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatched")
            .field("dispatch", &self.dispatch)
            .field("reads", &self.items.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tch::{Tensor, kind};

    use super::{Dispatch, check_rows, describe, dispatch, to_text};
    use crate::data::{BoxError, LoaderError};

    #[test]
    fn one_rank_has_the_items_as_they_are() {
        let items =
            || [Ok(Tensor::from(1)), Err::<Tensor, BoxError>("torn".into()), Ok(Tensor::from(2))];
        let mut batches = dispatch(items, Dispatch::Whole);
        assert_eq!(batches.next().unwrap().unwrap().int64_value(&[]), 1);
        let error = batches.next().unwrap().unwrap_err();
        assert!(matches!(&error, LoaderError::Read(_)) && error.to_string().contains("torn"));
        assert!(batches.next().is_none());
    }

    #[test]
    fn an_error_goes_over_word_by_word() {
        let (words, _) = describe(super::Round::Failed("gefüllt".to_owned()));
        assert_eq!(to_text(&words[1..]), "gefüllt");
    }

    #[test]
    fn tensors_with_unlike_rows_are_not_cut() {
        let t = |rows| Tensor::zeros([rows, 2], kind::FLOAT_CPU);
        assert!(check_rows(&[t(3), t(3)]).is_ok());
        let error = check_rows(&[t(3), t(4)]).unwrap_err().to_string();
        assert!(error.contains("[3, 2]") && error.contains("[4, 2]"), "{error}");
        assert!(check_rows(&[t(3), Tensor::from(1.0)]).is_err());
    }
}
