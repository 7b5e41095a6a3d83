//! The buckets in memory: flat tensors, and the views into them that are the parameters' gradients.
//!
//! # Note [Gradients that escape]
//!
//! After a backward, `v.grad()` is a view of a bucket. On one device, a program that keeps it over the next backward keeps
//! its values, since autograd makes a new gradient once the old one was taken away (`zero_grad`). Here the next backward would
//! write over them. So before a bucket is written to, the reference counts tell whether anybody else holds its memory; then
//! it gets new memory, and what was kept stays as it was.
//!
//! # Note [Gradients that stay where they are made]
//!
//! Copying a gradient that no cache holds into a bucket costs as much as reducing it. Where the transport lends memory, a
//! backward makes large gradients there (`csrc/lend.cc`), and a bucket that holds one of them is that memory: nothing is copied, and the mean is
//! taken while the ranks' values are added. Before the next backward the bucket lets go of it, so that autograd, which makes a
//! new gradient once the old one was taken away, is lent the same memory again. Which gradients have such a bucket follows from
//! their sizes alone, and is the same on all ranks. One that came to lie elsewhere (autograd made it of another tensor, or as a
//! part of one) is copied after all, into memory that the bucket then keeps.
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use crate::bridge::{Adopted, adopt_gradient, storage_uses, view_like, view_use};
use crate::comm::GradientMemory;
use crate::error::{During, Result};
use crate::sync::bucket::{self, FIRST_BUCKET_BYTES, Item, Member, Run, Shape};
use crate::sync::leaf::{LeafTable, Place};

/// Gradients of so many bytes stay where they are made. Smaller ones are in the cache when they are copied, and a bucket of their
/// own is one more meeting of the ranks (docs/notes.md). Not below the bridge's `DDP_LEND_LEAST`.
const LARGE: usize = 4 << 20;

/// One bucket.
struct Bucket {
    shape: Shape,
    /// None while a bucket for one gradient waits for it.
    flat: Option<Tensor>,
    /// The memory is that in which autograd made the gradient.
    adopted: bool,
    /// What is yet to be multiplied into it.
    scale: f64,
}

/// How a bucket gets its memory: so many elements, all zero.
pub(crate) type Allocate<'a> = &'a dyn Fn(&Shape) -> Result<Tensor>;

/// All buckets. A bucket keeps its number; one that was laid out anew leaves an empty slot.
pub(crate) struct Layout {
    buckets: Vec<Option<Bucket>>,
    limit: usize,
    memory: Option<Arc<GradientMemory>>,
}

impl Layout {
    /// No bucket yet; they close at `limit` bytes. Large gradients stay in `memory`, if there is any.
    pub(crate) fn new(limit: usize, memory: Option<Arc<GradientMemory>>) -> Self {
        Self { buckets: Vec::new(), limit, memory }
    }

    /// Gives these leaves places in new buckets, in the order given.
    pub(crate) fn place(
        &mut self,
        table: &mut LeafTable,
        order: &[u32],
        allocate: Allocate,
    ) -> Result<()> {
        let items: Vec<Item> = order.iter().map(|&id| self.item(table, id)).collect();
        for shape in bucket::assign(&items, FIRST_BUCKET_BYTES.min(self.limit), self.limit) {
            let number = self.buckets.len();
            let flat = if shape.alone { None } else { Some(allocate(&shape)?) };
            point_views(table, &shape, flat.as_ref(), number)?;
            self.buckets.push(Some(Bucket { shape, flat, adopted: false, scale: 1.0 }));
        }
        Ok(())
    }

    /// What the bucket assignment needs to know of a leaf.
    fn item(&self, table: &LeafTable, id: u32) -> Item {
        let item = table.item(id);
        let bytes = item.elements * item.kind.elt_size_in_bytes();
        let scalable =
            matches!(item.kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16);
        match &self.memory {
            Some(memory) if item.device == Device::Cpu && scalable && bytes >= LARGE => {
                memory.expect(bytes);
                Item { alone: true, ..item }
            }
            _ => item,
        }
    }

    /// Lays these leaves out again, in another order. They are all that their buckets hold.
    pub(crate) fn replace(
        &mut self,
        table: &mut LeafTable,
        order: &[u32],
        allocate: Allocate,
    ) -> Result<()> {
        for &id in order {
            if let Some(place) = table.get_mut(id).place.take() {
                self.buckets[place.bucket] = None;
            }
        }
        self.place(table, order, allocate)
    }

    /// Frees the buckets all of whose leaves are gone.
    pub(crate) fn sweep(&mut self, table: &LeafTable) {
        for bucket in &mut self.buckets {
            let in_use = |bucket: &Bucket| {
                bucket.shape.members.iter().any(|member| !table.get(member.leaf).gone)
            };
            if bucket.as_ref().is_some_and(|bucket| !in_use(bucket)) {
                *bucket = None;
            }
        }
    }

