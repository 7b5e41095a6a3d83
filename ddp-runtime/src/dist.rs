//! Collectives that a program calls by itself, as `torch.distributed` has them: on tensors, and on values that serde knows.
//!
//! All ranks of the scope must call the same ones in the same order, with the same root. A rank that is elsewhere is an error on
//! all of them that says where each is. With one rank they return what they are given.
//!
//! ```no_run
//! use ddp_runtime::dist;
//!
//! # fn load() -> Vec<String> { Vec::new() }
//! let vocabulary: Vec<String> = dist::broadcast_object(ddp_runtime::is_main().then(load), 0)?;
//! # Ok::<(), ddp_runtime::Error>(())
//! ```
//!
//! Tensors travel over the transport of the gradients, values over the control plane. The results are what the names
//! say; the traffic is not the least possible: [`reduce`] and [`reduce_scatter`] are all-reduces of which a rank keeps its part.
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Device, Kind, Tensor};

use crate::collective::{contiguous_copy, kind_of, write_back};
use crate::comm::ReduceOp;
use crate::control::Operation;
use crate::error::{During, Error, Result};
use crate::group::{Group, check_mean};
use crate::hash::hash_of;
use crate::session::{self, Session};

/// What carries tensors between the ranks of the current scope: `gloo`; `shm`, shared memory; `shm+gloo`, shared memory on each
/// host and Gloo between the hosts; `nccl` for tensors on GPUs. `None` where one process is alone.
pub fn backend() -> Option<&'static str> {
    session::current().map(|session| session.backend())
}

/// The size of gradient buckets in the current scope, in bytes: what [`Options::bucket_bytes`](crate::Options) says, or what the ranks
/// chose. `None` where one process is alone.
pub fn bucket_bytes() -> Option<usize> {
    session::current().map(|session| session.bucket_bytes())
}

/// Waits until all ranks are here.
///
/// # Errors
/// [`Error::Mismatch`] when another rank is elsewhere, [`Error::Peer`] when one has failed.
pub fn barrier() -> Result<()> {
    match session::current() {
        Some(session) => session.collective(Operation::Barrier, 0, |_| Ok(())),
        None => Ok(()),
    }
}

/// Combines the ranks' tensors of one shape on rank `root`, in place; the other ranks' stay as they are.
///
/// # Errors
/// As [`barrier`]; also when shapes or dtypes differ, or there is no such rank; [`Error::Unsupported`] for the mean of integers.
pub fn reduce(tensor: &Tensor, root: usize, op: ReduceOp) -> Result<()> {
    let Some(session) = rooted(root)? else { return Ok(()) };
    let operation = "reduce";
    check_mean(op, tensor.kind(), operation)?;
    let detail = (tensor.size(), tensor.kind() as i64, root, op as usize);
    session.collective(Operation::Collective, hash_of(&(operation, detail)), |group| {
        let values = contiguous_copy(tensor, operation)?;
        group.all_reduce(&values, op, operation)?;
        if group.topology().rank == root {
            write_back(tensor, &values, operation)?;
        }
        Ok(())
    })
}

/// Combines the ranks' tensors of one shape, and gives each rank its stretch of the first dimension, which the number of ranks
/// must divide.
///
/// # Errors
/// As [`reduce`]; [`Error::Unsupported`] when it does not divide.
pub fn reduce_scatter(tensor: &Tensor, op: ReduceOp) -> Result<Tensor> {
    let operation = "reduce_scatter";
    check_mean(op, tensor.kind(), operation)?;
    let Some(session) = session::current() else { return contiguous_copy(tensor, operation) };
    let (rank, world_size) = (session.topology().rank as i64, session.topology().world_size as i64);
    let rows = tensor.size().first().copied().unwrap_or(1);
    if rows % world_size != 0 || tensor.dim() == 0 {
        return Err(Error::unsupported(
            format!("reduce_scatter of a tensor {:?} over {world_size} ranks", tensor.size()),
            "pad the first dimension to a multiple of the number of ranks",
        ));
    }
    let detail = (tensor.size(), tensor.kind() as i64, op as usize);
    session.collective(Operation::Collective, hash_of(&(operation, detail)), |group| {
        let values = contiguous_copy(tensor, operation)?;
        group.all_reduce(&values, op, operation)?;
        let part = rows / world_size;
        values.f_narrow(0, rank * part, part).and_then(|own| own.f_detach_copy()).during(operation)
    })
}

