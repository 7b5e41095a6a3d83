//! From the launcher's environment to the first all-reduce. All ranks take the same steps, and give up together.
//!
//! Order: what each rank has (GPU, NCCL) is compared over the control plane before NCCL is entered; rank 0's unique id follows
//! on the same way; the ranks join, watched by the watcher; one number is added up over all GPUs. Every step has a limit.
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ddp_env::Topology;
use tch::{Cuda, Device};

use super::fault::Fault;
use super::identity::{Decision, Identity, Offer, decide, host, host_id};
use super::lane::Lane;
use super::library::{library, open_libtorch_cuda};
use super::monitor::Monitor;
use super::raw::{ID_BYTES, RawComm, unique_id};
use super::{Nccl, driver, probe};
use crate::bridge::{self, libtorch_folder};
use crate::control::Control;
use crate::device::ordinal;
use crate::error::{Error, Result, Who};
use crate::options::{Backend, Options};
use crate::output;
use crate::scope::end_process;
use crate::watch::{Notice, Watch};

/// Joining takes a second or two on one host, some more on many; no rank has to compute anything meanwhile.
const JOIN_LIMIT: Duration = Duration::from_secs(120);
const STEP: &str = "joining the GPUs through NCCL";
/// What to look at when the ranks do not find together, or their GPUs do not reach each other.
const CAUSES: &str = "usual causes: GPUs that cannot reach each other directly, with ACS or an IOMMU on in the BIOS or in a \
                      virtual machine (try NCCL_P2P_DISABLE=1); a small /dev/shm (docker: --shm-size=8g or --ipc=host; try \
                      NCCL_SHM_DISABLE=1); a network interface that the other hosts do not reach (set NCCL_SOCKET_IFNAME). \
                      NCCL_DEBUG=INFO shows what NCCL has chosen";

/// Loads libtorch's CUDA half where there is a GPU, before libtorch is asked for CUDA the first time: it answers from then on.
///
/// The linker drops it from programs that name none of its functions, which are nearly all.
pub(crate) fn open_cuda() {
    static OPENED: OnceLock<()> = OnceLock::new();
    OPENED.get_or_init(|| {
        let gpus = driver::visible().unwrap_or(0);
        if gpus == 0 || driver::is_host_memory() {
            return;
        }
        if let Some(Err(text)) = libtorch_folder().map(|folder| open_libtorch_cuda(&folder)) {
            output::notice(format_args!("libtorch's CUDA half cannot be loaded: {text}"));
        }
    });
}

/// The GPU of this rank, before anything is made on it.
struct Own {
    ordinal: usize,
    device: Device,
}

/// Connects the ranks' GPUs, if they have some. Blocks until every rank is there, or the limit is reached.
///
/// # Errors
/// [`Error::Setup`] with what is missing, on which rank, and the cure; the same on all ranks. With [`Backend::Nccl`] it is an
/// error that there is no GPU.
pub(crate) fn connect(
    control: &Control,
    watch: &Watch,
    topology: Topology,
    options: &Options,
) -> Result<Option<Nccl>> {
    open_cuda();
    let wanted = options.backend == Backend::Nccl;
    let may_share = std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1");
    let (offer, own) = match look_around(topology.local_rank, may_share) {
        Ok(Some(own)) => (offer(&own), Some(own)),
        Ok(None) => (Offer::Cpu, None),
        Err(fault) if wanted || matches!(fault, Fault::NoGpuLeft { .. }) => {
            (Offer::Broken(fault.to_string()), None)
        }
        // As without this crate: what the driver or libtorch cannot use is not there.
        Err(_) => (Offer::Cpu, None),
    };
    let offers: Vec<Offer> = control
        .gather_bytes(watch, &offer.encode())?
        .iter()
        .map(|bytes| Offer::decode(bytes))
        .collect();
    match (decide(&offers, wanted, may_share), own) {
        (Decision::Refuse(text), _) => Err(Error::setup(STEP, text)),
        (Decision::Nccl, Some(own)) => {
            join(control, watch, topology, options.timeout, &own).map(Some)
        }
        (Decision::Cpu | Decision::Nccl, _) => Ok(None),
    }
}

/// The GPU of this rank, if there are any; an error where there are some that it cannot use.
fn look_around(local_rank: usize, may_share: bool) -> std::result::Result<Option<Own>, Fault> {
    let visible = match driver::visible()? {
        0 => return Err(Fault::NoGpu),
        visible => visible,
    };
    let mut ordinal = ordinal(local_rank, visible);
    if ordinal >= visible {
        if !may_share && host_id().is_none() {
            return Err(Fault::NoGpuLeft { local_rank, visible });
        }
        ordinal %= visible;
    }
    if driver::is_host_memory() {
        return Ok(Some(Own { ordinal, device: Device::Cpu }));
    }
    if !Cuda::is_available() {
        return Err(Fault::Device(without_cuda()));
    }
    Ok(Some(Own { ordinal, device: Device::Cuda(ordinal) }))
}