    /// The stretches to reduce when `active` leaves get a gradient.
    pub(crate) fn runs(&self, active: impl Fn(u32) -> bool) -> Vec<Run> {
        let shapes =
            self.buckets.iter().enumerate().filter_map(|(number, bucket)| {
                bucket.as_ref().map(|bucket| (number, &bucket.shape))
            });
        bucket::runs(shapes, active)
    }

    /// The memory of a run.
    pub(crate) fn slice(&self, run: &Run) -> Result<Tensor> {
        let flat = self.flat(run.bucket);
        flat.f_narrow(0, run.start as i64, (run.end - run.start) as i64).during("cutting a bucket")
    }

    /// Gives a bucket new memory if anybody outside holds the old one. See Note [Gradients that escape].
    pub(crate) fn refresh(
        &mut self,
        table: &mut LeafTable,
        number: usize,
        allocate: Allocate,
    ) -> Result<()> {
        let Some(bucket) = &mut self.buckets[number] else { return Ok(()) };
        if bucket.adopted {
            return let_go(table, bucket);
        }
        if escaped(table, bucket).during("looking at a bucket")? {
            give_memory(table, bucket, number, allocate)?;
        }
        Ok(())
    }

    /// Before a backward that averages nothing: what autograd may use again must not be held here.
    pub(crate) fn let_go(&mut self, table: &mut LeafTable, leaves: &[u32]) -> Result<()> {
        for &id in leaves {
            if let Some(place) = &table.get(id).place
                && let Some(bucket) = &mut self.buckets[place.bucket]
                && bucket.adopted
            {
                let_go(table, bucket)?;
            }
        }
        Ok(())
    }

    /// A gradient is complete, or there is none: sees to it that its bucket has memory. True if the bucket is for this gradient
    /// alone.
    pub(crate) fn prepare(
        &mut self,
        table: &mut LeafTable,
        id: u32,
        allocate: Allocate,
    ) -> Result<bool> {
        let Some(number) = table.get(id).place.as_ref().map(|place| place.bucket) else {
            return Ok(false);
        };
        let Some(bucket) = self.buckets[number].as_mut().filter(|bucket| bucket.shape.alone) else {
            return Ok(false);
        };
        let adopted = adopt_gradient(&table.get(id).tensor).during("taking up a gradient")?;
        if let Some(Adopted { view, flat }) = adopted {
            (bucket.flat, bucket.adopted) = (Some(flat), true);
            table.get_mut(id).place = Some(Place { bucket: number, view: Some(view) });
        } else if bucket.flat.is_none() {
            give_memory(table, bucket, number, allocate)?;
        }
        Ok(true)
    }

    /// What the reduction of a bucket for one gradient multiplies it with.
    pub(crate) fn set_scale(&mut self, number: usize, scale: f64) {
        if let Some(bucket) = &mut self.buckets[number] {
            bucket.scale = scale;
        }
    }

    /// As set last; 1 for all other buckets.
    pub(crate) fn scale(&self, run: &Run) -> f64 {
        self.buckets[run.bucket].as_ref().map_or(1.0, |bucket| bucket.scale)
    }

    fn flat(&self, number: usize) -> &Tensor {
        // A run is made from a bucket that is there, and plans are dropped when buckets are laid out anew. It is asked for once
        // its gradients are ready, which have been given memory before.
        let bucket = self.buckets[number].as_ref().expect("a run's bucket exists");
        bucket.flat.as_ref().expect("a run's gradients are ready")
    }
}

/// New memory of its own for a bucket, all zero, and its leaves' views there.
fn give_memory(
    table: &mut LeafTable,
    bucket: &mut Bucket,
    number: usize,
    allocate: Allocate,
) -> Result<()> {
    let flat = bucket.flat.insert(allocate(&bucket.shape)?);
    point_views(table, &bucket.shape, Some(flat), number)
}

/// Lets go of memory that was adopted, unless the gradient is still there and accumulates.
fn let_go(table: &mut LeafTable, bucket: &mut Bucket) -> Result<()> {
    for member in &bucket.shape.members {
        let leaf = table.get_mut(member.leaf);
        let Some(Place { view, .. }) = &mut leaf.place else { continue };
        if let Some(lies_in) = view {
            let used = view_use(&leaf.tensor, lies_in).during("looking at a gradient")?;
            if used.is_gradient {
                continue;
            }
        }
        (*view, bucket.flat, bucket.adopted) = (None, None, false);
    }
    Ok(())
}

fn point_views(
    table: &mut LeafTable,
    shape: &Shape,
    flat: Option<&Tensor>,
    bucket: usize,
) -> Result<()> {
    for member in &shape.members {
        let leaf = table.get_mut(member.leaf);
        if leaf.gone {
            continue;
        }
        let view = flat.map(|flat| view_like(flat, member.offset as i64, &leaf.tensor));
        let view = view.transpose().during("laying out a bucket")?;
        leaf.place = Some(Place { bucket, view });
    }
    Ok(())
}

