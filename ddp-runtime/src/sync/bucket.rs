//! Which gradients share a bucket: a pure decision, the same on all ranks.
//!
//! The rule is PyTorch's (`compute_bucket_assignment_by_size`): in the order given, a bucket for each dtype and device is
//! filled until it has reached its size, the first one of a kind being small, so that communication starts early. Unlike there, a
//! gradient that may be reduced where autograd makes it has a bucket for itself.
use tch::{Device, Kind};

/// The size at which the first bucket of a kind is closed.
pub(crate) const FIRST_BUCKET_BYTES: usize = 1 << 20;
/// Gradients start at multiples of this, so that vector instructions meet aligned data.
const ALIGNMENT_BYTES: usize = 64;

/// A gradient to place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Item {
    /// The leaf it belongs to.
    pub(crate) leaf: u32,
    /// Its elements.
    pub(crate) elements: usize,
    /// Only gradients of one dtype share a bucket.
    pub(crate) kind: Kind,
    /// And of one device.
    pub(crate) device: Device,
    /// It has a bucket for itself.
    pub(crate) alone: bool,
}

/// A gradient's place in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// The leaf.
    pub(crate) leaf: u32,
    /// Its first element in the bucket.
    pub(crate) offset: usize,
    /// Its elements.
    pub(crate) elements: usize,
}

/// A bucket: what lies where.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape {
    /// The dtype of all members.
    pub(crate) kind: Kind,
    /// Their device.
    pub(crate) device: Device,
    /// In the order in which they lie there.
    pub(crate) members: Vec<Member>,
    /// Elements in all, gaps for alignment included.
    pub(crate) elements: usize,
    /// It holds one gradient, which may lie where autograd makes it.
    pub(crate) alone: bool,
}

impl Shape {
    fn new(kind: Kind, device: Device) -> Self {
        Self { kind, device, members: Vec::new(), elements: 0, alone: false }
    }

    fn alone(item: &Item) -> Self {
        let mut shape = Self { alone: true, ..Self::new(item.kind, item.device) };
        shape.push(item);
        shape
    }

    fn bytes(&self) -> usize {
        self.elements * self.kind.elt_size_in_bytes()
    }

    fn push(&mut self, item: &Item) {
        let step = (ALIGNMENT_BYTES / self.kind.elt_size_in_bytes().max(1)).max(1);
        let offset = self.elements.next_multiple_of(step);
        self.members.push(Member { leaf: item.leaf, offset, elements: item.elements });
        self.elements = offset + item.elements;
    }
}

/// Places gradients in buckets, in the order given, each bucket closed at `limit` bytes (the first of a kind at
/// `first_limit`). A gradient larger than that has a bucket for itself and what came before it.
pub(crate) fn assign(items: &[Item], first_limit: usize, limit: usize) -> Vec<Shape> {
    let mut closed: Vec<Shape> = Vec::new();
    // One open bucket a kind, and the limit at which it closes.
    let mut open: Vec<(Shape, usize)> = Vec::new();
    for item in items {
        if item.alone {
            closed.push(Shape::alone(item));
            continue;
        }
        let same =
            |(shape, _): &(Shape, usize)| shape.kind == item.kind && shape.device == item.device;
        let at = open.iter().position(same).unwrap_or_else(|| {
            open.push((Shape::new(item.kind, item.device), first_limit));
            open.len() - 1
        });
        let (shape, closes_at) = &mut open[at];
        shape.push(item);
        if shape.bytes() >= *closes_at {
            *closes_at = limit;
            let full = std::mem::replace(shape, Shape::new(item.kind, item.device));
            closed.push(full);
        }
    }
    closed
        .extend(open.into_iter().map(|(shape, _)| shape).filter(|shape| !shape.members.is_empty()));
    closed
}

/// A stretch of a bucket that one all-reduce covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The bucket.
    pub(crate) bucket: usize,
    /// First element.
    pub(crate) start: usize,
    /// One past the last.
    pub(crate) end: usize,
    /// The leaves whose gradients lie there.
    pub(crate) leaves: Vec<u32>,
}

