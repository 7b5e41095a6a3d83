//! The process group of one scope: store, control plane, data plane, watcher, made from the launcher's environment.
//!
//! The store outlives a scope, since rank 0 may serve it for several of them; the connections do not: they close when the
//! scope ends, so that the other ranks notice at once if it ended early.
mod bucket_size;
mod in_pass;
mod operations;
mod rendezvous;

use std::sync::Arc;

use ddp_env::{Launch, StoreHost, Topology};
use tch::{Device, Kind, Tensor};

pub(crate) use self::in_pass::Brings;
pub(crate) use self::operations::{Started, check_mean};
use self::rendezvous::{data_plane, local_address, stores};
use crate::comm::{Communicator, Gloo};
use crate::control::{Control, Header, Operation, PendingHeaders};
use crate::error::{During, Error, Result};
use crate::options::Options;
use crate::trace;
use crate::uneven::Course;
use crate::watch::{Notice, Watch};

/// All ranks of a scope, connected.
pub(crate) struct Group {
    topology: Topology,
    control: Control,
    data: Box<dyn Communicator>,
    watch: Watch,
    serves_store: bool,
    backwards: i64,
    course: Course,
    /// By rank: whether it stands aside from what the ranks do now.
    aside: Vec<bool>,
}

impl Group {
    /// Connects all ranks. Blocks until every one of them is there, or the time-out is reached.
    pub(crate) fn connect(launch: &Launch, generation: u64, options: &Options) -> Result<Self> {
        let topology = launch.topology;
        let stores = stores(launch, options)?;
        let address = local_address(launch)?;
        let name = format!("ddp/{}/{generation}", launch.restart_count);
        let watch = Watch::start(Arc::clone(&stores.watch), &name, options.timeout)?;
        let connect = |plane: &str, rank: usize, size: usize| {
            Gloo::connect(
                &stores.main,
                &format!("{name}/{plane}"),
                rank,
                size,
                &address,
                options.timeout,
            )
            .map_err(|error| match watch.notice() {
                Some(notice) => Error::setup("connecting the ranks", notice.message),
                None => Error::setup(
                    "connecting the ranks",
                    format!("{error} (are all {} ranks running?)", topology.world_size),
                ),
            })
        };
        let over_all = |plane: &str| connect(plane, topology.rank, topology.world_size);
        let over_sockets = Box::new(over_all("control")?);
        let mut control = Control::new(over_sockets, topology.world_size, options.uneven);
        let data = data_plane(launch, options, &mut control, &watch, &connect)?;
        if let Some(path) = &options.trace {
            trace::start(path, generation, topology, &control, &watch)?;
        }
        let hosted_by_rank_0 = matches!(launch.rendezvous.store, StoreHost::Rank0 { .. });
        let serves_store = hosted_by_rank_0 && topology.is_main();
        let aside = vec![false; topology.world_size];
        let course = Course::default();
        Ok(Self { topology, control, data, watch, serves_store, backwards: 0, course, aside })
    }

    pub(crate) fn topology(&self) -> Topology {
        self.topology
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    pub(crate) fn data(&self) -> &dyn Communicator {
        self.data.as_ref()
    }

    /// A flat tensor of zeros for a bucket, where the transport reduces it best.
    pub(crate) fn allocate(&self, elements: usize, kind: Kind, device: Device) -> Result<Tensor> {
        let operation = "allocating a bucket";
        let own = match device {
            Device::Cpu => self.data.allocate(elements, kind).during(operation)?,
            _ => None,
        };
        match own {
            Some(tensor) => Ok(tensor),
            None => Tensor::f_zeros([elements as i64], (kind, device)).during(operation),
        }
    }

    /// Carries on the operations under way, without waiting.
    pub(crate) fn progress(&self, operation: &str) -> Result<()> {
        let _span = trace::span(trace::Kind::Reducing);
        self.data.progress().map_err(|error| self.watch.explain(operation, &error))
    }

    pub(crate) fn control(&mut self) -> (&mut Control, &Watch) {
        (&mut self.control, &self.watch)
    }

    /// Backwards that have begun in this scope.
    pub(crate) fn backwards(&self) -> i64 {
        self.backwards
    }

    pub(crate) fn count_backward(&mut self) {
        self.backwards += 1;
    }

    /// Announces an operation, and returns when all ranks have announced the same one.
    pub(crate) fn announce(
        &mut self,
        operation: Operation,
        subject: u64,
        extra: i64,
    ) -> Result<Vec<Header>> {
        self.announce_as(Header { subject, extra, ..Header::new(operation, self.backwards) })
    }

    /// Announces `header`, and returns when all ranks have announced the same operation, or stand aside.
    pub(crate) fn announce_as(&mut self, header: Header) -> Result<Vec<Header>> {
        let pending = self.control.post(&self.watch, header)?;
        self.settle(pending)
    }

    /// Waits for headers on their way, and takes note of who stands aside.
    pub(crate) fn settle(&mut self, pending: PendingHeaders) -> Result<Vec<Header>> {
        pending.wait(&self.watch)?;
        let headers = pending.agree(self.topology.rank)?;
        self.course.note(&headers)?;
        self.aside.clear();
        self.aside.extend(headers.iter().map(|header| header.aside));
        Ok(headers)
    }

    /// The lowest rank that does not stand aside from what the ranks do now: its word counts where one has to.
    pub(crate) fn lead(&self) -> usize {
        self.aside.iter().position(|aside| !aside).unwrap_or(0)
    }

    /// Whether this rank is the lead.
    pub(crate) fn is_lead(&self) -> bool {
        self.lead() == self.topology.rank
    }

    /// The ranks that stand aside from what the others do now.
    pub(crate) fn asides(&self) -> impl Iterator<Item = usize> {
        self.aside.iter().enumerate().filter(|(_, aside)| **aside).map(|(rank, _)| rank)
    }

    /// What has become of ranks that took different numbers of steps.
    pub(crate) fn course(&mut self) -> &mut Course {
        &mut self.course
    }

    /// Ends what is under way on this rank's GPU: a process that ends would wait for it. Connections stay open.
    pub(crate) fn abort(&self) {
        self.data.abort();
    }

    /// Tells the other ranks that this one has failed, and closes nothing: an operation may be under way.
    pub(crate) fn report(&self, message: &str) {
        let rank = Some(self.topology.rank);
        self.watch.report(&Notice { rank, message: message.to_owned() }, self.serves_store);
    }
}
