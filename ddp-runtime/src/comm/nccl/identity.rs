//! What each rank says of its GPU before NCCL is entered, and what follows from all of it: pure, but for one look at the host.
use std::fmt::Write as _;

/// What one rank can bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    /// A GPU, and the NCCL to use it with.
    Gpu(Identity),
    /// No GPU.
    Cpu,
    /// A GPU that cannot be used, and why.
    Broken(String),
}

/// One GPU and the rank's NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Tells the host from all others, as NCCL sees it.
    pub(super) host: String,
    /// Tells the GPU from all others of the host.
    pub(super) uuid: String,
    /// What NVIDIA calls it.
    pub(super) name: String,
    /// NCCL's version.
    pub(super) version: String,
}

/// What all ranks do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Nccl,
    Cpu,
    /// None of both can be.
    Refuse(String),
}

const SHARED: &str = "start one rank for each GPU. To test on one GPU all the same: NCCL_MULTI_RANK_GPU_ENABLE=1 from NCCL \
                      2.30, before that another NCCL_HOSTID for each rank with NCCL_SOCKET_IFNAME=lo";

impl Offer {
    /// As bytes, for the other ranks.
    pub(super) fn encode(&self) -> Vec<u8> {
        let parts: Vec<&str> = match self {
            Offer::Gpu(gpu) => vec!["gpu", &gpu.host, &gpu.uuid, &gpu.name, &gpu.version],
            Offer::Cpu => vec!["cpu"],
            Offer::Broken(why) => vec!["broken", why],
        };
        parts.join("\0").into_bytes()
    }

    /// What another rank has said.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let parts: Vec<&str> = text.split('\0').collect();
        let owned = |part: &str| part.to_owned();
        match parts[..] {
            ["gpu", host, uuid, name, version] => Offer::Gpu(Identity {
                host: owned(host),
                uuid: owned(uuid),
                name: owned(name),
                version: owned(version),
            }),
            ["cpu"] => Offer::Cpu,
            ["broken", why] => Offer::Broken(owned(why)),
            _ => Offer::Broken("it is a version of this program that is not understood".to_owned()),
        }
    }
}

/// What the ranks do, given what each can bring. `wanted`: NCCL was asked for by name. `may_share`: two ranks on one GPU are
/// wanted.
pub(super) fn decide(offers: &[Offer], wanted: bool, may_share: bool) -> Decision {
    let broken = offers.iter().enumerate().find_map(|(rank, offer)| match offer {
        Offer::Broken(why) => Some(format!("rank {rank}: {why}")),
        _ => None,
    });
    if let Some(text) = broken {
        return Decision::Refuse(text);
    }
    let without = offers.iter().position(|offer| *offer == Offer::Cpu);
    let gpus: Vec<&Identity> = offers
        .iter()
        .filter_map(|offer| if let Offer::Gpu(gpu) = offer { Some(gpu) } else { None })
        .collect();
    match without {
        Some(rank) if wanted => return Decision::Refuse(format!("rank {rank} has no GPU")),
        Some(_) if gpus.is_empty() => return Decision::Cpu,
        Some(rank) => {
            let text = format!(
                "rank {rank} has no GPU, while others have; hide the GPUs (CUDA_VISIBLE_DEVICES=\"\") on all hosts, or show them \
                 on all"
            );
            return Decision::Refuse(text);
        }
        None => {}
    }
    if let Some(rank) = gpus.iter().position(|gpu| gpu.version != gpus[0].version) {
        return Decision::Refuse(format!(
            "rank 0 has NCCL {}, rank {rank} NCCL {}; give all ranks the same",
            gpus[0].version, gpus[rank].version
        ));
    }
    match shared(&gpus) {
        Some(text) if !may_share => Decision::Refuse(text),
        _ => Decision::Nccl,
    }
}

/// The ranks that share a GPU.
fn shared(gpus: &[&Identity]) -> Option<String> {
    let same = |a: &Identity, b: &Identity| a.host == b.host && a.uuid == b.uuid;
    let first = gpus
        .iter()
        .enumerate()
        .find(|(rank, gpu)| gpus.iter().take(*rank).any(|other| same(other, gpu)))?;
    let mut text = String::from("ranks");
    let sharing = gpus.iter().enumerate().filter(|(_, gpu)| same(gpu, first.1));
    for (index, (rank, _)) in sharing.enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{} {rank}", if index == 0 { "" } else { "," });
    }
    let uuid = first.1.uuid.get(..8).unwrap_or(&first.1.uuid);
    Some(format!(
        "{text} are on one GPU ({}, {uuid}..), which NCCL cannot do; {SHARED}",
        first.1.name
    ))
}

/// What tells this host from others, as NCCL sees it: two ranks with another NCCL_HOSTID are on two hosts for it. Containers
/// on one machine may share a name, so the boot counts too.
pub(super) fn host() -> String {
    if let Some(id) = host_id() {
        return id;
    }
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    format!("{}/{}", read("/proc/sys/kernel/hostname"), read("/proc/sys/kernel/random/boot_id"))
}

/// The name of this rank's host that the user has given to NCCL.
pub(super) fn host_id() -> Option<String> {
    std::env::var("NCCL_HOSTID").ok().filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(host: &str, uuid: &str) -> Offer {
        let owned = |text: &str| text.to_owned();
        Offer::Gpu(Identity {
            host: owned(host),
            uuid: owned(uuid),
            name: owned("H200"),
            version: owned("2.29.7"),
        })
    }

    fn refusal(decision: Decision) -> String {
        match decision {
            Decision::Refuse(text) => text,
            other => panic!("{other:?} is no refusal"),
        }
    }

    #[test]
    fn an_offer_survives_the_wire() {
        for offer in [gpu("h", "u"), Offer::Cpu, Offer::Broken("no\nluck".to_owned())] {
            assert_eq!(Offer::decode(&offer.encode()), offer);
        }
        assert!(matches!(Offer::decode(b"gpu\0half"), Offer::Broken(_)));
    }

    #[test]
    fn gpus_of_their_own_make_nccl() {
        let offers = [gpu("a", "1"), gpu("a", "2"), gpu("b", "1")];
        assert_eq!(decide(&offers, false, false), Decision::Nccl);
        assert_eq!(decide(&[Offer::Cpu, Offer::Cpu], false, false), Decision::Cpu);
    }

    #[test]
    fn two_ranks_on_one_gpu_are_named_unless_that_is_wanted() {
        let offers = [gpu("a", "0123456789"), gpu("a", "2"), gpu("a", "0123456789")];
        let text = refusal(decide(&offers, false, false));
        assert!(text.starts_with("ranks 0, 2 are on one GPU (H200, 01234567..)"), "{text}");
        assert_eq!(decide(&offers, false, true), Decision::Nccl);
    }

    #[test]
    fn ranks_that_differ_are_named() {
        let text = refusal(decide(&[gpu("a", "1"), Offer::Cpu], false, false));
        assert!(text.starts_with("rank 1 has no GPU, while others have"), "{text}");
        assert_eq!(refusal(decide(&[Offer::Cpu], true, false)), "rank 0 has no GPU");
        let broken = Offer::Broken("no NCCL".to_owned());
        assert_eq!(refusal(decide(&[gpu("a", "1"), broken], false, false)), "rank 1: no NCCL");
        let Offer::Gpu(mut other) = gpu("b", "1") else { panic!() };
        other.version = "2.27.3".to_owned();
        let text = refusal(decide(&[gpu("a", "1"), Offer::Gpu(other)], false, false));
        assert!(text.starts_with("rank 0 has NCCL 2.29.7, rank 1 NCCL 2.27.3"), "{text}");
    }
}
