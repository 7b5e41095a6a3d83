//! The control plane: what the ranks tell each other about the work to come.
//!
//! Before every collective each rank sends a [`Header`] that says what it is about to do. Only where all ranks say the
//! same does the collective begin, so that ranks which do different things end in an error that says what each one does,
//! and never in a hang, or in a transport that reads one rank's message as another's.
use tch::{Kind, Tensor};

use crate::comm::{Communicator, Work};
use crate::error::{During, Error, Result};
use crate::options::Uneven;
use crate::trace;
use crate::uneven;
use crate::watch::Watch;

/// What a rank is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Synchronise the gradients of a backward.
    Backward,
    /// Average what has accumulated.
    Gradients,
    /// Leave the outermost scope.
    Leave,
    /// Make variable stores equal.
    Stores,
    /// Let the main rank save, and wait for it.
    Save,
    /// A collective that the program calls by itself.
    Collective,
    /// An all-reduce that the program calls by itself.
    AllReduce,
    /// Wait for all.
    Barrier,
    /// Decide together.
    Vote,
    /// Take the order of the data that rank 0 draws.
    Shuffle,
    /// Begin the first epoch that has a number.
    Epoch,
    /// Save a checkpoint.
    Checkpoint,
    /// Go on from a checkpoint.
    Resume,
    /// Take the statistics of a batch over all ranks, in a forward.
    NormForward,
    /// Take the gradients of those statistics, in a backward.
    NormBackward,
}

const OPERATIONS: [Operation; 15] = [
    Operation::Backward,
    Operation::Gradients,
    Operation::Leave,
    Operation::Stores,
    Operation::Save,
    Operation::Collective,
    Operation::AllReduce,
    Operation::Barrier,
    Operation::Vote,
    Operation::Shuffle,
    Operation::Epoch,
    Operation::Checkpoint,
    Operation::Resume,
    Operation::NormForward,
    Operation::NormBackward,
];

impl Operation {
    /// Its number on the wire.
    pub(crate) fn code(self) -> i64 {
        // The position in OPERATIONS, which lists every variant in order.
        self as i64
    }

    /// The operation of that number.
    pub(crate) fn from_code(code: i64) -> Option<Self> {
        OPERATIONS.get(usize::try_from(code).ok()?).copied()
    }

    /// Whether a rank that stands aside cannot be missing in it.
    pub(crate) fn needs_all_ranks(self) -> bool {
        matches!(self, Operation::Collective | Operation::Checkpoint | Operation::Resume)
    }

    /// Whether no step comes after it.
    pub(crate) fn ends_a_run(self) -> bool {
        matches!(self, Operation::Leave)
    }

    /// What a rank does, for messages: "in backward number 4".
    pub(crate) fn describe(self, count: i64) -> String {
        match self {
            Operation::Backward => format!("in backward number {count}"),
            Operation::Gradients => {
                format!("averaging what has accumulated after {count} backwards")
            }
            Operation::Leave => format!("leaving after {count} backwards"),
            Operation::Stores => format!("making variable stores equal after {count} backwards"),
            Operation::Save => format!("saving after {count} backwards"),
            Operation::Collective => format!("in a collective after {count} backwards"),
            Operation::AllReduce => format!("in an all-reduce after {count} backwards"),
            Operation::Barrier => format!("in a barrier after {count} backwards"),
            Operation::Vote => format!("in a vote after {count} backwards"),
            Operation::Shuffle => format!("shuffling data after {count} backwards"),
            Operation::Epoch => format!("beginning its first epoch after {count} backwards"),
            Operation::Checkpoint => format!("saving a checkpoint after {count} backwards"),
            Operation::Resume => format!("resuming from a checkpoint after {count} backwards"),
            Operation::NormForward => {
                format!("in the forward of a synchronised BatchNorm after {count} backwards")
            }
            Operation::NormBackward => {
                format!("in the backward of a synchronised BatchNorm after {count} backwards")
            }
        }
    }
}

