//! Where the ranks meet: the store of the job, and the transport that fits what they have. Chosen once, when a scope begins.
use std::net::{TcpListener, UdpSocket};
use std::os::fd::IntoRawFd;
use std::sync::{Arc, Mutex, PoisonError};

use ddp_env::{Launch, StoreHost, Topology};
use tch::Device;

use crate::bridge::{StoreRole, TcpStore};
use crate::comm::{self, ByDevice, Communicator, Gloo, Grid, Host, Shm, TwoLevel};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::options::{Backend, Options};
use crate::output;
use crate::watch::Watch;

/// What this process keeps of the job for its whole life.
#[derive(Clone)]
pub(super) struct Stores {
    /// For rendezvous, on the thread that trains.
    pub(super) main: Arc<TcpStore>,
    /// The watcher's own connection: the other one may be blocked in a wait.
    pub(super) watch: Arc<TcpStore>,
}

/// The transport of tensors: between the GPUs where the ranks have some, and between the hosts' memories.
pub(super) fn data_plane(
    launch: &Launch,
    options: &Options,
    control: &mut Control,
    watch: &Watch,
    gloo: &dyn Fn(&str, usize, usize) -> Result<Gloo>,
) -> Result<Box<dyn Communicator>> {
    let gpus = match options.backend {
        Backend::Auto | Backend::Nccl => {
            comm::connect_gpus(control, watch, launch.topology, options)?
        }
        Backend::Gloo | Backend::Shm => None,
    };
    Ok(match gpus {
        // The stand-in of the tests: device memory is host memory.
        Some(gpus) if gpus.device() == Device::Cpu => Box::new(gpus),
        Some(gpus) => {
            Box::new(ByDevice::new(gpus, host_plane(launch, options, control, watch, gloo)?))
        }
        None => host_plane(launch, options, control, watch, gloo)?,
    })
}

/// The transport of CPU tensors.
fn host_plane(
    launch: &Launch,
    options: &Options,
    control: &mut Control,
    watch: &Watch,
    gloo: &dyn Fn(&str, usize, usize) -> Result<Gloo>,
) -> Result<Box<dyn Communicator>> {
    let Topology { rank, world_size, .. } = launch.topology;
    let wanted = options.backend == Backend::Shm;
    if options.backend != Backend::Gloo && (wanted || one_host(launch)) {
        let place = Host { rank, ranks: 0..world_size };
        match Shm::connect(control, watch, &place)? {
            Ok(shm) => {
                // Headers too, in an order of their own: over sockets they would take a hundred times as long.
                if let Ok(headers) = shm.another(control, watch, &place)? {
                    control.move_to(Box::new(headers));
                }
                return Ok(Box::new(shm));
            }
            Err(why) if wanted => {
                return Err(Error::setup("sharing memory between the ranks", why));
            }
            Err(why) => output::notice(format_args!(
                "no shared memory between the ranks, Gloo instead: {why}"
            )),
        }
    } else if options.backend != Backend::Gloo
        && let Some(grid) = Grid::find(control, watch, launch.topology)?
    {
        match two_levels(grid, control, watch, gloo)? {
            Ok(two_level) => return Ok(Box::new(two_level)),
            Err(why) => output::notice(format_args!(
                "no shared memory between the ranks of a host, Gloo between all: {why}"
            )),
        }
    }
    Ok(Box::new(gloo("data", rank, world_size)?))
}

/// Shared memory on each host, Gloo between their first ranks; a text on all ranks where memory cannot be shared.
fn two_levels(
    grid: Grid,
    control: &mut Control,
    watch: &Watch,
    gloo: &dyn Fn(&str, usize, usize) -> Result<Gloo>,
) -> Result<std::result::Result<TwoLevel, String>> {
    let place = grid.place();
    let up = match Shm::connect(control, watch, &place)? {
        Ok(up) => up,
        Err(why) => return Ok(Err(why)),
    };
    let down = match up.another(control, watch, &place)? {
        Ok(down) => down,
        Err(why) => return Ok(Err(why)),
    };
    let across = grid.leads().then(|| gloo("hosts", grid.host(), grid.hosts)).transpose()?;
    Ok(Ok(TwoLevel::new(grid, up, down, across)))
}

pub(super) fn stores(launch: &Launch, options: &Options) -> Result<Stores> {
    static STORES: Mutex<Option<Stores>> = Mutex::new(None);
    let mut slot = STORES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(stores) = &*slot {
        return Ok(stores.clone());
    }
    let (host, port) = store_address(launch);
    let connect = |role| {
        TcpStore::connect(&host, port, role, options.timeout).map(Arc::new).map_err(|error| {
            Error::setup(format!("connecting to the store at {host}:{port}"), error)
        })
    };
    let stores = Stores { main: connect(store_role(launch)?)?, watch: connect(StoreRole::Client)? };
    *slot = Some(stores.clone());
    Ok(stores)
}

pub(super) fn one_host(launch: &Launch) -> bool {
    launch.topology.local_world_size == launch.topology.world_size
}

fn store_address(launch: &Launch) -> (String, u16) {
    let rendezvous = &launch.rendezvous;
    let host = match rendezvous.store {
        StoreHost::Rank0 { .. } if one_host(launch) => "127.0.0.1".to_owned(),
        _ => rendezvous.master_addr.clone(),
    };
    (host, rendezvous.master_port)
}

fn store_role(launch: &Launch) -> Result<StoreRole> {
    match launch.rendezvous.store {
        StoreHost::Rank0 { listen_fd } if launch.topology.is_main() => match listen_fd {
            Some(fd) => Ok(StoreRole::Server(Some(fd))),
            // Left to itself the store listens on every interface.
            None if one_host(launch) => loopback_socket(launch.rendezvous.master_port),
            None => Ok(StoreRole::Server(None)),
        },
        _ => Ok(StoreRole::Client),
    }
}

fn loopback_socket(port: u16) -> Result<StoreRole> {
    let listener = TcpListener::bind(("127.0.0.1", port)).map_err(|error| {
        Error::setup(
            format!("opening port {port} for the store"),
            format!("{error}; set MASTER_PORT to a free port"),
        )
    })?;
    // The store takes the descriptor over.
    Ok(StoreRole::Server(Some(listener.into_raw_fd())))
}

/// The address of this host that the other ranks connect to.
pub(super) fn local_address(launch: &Launch) -> Result<String> {
    if one_host(launch) {
        return Ok("127.0.0.1".to_owned());
    }
    // Connecting a datagram socket sends nothing; it makes the kernel choose the interface towards the main host.
    let (host, port) = (launch.rendezvous.master_addr.as_str(), launch.rendezvous.master_port);
    UdpSocket::bind(("0.0.0.0", 0))
        .and_then(|socket| {
            socket.connect((host, port))?;
            socket.local_addr()
        })
        .map(|address| address.ip().to_string())
        .map_err(|error| {
            Error::setup(format!("finding this host's address towards {host}:{port}"), error)
        })
}