/// Why libtorch sees no GPU where the driver does.
fn without_cuda() -> String {
    let folder = libtorch_folder().unwrap_or_default();
    let folder = folder.display();
    if libtorch_folder().is_some_and(|folder| folder.join("libtorch_cuda.so").exists()) {
        format!(
            "the libtorch in {folder} is built with CUDA, but sees no GPU; either its CUDA is newer than the driver, or the \
             program asked for CUDA (Cuda::is_available, Device::cuda_if_available) before the scope began: then link it in \
             the program's build.rs, println!(\"cargo:rustc-link-arg=-Wl,--no-as-needed,-ltorch_cuda\")"
        )
    } else {
        format!("the libtorch in {folder} is built for the CPU; take one that is built with CUDA")
    }
}

/// What this rank tells the others of its GPU.
fn offer(own: &Own) -> Offer {
    let identity = driver::identify(own.ordinal).and_then(|(uuid, name)| {
        let version = library()?.version.to_string();
        Ok(Identity { host: host(), uuid, name, version })
    });
    match identity {
        Ok(identity) => Offer::Gpu(identity),
        Err(fault) => Offer::Broken(fault.to_string()),
    }
}

fn join(
    control: &Control,
    watch: &Watch,
    topology: Topology,
    timeout: Duration,
    own: &Own,
) -> Result<Nccl> {
    let id = shared_id(control, watch, topology.is_main())?;
    let limit = JOIN_LIMIT.min(timeout);
    let lane = lane(id, watch, topology, (limit, timeout), own)
        .map_err(|fault| failed(watch, topology, fault))?;
    let monitor = Monitor::start(Arc::clone(&lane), watch.eyes(), |fault| {
        end_process(&Error::Transport {
            operation: "a collective".to_owned(),
            message: fault.to_string(),
        });
    })?;
    if let Ok(library) = library()
        && topology.is_main()
    {
        output::notice(format_args!(
            "{} GPUs over NCCL {} ({})",
            topology.world_size,
            library.version,
            library.path.display()
        ));
    }
    Ok(Nccl { lane, monitor, device: own.device, world_size: topology.world_size })
}

/// The unique id that rank 0 makes, on every rank.
fn shared_id(control: &Control, watch: &Watch, is_main: bool) -> Result<[u8; ID_BYTES]> {
    let made = is_main.then(unique_id);
    let bytes = match &made {
        Some(Ok(id)) => id.to_vec(),
        Some(Err(fault)) => fault.to_string().into_bytes(),
        None => Vec::new(),
    };
    // One byte in front tells an id from an error text.
    let first = u8::from(matches!(made, Some(Ok(_))));
    let all = control.gather_bytes(watch, &[vec![first], bytes].concat())?;
    match all.first().and_then(|bytes| bytes.split_first()) {
        Some((1, id)) if id.len() == ID_BYTES => {
            let mut array = [0; ID_BYTES];
            array.copy_from_slice(id);
            Ok(array)
        }
        Some((_, text)) => {
            Err(Error::setup(STEP, format!("rank 0: {}", String::from_utf8_lossy(text))))
        }
        None => Err(Error::setup(STEP, "rank 0 sent no unique id")),
    }
}

/// Joins the communicator, and adds up one number over all ranks.
fn lane(
    id: [u8; ID_BYTES],
    watch: &Watch,
    topology: Topology,
    (join, collective): (Duration, Duration),
    own: &Own,
) -> std::result::Result<Arc<Lane>, Fault> {
    let eyes = watch.eyes();
    let go_on = || match eyes.notice() {
        Some(notice) => Err(Fault::Peer { what: STEP.to_owned(), message: notice.message }),
        None => Ok(()),
    };
    let gpu = driver::Gpu::open(own.ordinal)?;
    if let Device::Cuda(ordinal) = own.device {
        bridge::set_device(ordinal).map_err(|error| Fault::Device(error.to_string()))?;
    }
    let comm = RawComm::join(id, topology.rank, topology.world_size, join, &go_on)?;
    let stream = driver::Stream::new()?;
    let lane = Arc::new(Lane::new(comm, stream, gpu, own.device, collective));
    probe::sum_of_ranks(&lane, topology.rank, topology.world_size, join, &go_on)?;
    Ok(lane)
}

/// This rank could not join: the others, who wait for it, are told.
fn failed(watch: &Watch, topology: Topology, fault: Fault) -> Error {
    if let Fault::Peer { what, message } = fault {
        let notice = watch.notice();
        let who = notice.and_then(|notice| notice.rank).map_or(Who::Another, Who::Rank);
        return Error::Peer { operation: what, who, message };
    }
    let text = match fault {
        Fault::Timeout { .. } => format!("{fault}; {CAUSES}"),
        _ => fault.to_string(),
    };
    let error = Error::setup(STEP, format!("rank {}: {text}", topology.rank));
    let notice = Notice { rank: Some(topology.rank), message: error.to_string() };
    watch.report(&notice, topology.is_main());
    error
}