/// What one rank says before a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// What it is about to do.
    pub(crate) operation: Operation,
    /// How many backwards it has begun, with or without synchronisation, or stood aside from.
    pub(crate) backwards: i64,
    /// A hash of what the operation works on: the leaves of a backward, the names of variables.
    pub(crate) subject: u64,
    /// A hash of all parameters that this rank knows.
    pub(crate) table: u64,
    /// A value of the operation's own.
    pub(crate) extra: i64,
    /// The backward may leave a leaf that it reaches without a gradient.
    pub(crate) may_leave_undefined: bool,
    /// How many collectives of synchronised layers a backward will call from inside.
    pub(crate) batch_norms: i64,
    /// Whether the rank stands aside and lets the others do this (see [`uneven`]). Then `operation`, `subject` and `extra` are
    /// those of the lead. Not on the wire: what the ranks have announced decides it.
    pub(crate) aside: bool,
}

/// Words of a header on the wire.
const WORDS: usize = 8;

impl Header {
    fn encode(&self, sequence: i64) -> [i64; WORDS] {
        [
            sequence,
            self.operation.code(),
            self.backwards,
            self.subject.cast_signed(),
            self.table.cast_signed(),
            self.extra,
            i64::from(self.may_leave_undefined),
            self.batch_norms,
        ]
    }

    /// A header that announces `operation` and nothing else.
    pub(crate) fn new(operation: Operation, backwards: i64) -> Self {
        Self {
            operation,
            backwards,
            subject: 0,
            table: 0,
            extra: 0,
            may_leave_undefined: false,
            batch_norms: 0,
            aside: false,
        }
    }

    fn decode(words: &[i64]) -> Option<(i64, Self)> {
        let [sequence, operation, backwards, subject, table, extra, undefined, batch_norms] =
            *words
        else {
            return None;
        };
        let operation = Operation::from_code(operation)?;
        let (subject, table) = (subject.cast_unsigned(), table.cast_unsigned());
        let may_leave_undefined = undefined != 0;
        let header = Self {
            subject,
            table,
            extra,
            may_leave_undefined,
            batch_norms,
            ..Self::new(operation, backwards)
        };
        Some((sequence, header))
    }
}

/// Headers that are on their way.
pub(crate) struct PendingHeaders {
    own: Header,
    sequence: i64,
    output: Tensor,
    work: Box<dyn Work>,
    uneven: Uneven,
    _input: Tensor,
}

/// The channel for headers and small values: a transport of its own, on which no gradients are under way.
pub(crate) struct Control {
    comm: Box<dyn Communicator>,
    world_size: usize,
    uneven: Uneven,
    sequence: i64,
}

impl Control {
    pub(crate) fn new(comm: Box<dyn Communicator>, world_size: usize, uneven: Uneven) -> Self {
        Self { comm, world_size, uneven, sequence: 0 }
    }

    /// From now on over another transport. All ranks do, at the same point.
    pub(crate) fn move_to(&mut self, comm: Box<dyn Communicator>) {
        self.comm = comm;
    }

    /// Sends this rank's header and returns at once.
    pub(crate) fn post(&mut self, watch: &Watch, header: Header) -> Result<PendingHeaders> {
        self.sequence += 1;
        let input = Tensor::from_slice(&header.encode(self.sequence));
        let length = (WORDS * self.world_size) as i64;
        let output = Tensor::f_zeros([length], (Kind::Int64, tch::Device::Cpu))
            .during("announcing an operation")?;
        let work = self
            .comm
            .all_gather(&output, &input)
            .map_err(|error| watch.explain("announcing an operation", &error))?;
        let (own, sequence, uneven) = (header, self.sequence, self.uneven);
        Ok(PendingHeaders { own, sequence, output, work, uneven, _input: input })
    }