/// The ranks' tensors, in the order of the ranks. They may differ in their first dimension.
///
/// # Errors
/// As [`barrier`]; also when dtypes or the other dimensions differ.
pub fn all_gather(tensor: &Tensor) -> Result<Vec<Tensor>> {
    match session::current() {
        Some(session) => gather_rows(&session, "all_gather", tensor, 0),
        None => Ok(vec![contiguous_copy(tensor, "all_gather")?]),
    }
}

/// The ranks' tensors, in the order of the ranks, on rank `root`; `None` on the others. They may differ in their first
/// dimension.
///
/// # Errors
/// As [`all_gather`]; also when there is no such rank.
pub fn gather(tensor: &Tensor, root: usize) -> Result<Option<Vec<Tensor>>> {
    let Some(session) = rooted(root)? else {
        return Ok(Some(vec![contiguous_copy(tensor, "gather")?]));
    };
    let all = gather_rows(&session, "gather", tensor, root)?;
    Ok((session.topology().rank == root).then_some(all))
}

/// One of rank `root`'s tensors for each rank, in their order. They must be of one dtype; shapes may differ. The other ranks
/// pass `None`.
///
/// # Errors
/// As [`barrier`]; [`Error::Unsupported`] on all ranks when the root does not give one for each, of one dtype.
pub fn scatter(tensors: Option<&[Tensor]>, root: usize) -> Result<Tensor> {
    let operation = "scatter";
    let Some(session) = rooted(root)? else {
        let one = tensors.filter(|tensors| tensors.len() == 1).ok_or_else(|| not_one_each(1))?;
        return contiguous_copy(&one[0], operation);
    };
    let topology = session.topology();
    let own = tensors.filter(|_| topology.rank == root);
    session.collective(Operation::Collective, hash_of(&(operation, root)), |group| {
        let layout = own.and_then(|tensors| Layout::of(tensors, topology.world_size));
        let Some(layout) = from_root(group, root, &layout)?.flatten() else {
            return Ok(Err(not_one_each(topology.world_size)));
        };
        let kind = kind_of(layout.kind);
        let flat = match own {
            Some(tensors) => flattened(tensors, operation)?,
            None => Tensor::f_zeros([layout.total()], (kind, crate::device::device()))
                .during(operation)?,
        };
        if flat.numel() > 0 {
            group.broadcast(&flat, root, operation)?;
        }
        layout.part(&flat, topology.rank, operation).map(Ok)
    })?
}

/// Rank `root`'s value, on all ranks. The others pass `None`; what they pass is not looked at.
///
/// # Errors
/// As [`barrier`]; [`Error::Unsupported`] on all ranks when the root passes none, or serde cannot write or read it.
pub fn broadcast_object<T: Serialize + DeserializeOwned>(
    value: Option<T>,
    root: usize,
) -> Result<T> {
    let Some(session) = rooted(root)? else { return value.ok_or_else(no_value) };
    let operation = "broadcast_object";
    let own = value.filter(|_| session.topology().rank == root);
    session
        .collective(Operation::Collective, hash_of(&(operation, root)), |group| {
            from_root(group, root, &own)
        })?
        .flatten()
        .ok_or_else(no_value)
}

/// Every rank's value, in the order of the ranks.
///
/// # Errors
/// As [`barrier`]; [`Error::Unsupported`] when serde cannot write or read it.
pub fn all_gather_object<T: Serialize + DeserializeOwned>(value: &T) -> Result<Vec<T>> {
    let bytes = written(value)?;
    match session::current() {
        None => Ok(vec![read(&bytes)?]),
        Some(session) => gather_bytes(&session, "all_gather_object", 0, &bytes)?
            .iter()
            .map(|bytes| read(bytes))
            .collect(),
    }
}

