//! `c10d::TCPStore`.
use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use super::sys::{self, DdpStore};
use super::{Result, c_string, check, take_bytes};

/// A client of the job's key-value store, and on one rank its server.
pub(crate) struct TcpStore {
    raw: *mut DdpStore,
}

// SAFETY: TCPStore is documented as usable from several threads; each call takes its own lock.
unsafe impl Send for TcpStore {}
// SAFETY: as above.
unsafe impl Sync for TcpStore {}

/// How this process takes part in the store.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoreRole {
    /// Serves it, from a socket that already listens where there is one.
    Server(Option<i32>),
    /// Only talks to it.
    Client,
}

impl TcpStore {
    pub(crate) fn connect(
        host: &str,
        port: u16,
        role: StoreRole,
        timeout: Duration,
    ) -> Result<Self> {
        let host = c_string(host)?;
        let (is_server, fd) = match role {
            StoreRole::Server(fd) => (1, fd.unwrap_or(-1)),
            StoreRole::Client => (0, -1),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: `host` is NUL-terminated and outlives the call; `raw` is written on success only.
        check(unsafe {
            sys::ddp_store_new(host.as_ptr(), port, is_server, fd, millis(timeout), &mut raw)
        })?;
        Ok(Self { raw })
    }

    pub(super) fn raw(&self) -> *mut DdpStore {
        self.raw
    }

    pub(crate) fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = c_string(key)?;
        // SAFETY: the store lives as long as `self`; the pointers are read during the call.
        check(unsafe { sys::ddp_store_set(self.raw, key.as_ptr(), value.as_ptr(), value.len()) })
    }

    /// Waits until the key is there.
    pub(crate) fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let key = c_string(key)?;
        let mut value: Vec<u8> = Vec::new();
        let context = ptr::from_mut(&mut value).cast();
        // SAFETY: `take_bytes` is called during the call only, with `context`, which is a vector.
        check(unsafe {
            sys::ddp_store_get(self.raw, key.as_ptr(), millis(timeout), take_bytes, context)
        })?;
        Ok(value)
    }

    pub(crate) fn contains(&self, key: &str) -> Result<bool> {
        let key = c_string(key)?;
        let mut found: c_int = 0;
        // SAFETY: as in `set`; `found` is written during the call.
        check(unsafe { sys::ddp_store_check(self.raw, key.as_ptr(), &mut found) })?;
        Ok(found != 0)
    }
}

impl Drop for TcpStore {
    fn drop(&mut self) {
        // SAFETY: `raw` came from ddp_store_new and is freed once.
        unsafe { sys::ddp_store_free(self.raw) }
    }
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