/// What to reduce when only some leaves are active: the longest stretches without an inactive gradient inside.
///
/// What lies in between belongs to leaves that this backward does not reach, and must not be touched.
pub(crate) fn runs<'a>(
    buckets: impl IntoIterator<Item = (usize, &'a Shape)>,
    active: impl Fn(u32) -> bool,
) -> Vec<Run> {
    let mut runs = Vec::new();
    for (bucket, shape) in buckets {
        let mut current: Option<Run> = None;
        for member in &shape.members {
            if active(member.leaf) {
                let run = current.get_or_insert_with(|| Run {
                    bucket,
                    start: member.offset,
                    end: member.offset,
                    leaves: Vec::new(),
                });
                run.end = member.offset + member.elements;
                run.leaves.push(member.leaf);
            } else {
                runs.extend(current.take());
            }
        }
        runs.extend(current);
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn item(leaf: u32, elements: usize, kind: Kind) -> Item {
        Item { leaf, elements, kind, device: Device::Cpu, alone: false }
    }

    fn leaves(shapes: &[Shape]) -> Vec<Vec<u32>> {
        shapes
            .iter()
            .map(|shape| shape.members.iter().map(|member| member.leaf).collect())
            .collect()
    }

    #[test]
    fn the_first_bucket_is_small_and_kinds_do_not_mix() {
        let items = [
            item(0, 300, Kind::Float),
            item(1, 10, Kind::Double),
            item(2, 300, Kind::Float),
            item(3, 300, Kind::Float),
            item(4, 10, Kind::Double),
        ];
        let shapes = assign(&items, 1000, 4000);
        assert_eq!(leaves(&shapes), [vec![0], vec![2, 3], vec![1, 4]]);
    }

    #[test]
    fn a_gradient_that_stays_where_it_is_made_is_alone() {
        let items =
            [0, 1, 2, 3].map(|leaf| Item { alone: leaf == 1, ..item(leaf, 100, Kind::Float) });
        let shapes = assign(&items, 1000, 1000);
        assert_eq!(leaves(&shapes), [vec![1], vec![0, 2, 3]]);
        assert_eq!(shapes.iter().map(|shape| shape.alone).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn members_are_aligned() {
        let shapes = assign(&[item(0, 3, Kind::Float), item(1, 5, Kind::Float)], 1 << 20, 1 << 20);
        assert_eq!(shapes[0].members[1], Member { leaf: 1, offset: 16, elements: 5 });
        assert_eq!(shapes[0].elements, 21);
    }

    #[test]
    fn runs_leave_out_what_is_inactive() {
        let items: Vec<Item> = (0..5).map(|leaf| item(leaf, 16, Kind::Float)).collect();
        let shapes = assign(&items, 1 << 20, 1 << 20);
        let runs = runs(shapes.iter().enumerate(), |leaf| leaf != 2);
        assert_eq!(
            runs,
            [
                Run { bucket: 0, start: 0, end: 32, leaves: vec![0, 1] },
                Run { bucket: 0, start: 48, end: 80, leaves: vec![3, 4] },
            ]
        );
    }

    fn kinds() -> impl Strategy<Value = Kind> {
        prop_oneof![Just(Kind::Float), Just(Kind::Double), Just(Kind::Half)]
    }

    proptest! {
        #[test]
        fn every_gradient_has_one_place_and_none_overlap(
            sizes in proptest::collection::vec((0_usize..5000, kinds()), 0..60),
            first in 1_usize..4096,
            limit in 1_usize..16384,
        ) {
            let items: Vec<Item> = sizes
                .iter()
                .enumerate()
                .map(|(leaf, &(elements, kind))| item(leaf as u32, elements, kind))
                .collect();
            let shapes = assign(&items, first, limit);
            let mut seen: Vec<u32> = leaves(&shapes).concat();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..items.len() as u32).collect::<Vec<_>>());
            for shape in &shapes {
                let mut end = 0;
                for member in &shape.members {
                    let item = &items[member.leaf as usize];
                    prop_assert!(member.offset >= end);
                    prop_assert_eq!(member.elements, item.elements);
                    prop_assert_eq!(shape.kind, item.kind);
                    prop_assert_eq!(member.offset * shape.kind.elt_size_in_bytes() % 64, 0);
                    end = member.offset + member.elements;
                }
                prop_assert_eq!(end, shape.elements);
                // Without its last member a bucket was below the larger limit.
                let before = shape.members[shape.members.len() - 1].offset;
                prop_assert!(before * shape.kind.elt_size_in_bytes() < first.max(limit) + 64);
            }
        }

        #[test]
        fn runs_cover_exactly_the_active_gradients(
            sizes in proptest::collection::vec(0_usize..100, 1..40),
            mask in proptest::collection::vec(any::<bool>(), 40),
        ) {
            let items: Vec<Item> = sizes
                .iter()
                .enumerate()
                .map(|(leaf, &elements)| item(leaf as u32, elements, Kind::Float))
                .collect();
            let shapes = assign(&items, 256, 1024);
            let found = runs(shapes.iter().enumerate(), |leaf| mask[leaf as usize]);
            let mut covered: Vec<u32> = found.iter().flat_map(|run| run.leaves.clone()).collect();
            covered.sort_unstable();
            let wanted: Vec<u32> = (0..items.len() as u32).filter(|&leaf| mask[leaf as usize]).collect();
            prop_assert_eq!(covered, wanted);
            for run in &found {
                for member in &shapes[run.bucket].members {
                    let inside = member.offset < run.end && member.offset + member.elements > run.start;
                    prop_assert!(!inside || mask[member.leaf as usize]);
                }
            }
        }
    }
}