/// Every rank's value, in the order of the ranks, on rank `root`; `None` on the others.
///
/// # Errors
/// As [`all_gather_object`]; also when there is no such rank.
pub fn gather_object<T: Serialize + DeserializeOwned>(
    value: &T,
    root: usize,
) -> Result<Option<Vec<T>>> {
    let bytes = written(value)?;
    let Some(session) = rooted(root)? else { return Ok(Some(vec![read(&bytes)?])) };
    let all = gather_bytes(&session, "gather_object", root, &bytes)?;
    if session.topology().rank != root {
        return Ok(None);
    }
    all.iter().map(|bytes| read(bytes)).collect::<Result<Vec<T>>>().map(Some)
}

/// One of rank `root`'s values for each rank, in their order. The other ranks pass `None`.
///
/// # Errors
/// As [`broadcast_object`]; also when the root does not give one for each rank.
pub fn scatter_object<T: Serialize + DeserializeOwned>(
    values: Option<Vec<T>>,
    root: usize,
) -> Result<T> {
    let Some(session) = rooted(root)? else {
        let mut values =
            values.filter(|values| values.len() == 1).ok_or_else(|| not_one_each(1))?;
        return Ok(values.remove(0));
    };
    let topology = session.topology();
    let own = values
        .filter(|values| topology.rank == root && values.len() == topology.world_size)
        .map(|values| values.iter().map(written).collect::<Result<Vec<Vec<u8>>>>())
        .transpose()?;
    let operation = "scatter_object";
    let all = session.collective(Operation::Collective, hash_of(&(operation, root)), |group| {
        from_root(group, root, &own)
    })?;
    match all.flatten() {
        Some(all) => read(&all[topology.rank]),
        None => Err(not_one_each(topology.world_size)),
    }
}

/// The scope, if it has more than one rank, among which `root` must be.
fn rooted(root: usize) -> Result<Option<std::sync::Arc<Session>>> {
    let session = session::current();
    let world_size = session.as_ref().map_or(1, |session| session.topology().world_size);
    if root >= world_size {
        return Err(Error::unsupported(
            format!("rank {root} was named as the root of {world_size} ranks"),
            "ranks count from 0",
        ));
    }
    Ok(session)
}

fn not_one_each(ranks: usize) -> Error {
    Error::unsupported(
        format!(
            "the root of a scatter did not give one value for each of {ranks} ranks, of one dtype"
        ),
        "pass as many as there are ranks on the root, and `None` elsewhere",
    )
}

fn no_value() -> Error {
    Error::unsupported("the root of a broadcast gave no value", "pass `Some(value)` on the root")
}

/// One flat tensor of all.
fn flattened(tensors: &[Tensor], operation: &str) -> Result<Tensor> {
    let flat: Result<Vec<Tensor>> = tensors
        .iter()
        .map(|tensor| contiguous_copy(tensor, operation)?.f_view(-1).during(operation))
        .collect();
    Tensor::f_cat(&flat?, 0).during(operation)
}

/// Shapes of tensors that travel as one.
#[derive(serde::Serialize, serde::Deserialize)]
struct Layout {
    kind: i64,
    sizes: Vec<Vec<i64>>,
}

impl Layout {
    fn of(tensors: &[Tensor], count: usize) -> Option<Self> {
        let kind = tensors.first()?.kind();
        let fits = tensors.len() == count && tensors.iter().all(|tensor| tensor.kind() == kind);
        let sizes = tensors.iter().map(Tensor::size).collect();
        fits.then_some(Self { kind: kind as i64, sizes })
    }

    fn total(&self) -> i64 {
        self.sizes.iter().map(|size| size.iter().product::<i64>()).sum()
    }

    fn part(&self, flat: &Tensor, number: usize, operation: &str) -> Result<Tensor> {
        let length = |size: &Vec<i64>| size.iter().product::<i64>();
        let start: i64 = self.sizes[..number].iter().map(length).sum();
        let size = &self.sizes[number];
        flat.f_narrow(0, start, length(size))
            .and_then(|part| part.f_detach_copy())
            .and_then(|part| part.f_view(&size[..]))
            .during(operation)
    }
}