fn escaped(
    table: &LeafTable,
    bucket: &Bucket,
) -> std::result::Result<bool, crate::bridge::BridgeError> {
    let Some(flat) = &bucket.flat else { return Ok(false) };
    let mut all_in_place = true;
    for member in &bucket.shape.members {
        let leaf = table.get(member.leaf);
        let Some(Place { view: Some(view), .. }) = &leaf.place else { continue };
        let used = view_use(&leaf.tensor, view)?;
        // A gradient that is accumulated in place changes under its holder on one device too.
        if used.held && !used.is_gradient {
            return Ok(true);
        }
        all_in_place &= used.is_gradient;
    }
    let placed = |member: &&Member| table.get(member.leaf).place.is_some();
    let own = 1 + bucket.shape.members.iter().filter(placed).count() as i64;
    Ok(!all_in_place && storage_uses(flat)? > own)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::bridge::{GradState, grad_into_view, identity, set_grad};

    fn plain(shape: &Shape) -> Result<Tensor> {
        Ok(Tensor::zeros([shape.elements as i64], (shape.kind, shape.device)))
    }

    fn parameters(table: &mut LeafTable, sizes: &[i64]) -> Vec<Tensor> {
        sizes
            .iter()
            .map(|&size| {
                let tensor =
                    Tensor::ones([size], (Kind::Float, Device::Cpu)).set_requires_grad(true);
                table.add(identity(&tensor).unwrap(), &tensor, Some(format!("p{size}")));
                tensor
            })
            .collect()
    }

    fn view(table: &LeafTable, id: u32) -> &Tensor {
        table.get(id).place.as_ref().and_then(|place| place.view.as_ref()).unwrap()
    }

    fn backward(table: &LeafTable, id: u32, parameter: &Tensor) {
        (parameter * 3.0).sum(Kind::Float).backward();
        let view = view(table, id);
        grad_into_view(parameter, view, 1.0, false).unwrap();
    }

    #[test]
    fn a_gradient_that_is_kept_keeps_its_values() {
        let mut table = LeafTable::default();
        let parameters = parameters(&mut table, &[4, 6]);
        let mut layout = Layout::new(1 << 20, None);
        layout.place(&mut table, &[1, 0], &plain).unwrap();
        backward(&table, 0, &parameters[0]);
        let kept = parameters[0].grad();
        set_grad(&parameters[0], None).unwrap();
        layout.refresh(&mut table, 0, &plain).unwrap();
        (&parameters[0] * 5.0).sum(Kind::Float).backward();
        let view = view(&table, 0);
        assert_eq!(grad_into_view(&parameters[0], view, 1.0, false).unwrap(), GradState::Moved);
        assert_eq!(Vec::<f32>::try_from(&kept).unwrap(), [3.0; 4]);
        assert_eq!(Vec::<f32>::try_from(parameters[0].grad()).unwrap(), [5.0; 4]);
    }

    #[test]
    fn a_slice_of_a_gradient_counts_as_kept_too() {
        let mut table = LeafTable::default();
        let parameters = parameters(&mut table, &[4]);
        let mut layout = Layout::new(1 << 20, None);
        layout.place(&mut table, &[0], &plain).unwrap();
        backward(&table, 0, &parameters[0]);
        let kept = parameters[0].grad().narrow(0, 1, 2);
        set_grad(&parameters[0], None).unwrap();
        let before = layout.flat(0).data_ptr();
        layout.refresh(&mut table, 0, &plain).unwrap();
        assert_ne!(layout.flat(0).data_ptr(), before);
        drop(kept);
        let before = layout.flat(0).data_ptr();
        layout.refresh(&mut table, 0, &plain).unwrap();
        assert_eq!(layout.flat(0).data_ptr(), before);
    }

    #[test]
    fn an_accumulated_gradient_stays_in_place_and_zero_grad_works_on_it() {
        let mut table = LeafTable::default();
        let mut parameters = parameters(&mut table, &[4]);
        let mut layout = Layout::new(1 << 20, None);
        layout.place(&mut table, &[0], &plain).unwrap();
        backward(&table, 0, &parameters[0]);
        let before = layout.flat(0).data_ptr();
        layout.refresh(&mut table, 0, &plain).unwrap();
        assert_eq!(layout.flat(0).data_ptr(), before);
        backward(&table, 0, &parameters[0]);
        assert_eq!(Vec::<f32>::try_from(layout.flat(0)).unwrap(), [6.0; 4]);
        parameters[0].zero_grad();
        assert_eq!(Vec::<f32>::try_from(layout.flat(0)).unwrap(), [0.0; 4]);
    }

    #[test]
    fn views_have_the_parameters_strides() {
        let mut table = LeafTable::default();
        let tensor = Tensor::ones([2, 3, 4, 5], (Kind::Float, Device::Cpu))
            .permute([0, 3, 1, 2])
            .set_requires_grad(true);
        table.add(identity(&tensor).unwrap(), &tensor, None);
        let mut layout = Layout::new(1 << 20, None);
        layout.place(&mut table, &[0], &plain).unwrap();
        let view = view(&table, 0);
        assert_eq!((view.size(), view.stride()), (tensor.size(), tensor.stride()));
    }
}