    /// Gathers a few words from every rank; all give the same number.
    pub(crate) fn gather_words(&self, watch: &Watch, words: &[i64]) -> Result<Vec<Vec<i64>>> {
        let operation = "comparing the ranks";
        let input = Tensor::from_slice(words);
        let length = (words.len() * self.world_size) as i64;
        let output =
            Tensor::f_zeros([length], (Kind::Int64, tch::Device::Cpu)).during(operation)?;
        if !words.is_empty() {
            let work = self
                .comm
                .all_gather(&output, &input)
                .map_err(|error| watch.explain(operation, &error))?;
            watch.wait(work.as_ref(), operation)?;
        }
        let all = Vec::<i64>::try_from(output).during(operation)?;
        Ok((0..self.world_size)
            .map(|rank| all[rank * words.len()..(rank + 1) * words.len()].to_vec())
            .collect())
    }

    /// Gathers bytes, of any length, from every rank.
    pub(crate) fn gather_bytes(&self, watch: &Watch, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.gather_words(watch, &[bytes.len() as i64])?;
        let lengths: Vec<usize> =
            lengths.iter().map(|length| usize::try_from(length[0]).unwrap_or(0)).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        // Eight bytes a word keep this on the one path that gather_words tests.
        let mut words = vec![0_i64; longest.div_ceil(8)];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut eight = [0; 8];
            eight[..chunk.len()].copy_from_slice(chunk);
            *word = i64::from_le_bytes(eight);
        }
        let all = self.gather_words(watch, &words)?;
        Ok(all
            .iter()
            .zip(lengths)
            .map(|(words, length)| {
                let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                bytes.truncate(length);
                bytes
            })
            .collect())
    }

    /// Gathers a text from every rank.
    pub(crate) fn gather_texts(&self, watch: &Watch, text: &str) -> Result<Vec<String>> {
        let all = self.gather_bytes(watch, text.as_bytes())?;
        Ok(all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect())
    }

    /// Copies the root's CPU tensor over everyone else's.
    pub(crate) fn broadcast(&self, watch: &Watch, tensor: &Tensor, root: usize) -> Result<()> {
        let operation = "spreading a small value";
        let work =
            self.comm.broadcast(tensor, root).map_err(|error| watch.explain(operation, &error))?;
        watch.wait(work.as_ref(), operation)
    }
}

impl PendingHeaders {
    /// Whether all headers are there, without waiting.
    pub(crate) fn poll(&self, watch: &Watch) -> Result<bool> {
        watch.poll(self.work.as_ref(), &self.own.operation.describe(self.own.backwards))
    }

    /// Waits for all headers.
    pub(crate) fn wait(&self, watch: &Watch) -> Result<()> {
        let _span = trace::span(trace::Kind::Announce(self.own.operation));
        watch.wait(self.work.as_ref(), &self.own.operation.describe(self.own.backwards))
    }

    /// The headers of all ranks, which have arrived; an error unless all announce the same operation, or stand aside.
    pub(crate) fn agree(self, rank: usize) -> Result<Vec<Header>> {
        let words = Vec::<i64>::try_from(&self.output).during("reading the headers")?;
        let headers: Option<Vec<(i64, Header)>> = words.chunks(WORDS).map(Header::decode).collect();
        let Some(headers) = headers else {
            return Err(Error::mismatch(
                "a header holds what no version of this crate sends",
                "start all ranks from one and the same binary",
            ));
        };
        if let Some(strange) = headers.iter().position(|(sequence, _)| *sequence != self.sequence) {
            return Err(Error::mismatch(
                format!(
                    "rank {rank} is at message {} and rank {strange} at {}",
                    self.sequence, headers[strange].0
                ),
                "start all ranks from one and the same binary",
            ));
        }
        let headers: Vec<Header> = headers.into_iter().map(|(_, header)| header).collect();
        uneven::settle(headers, self.uneven)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(operation: Operation, backwards: i64) -> Header {
        let header = Header::new(operation, backwards);
        Header { subject: u64::MAX, table: 7, extra: -1, may_leave_undefined: true, ..header }
    }

    #[test]
    fn headers_survive_the_wire() {
        for operation in OPERATIONS {
            let header = header(operation, 12);
            assert_eq!(Header::decode(&header.encode(5)), Some((5, header)));
        }
        assert_eq!(Header::decode(&[1, 99, 0, 0, 0, 0, 0]), None);
        assert_eq!(Header::decode(&[1]), None);
    }
}