/// Every rank's tensor; they may differ in their first dimension.
fn gather_rows(
    session: &Session,
    operation: &str,
    tensor: &Tensor,
    root: usize,
) -> Result<Vec<Tensor>> {
    let size = tensor.size();
    let detail = (size.len(), size.get(1..).map(<[i64]>::to_vec), tensor.kind() as i64, root);
    session.collective(Operation::Collective, hash_of(&(operation, detail)), |group| {
        let world_size = group.topology().world_size;
        let rows = size.first().copied().unwrap_or(1);
        let (control, watch) = group.control();
        let all_rows: Vec<i64> =
            control.gather_words(watch, &[rows])?.into_iter().map(|words| words[0]).collect();
        let most = all_rows.iter().copied().max().unwrap_or(0);
        let row: i64 = size.iter().skip(1).product();
        let padded = most * row;
        let own = contiguous_copy(tensor, operation)?.f_view(-1).during(operation)?;
        let options = (own.kind(), own.device());
        let input = Tensor::f_zeros([padded], options).during(operation)?;
        let mut begin = input.f_narrow(0, 0, rows * row).during(operation)?;
        begin.f_copy_(&own).during(operation)?;
        let output = Tensor::f_zeros([padded * world_size as i64], options).during(operation)?;
        if padded > 0 {
            group.all_gather(&output, &input, operation)?;
        }
        let mut parts = Vec::with_capacity(world_size);
        for (rank, rows) in all_rows.into_iter().enumerate() {
            let mut shape = size.clone();
            if let Some(first) = shape.first_mut() {
                *first = rows;
            }
            let part = output.f_narrow(0, rank as i64 * padded, rows * row);
            let part =
                part.and_then(|part| part.f_detach_copy()).and_then(|part| part.f_view(&shape[..]));
            parts.push(part.during(operation)?);
        }
        Ok(parts)
    })
}

fn gather_bytes(
    session: &Session,
    operation: &str,
    root: usize,
    bytes: &[u8],
) -> Result<Vec<Vec<u8>>> {
    session.collective(Operation::Collective, hash_of(&(operation, root)), |group| {
        let (control, watch) = group.control();
        control.gather_bytes(watch, bytes)
    })
}

/// The root's value on every rank, inside a collective. Nothing where serde could not write it.
fn from_root<T: Serialize + DeserializeOwned>(
    group: &mut Group,
    root: usize,
    own: &T,
) -> Result<Option<T>> {
    let operation = "sending a value";
    let is_root = group.topology().rank == root;
    // A root that cannot write it says so by a negative length, so that nobody waits for it.
    let bytes = if is_root { written(own).ok() } else { Some(Vec::new()) };
    let length = bytes.as_ref().map_or(-1, |bytes| bytes.len() as i64);
    let (control, watch) = group.control();
    let length = control.gather_words(watch, &[length])?[root][0];
    let (Ok(_), Some(bytes)) = (usize::try_from(length), bytes) else { return Ok(None) };
    let tensor = if is_root {
        Tensor::from_slice(&bytes)
    } else {
        Tensor::f_zeros([length], (Kind::Uint8, Device::Cpu)).during(operation)?
    };
    if length > 0 {
        control.broadcast(watch, &tensor, root)?;
    }
    let bytes = Vec::<u8>::try_from(&tensor).during(operation)?;
    read(&bytes).map(Some)
}

fn written<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
    rmp_serde::to_vec_named(value).map_err(|error| {
        Error::unsupported(
            format!("a value of type {} cannot be sent: {error}", std::any::type_name::<T>()),
            "send what serde can write",
        )
    })
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    rmp_serde::from_slice(bytes).map_err(|error| {
        Error::unsupported(
            format!("a value of type {} cannot be read: {error}", std::any::type_name::<T>()),
            "send and expect one and the same type on all ranks",
        )
    })
}
