//! The listening socket of the job's store, bound before any rank starts.
//!
//! Rank 0 inherits it, so that there is no moment in which another program can take the port, no
//! rank connects too early, and nothing listens outside loopback in a job on one host.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};

use super::plan::Hosts;
use crate::error::RunError;

/// A socket and the port it is bound to.
pub(super) type Listener = (TcpListener, u16);

/// Binds the socket if rank 0 runs on this host.
pub(super) fn listen(hosts: &Hosts) -> Result<Option<Listener>, RunError> {
    if !hosts.is_first() {
        return Ok(None);
    }
    let (addr, port) = (hosts.addr.as_str(), hosts.port());
    let bound = (addr, port)
        .to_socket_addrs()
        .and_then(|addresses| TcpListener::bind(addresses.collect::<Vec<_>>().as_slice()));
    let listener = bound.map_err(|source| refused(addr, port, source))?;
    let port = listener.local_addr().map_err(|source| refused(addr, port, source))?.port();
    Ok(Some((listener, port)))
}

fn refused(addr: &str, port: u16, source: io::Error) -> RunError {
    let addr = addr.to_owned();
    match source.kind() {
        io::ErrorKind::AddrInUse => RunError::PortTaken { addr, port },
        io::ErrorKind::PermissionDenied => {
            RunError::System { action: "listen on a port below 1024", source }
        }
        _ => RunError::NotOurAddress { addr, source },
    }
}
