//! What synchronised layers send from inside a forward or backward, where operations of the data plane may be under way.
//!
//! Each collective has its header, as any other. Where a rank stands aside one more message tells it what the others bring,
//! since it has no layer to know that by.
use tch::{Kind, Tensor};

use super::Group;
use crate::batch_norm::check_total;
use crate::comm::ReduceOp;
use crate::control::{Header, Operation};
use crate::error::{During, Error, Result};
use crate::hash::hash_of;
use crate::uneven;

const OPERATION: &str = "exchanging statistics of a batch";

/// What each rank brings to a collective of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brings {
    /// So many numbers on the host.
    Values(usize),
    /// A tensor of so many numbers of this kind, on the device that the data plane serves.
    Tensor(usize, Kind),
}

impl Brings {
    /// What a tensor of the fused kernels is: they add up in two kinds only.
    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self::Tensor(tensor.numel(), tensor.kind())
    }

    /// As messages say it, behind the name of the layer: ranks that bring other things do not meet.
    fn describe(self, layer: &str) -> String {
        match self {
            Self::Values(_) => format!("{layer} on the CPU"),
            Self::Tensor(_, kind) => format!("{layer} on a GPU, computed in {kind:?}"),
        }
    }

    fn encode(self) -> [i64; 2] {
        match self {
            Self::Values(length) => [0, length as i64],
            Self::Tensor(length, Kind::Double) => [2, length as i64],
            Self::Tensor(length, _) => [1, length as i64],
        }
    }

    fn decode(words: &[i64]) -> Option<Self> {
        let [code, length] = *words else { return None };
        let length = usize::try_from(length).ok()?;
        match code {
            0 => Some(Self::Values(length)),
            1 => Some(Self::Tensor(length, Kind::Float)),
            2 => Some(Self::Tensor(length, Kind::Double)),
            _ => None,
        }
    }
}

impl Group {
    /// Every rank's values, from inside a forward or backward of `layer`.
    pub(crate) fn exchange_in_pass(
        &mut self,
        operation: Operation,
        layer: &str,
        values: &[f64],
    ) -> Result<Vec<Vec<f64>>> {
        let _ = self.announce_layer(operation, layer, Brings::Values(values.len()), 0)?;
        self.gather_values(values)
    }

    /// Of each rank that has values, `count` of them a channel, its `own` as a row, from inside a forward of `layer`. The host
    /// does not wait for the device.
    pub(crate) fn gather_in_pass(
        &mut self,
        layer: &str,
        count: i64,
        own: &Tensor,
    ) -> Result<Tensor> {
        let headers = self.announce_layer(Operation::NormForward, layer, Brings::of(own), count)?;
        let counts: Vec<i64> =
            headers.iter().map(|header| if header.aside { 0 } else { header.extra }).collect();
        check_total(layer, counts.iter().sum::<i64>() as f64)?;
        let all = self.gather_rows(own)?;
        if !counts.contains(&0) {
            return Ok(all);
        }
        let present = (0..).zip(&counts).filter(|(_, count)| **count > 0);
        let rows =
            present.map(|(rank, _)| all.f_get(rank)).collect::<std::result::Result<Vec<_>, _>>();
        rows.and_then(|rows| Tensor::f_stack(&rows, 0)).during(OPERATION)
    }

    /// Adds up `sums` over all ranks, in place. All ranks have announced it.
    pub(crate) fn add_up_in_pass(&mut self, sums: &Tensor) -> Result<()> {
        self.all_reduce(sums, ReduceOp::Sum, OPERATION)
    }

    /// Announces a collective of a layer with a word, and returns when all ranks have announced the same one.
    pub(crate) fn announce_layer(
        &mut self,
        operation: Operation,
        layer: &str,
        brings: Brings,
        word: i64,
    ) -> Result<Vec<Header>> {
        let text = brings.describe(layer);
        let headers = self.announce(operation, hash_of(&text), word)?;
        self.meet(&headers, &text, brings)?;
        Ok(headers)
    }

    /// Takes part in a collective of a layer with nothing to add, for a rank that stands aside.
    pub(crate) fn accompany_in_pass(&mut self, headers: &[Header]) -> Result<()> {
        match self.meet(headers, "nothing", Brings::Values(0))? {
            Brings::Values(length) => self.gather_values(&vec![0.0; length]).map(drop),
            Brings::Tensor(length, kind) => {
                let options = (kind, self.data.device());
                let nothing = Tensor::f_zeros([length as i64], options).during(OPERATION)?;
                match headers[uneven::lead(headers)].operation {
                    Operation::NormForward => self.gather_rows(&nothing).map(drop),
                    _ => self.add_up_in_pass(&nothing),
                }
            }
        }
    }

    /// What the lead brings; an error unless all ranks that do not stand aside bring the same to the same layer.
    fn meet(&mut self, headers: &[Header], text: &str, own: Brings) -> Result<Brings> {
        let lead = uneven::lead(headers);
        let other = |header: &Header| header.subject != headers[lead].subject;
        if let Some(rank) = headers.iter().position(other) {
            let layers = self.control.gather_bytes(&self.watch, text.as_bytes())?;
            let name = |rank: usize| String::from_utf8_lossy(&layers[rank]);
            return Err(Error::mismatch(
                format!("rank {lead} trains {}, rank {rank} {}", name(lead), name(rank)),
                "run synchronised BatchNorm layers in the same order on all ranks, with inputs of one dtype on devices of one \
                 kind",
            ));
        }
        if !headers.iter().any(|header| header.aside) {
            return Ok(own);
        }
        let words = self.control.gather_words(&self.watch, &own.encode())?;
        Brings::decode(&words[lead]).ok_or_else(|| {
            Error::mismatch(
                "a layer brings what no version of this crate knows",
                "start all ranks from one and the same binary",
            )
        })
    }

    /// One row of each rank.
    fn gather_rows(&self, own: &Tensor) -> Result<Tensor> {
        let shape = [self.topology.world_size as i64, own.numel() as i64];
        let all = Tensor::f_empty(shape, (own.kind(), own.device())).during(OPERATION)?;
        self.all_gather(&all, own, OPERATION)?;
        Ok(all)
    }

    /// Over the control plane, which a backward has settled before.
    fn gather_values(&mut self, values: &[f64]) -> Result<Vec<Vec<f64>>> {
        let words: Vec<i64> = values.iter().map(|value| value.to_bits().cast_signed()).collect();
        let all = self.control.gather_words(&self.watch, &words)?;
        let value = |word: i64| f64::from_bits(word.cast_unsigned());
        Ok(all.into_iter().map(|words| words.into_iter().map(value).collect()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_brought_survives_the_wire() {
        for brings in
            [Brings::Values(7), Brings::Tensor(9, Kind::Float), Brings::Tensor(0, Kind::Double)]
        {
            assert_eq!(Brings::decode(&brings.encode()), Some(brings));
        }
        assert_eq!(Brings::decode(&[3, 1]), None);
    }
}
