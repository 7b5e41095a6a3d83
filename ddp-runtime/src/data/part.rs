//! One rank's part of a batch that all ranks share.

use super::Share;

/// A stretch of a batch's rows.
///
/// The parts of all ranks follow each other in the order of the ranks; where they cannot be equal, the first ranks have a row
/// more. As `torch.tensor_split` cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its first row.
    pub(crate) start: i64,
    /// Its rows; 0 on the last ranks, if the batch has fewer rows than there are ranks.
    pub(crate) rows: i64,
    /// Rows of the whole batch.
    pub(crate) batch: i64,
    /// How many ranks share it.
    pub(crate) ranks: i64,
}

impl Part {
    /// This rank's part of a batch of `rows` rows.
    pub(crate) fn of(rows: i64, share: Share) -> Self {
        let (rank, ranks) = (share.rank() as i64, share.world_size() as i64);
        let (each, over) = (rows / ranks, rows % ranks);
        Self {
            start: rank * each + rank.min(over),
            rows: each + i64::from(rank < over),
            batch: rows,
            ranks,
        }
    }

    /// The same part of a batch that begins `rows` further on.
    pub(crate) fn after(self, rows: i64) -> Self {
        Self { start: self.start + rows, ..self }
    }
}
