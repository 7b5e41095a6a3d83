//! Rows that are gathered a batch at a time, in the order of the epoch.
use tch::{Device, TchError, Tensor};

use crate::data::batches::{BatchPlan, LastBatch, rank_index};
use crate::data::{DataError, Order, Share};

/// The rows, how they are to be given out, and how far that has come.
#[derive(Debug)]
pub(super) struct SharedRows {
    xs: Tensor,
    ys: Tensor,
    batch_size: i64,
    share: Share,
    /// The order that `shuffle` would give.
    pub(super) order: Order,
    /// The order in force; `None` is that of the rows.
    pub(super) shuffled: Option<Order>,
    pub(super) last_batch: LastBatch,
    pub(super) device: Device,
    pub(super) next_batch: i64,
    /// This rank's rows, on the devices of `xs` and `ys`; worked out with the first batch.
    pub(super) index: Option<(Tensor, Tensor)>,
}

impl SharedRows {
    pub(super) fn new(
        xs: &Tensor,
        ys: &Tensor,
        batch_size: i64,
        share: Share,
        order: Order,
    ) -> Self {
        Self {
            xs: xs.shallow_clone(),
            ys: ys.shallow_clone(),
            batch_size,
            share,
            order,
            shuffled: None,
            last_batch: LastBatch::Dropped,
            device: Device::Cpu,
            next_batch: 0,
            index: None,
        }
    }

    fn plan(&self) -> Result<BatchPlan, DataError> {
        BatchPlan::new(self.rows(), self.batch_size, self.share, self.last_batch)
    }

    pub(super) fn rows(&self) -> i64 {
        self.xs.size().first().copied().unwrap_or(0)
    }

    pub(super) fn next(&mut self) -> Result<Option<(Tensor, Tensor)>, DataError> {
        let Some((start, size)) = self.plan()?.batch(self.next_batch) else { return Ok(None) };
        let (xs_index, ys_index) = match self.index.take() {
            Some(index) => index,
            None => self.work_out_index()?,
        };
        let x = gather(&self.xs, &xs_index.f_narrow(0, start, size)?, self.device)?;
        let y = gather(&self.ys, &ys_index.f_narrow(0, start, size)?, self.device)?;
        self.index = Some((xs_index, ys_index));
        self.next_batch += 1;
        Ok(Some((x, y)))
    }

    fn work_out_index(&self) -> Result<(Tensor, Tensor), DataError> {
        let xs_index = rank_index(self.rows(), self.share, self.shuffled, self.xs.device())?;
        // The same tensor where both lie on one device.
        let ys_index = xs_index.f_to_device(self.ys.device())?;
        Ok((xs_index, ys_index))
    }

    pub(super) fn size_hint(&self) -> (usize, Option<usize>) {
        // A plan that fails gives no batch.
        let count = self.plan().map_or(0, BatchPlan::count);
        let left = usize::try_from(count - self.next_batch).unwrap_or(0);
        (left, Some(left))
    }
}

pub(super) fn rows(data: &Tensor) -> i64 {
    data.size().first().copied().unwrap_or(0)
}

/// Rows `index` of `data`, on `device`.
fn gather(data: &Tensor, index: &Tensor, device: Device) -> Result<Tensor, TchError> {
    data.f_index_select(0, index)?.f_to_device(device)
}
