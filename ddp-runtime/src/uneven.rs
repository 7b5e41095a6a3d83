//! Ranks that take different numbers of steps: who does what, who stands aside, and who has fallen behind. Pure decisions.
//!
//! # Note [Standing aside]
//!
//! Under `uneven = "join"` a rank that has returned from its training function, or has come to a save, stands aside while the
//! others go on: it answers each of their headers with its own ([`Operation::Leave`], [`Operation::Save`]), and takes part in
//! what they do with nothing to add. The mean of a step is over the ranks that took it. Of the ranks that took the last step the
//! lowest is the *lead*: its buffers count, it draws orders, and it saves. Once all ranks have come to the save, or have
//! returned, those that stood aside take the weights and buffers of one that did not.
//!
//! PyTorch's `Join` shadows the collectives of DistributedDataParallel likewise. It divides by the initial number of ranks
//! unless told otherwise, its context has to be written round the loop, and votes, saves and figures are the program's own.
//!
//! A rank that stood aside has missed steps, and its optimizer with it. Were it to train on, its momentum would pull its
//! weights away from the others': that is refused ([`Course::note`]).
use crate::control::{Header, Operation};
use crate::error::{Error, Result};
use crate::options::Uneven;

/// What the ranks do now, from what each of them has announced: the headers, with those of ranks that stand aside turned into
/// the lead's.
///
/// # Errors
/// [`Error::Mismatch`] names what each rank does.
pub(crate) fn settle(mut headers: Vec<Header>, rule: Uneven) -> Result<Vec<Header>> {
    let same = |a: &Header, b: &Header| a.operation == b.operation && a.backwards == b.backwards;
    if headers.iter().all(|header| same(header, &headers[0])) {
        return Ok(headers);
    }
    let Some(lead) = lead_of(&headers).filter(|_| rule == Uneven::Join) else {
        return Err(mismatch(&headers));
    };
    let now = headers[lead];
    if waits(now.operation) {
        // Nobody is under way: all have come to the save, or have returned.
        for header in headers.iter_mut().filter(|header| header.operation != now.operation) {
            stand_aside(header, &now);
        }
        return Ok(headers);
    }
    if !headers.iter().all(|header| waits(header.operation) || same(header, &now)) {
        return Err(mismatch(&headers));
    }
    for header in headers.iter_mut().filter(|header| waits(header.operation)) {
        stand_aside(header, &now);
    }
    Ok(headers)
}

fn stand_aside(header: &mut Header, now: &Header) {
    *header = Header {
        operation: now.operation,
        subject: now.subject,
        extra: now.extra,
        aside: true,
        ..*header
    };
}

/// Whether a rank that has come to this lets others go on.
fn waits(operation: Operation) -> bool {
    matches!(operation, Operation::Leave | Operation::Save)
}

/// The lowest rank that is furthest from the end: under way, else saving, else leaving.
fn lead_of(headers: &[Header]) -> Option<usize> {
    let distance = |header: &Header| match header.operation {
        Operation::Leave => 2,
        Operation::Save => 1,
        _ => 0,
    };
    (0..headers.len()).min_by_key(|&rank| distance(&headers[rank]))
}

/// The lowest rank that does not stand aside.
pub(crate) fn lead(headers: &[Header]) -> usize {
    headers.iter().position(|header| !header.aside).unwrap_or(0)
}

/// What has become of the ranks so far. All ranks see the same headers, and keep the same course.
#[derive(Debug, Default)]
pub(crate) struct Course {
    /// The backwards that each rank has missed.
    missed: Vec<i64>,
    /// Some ranks have older weights than others.
    stale: bool,
}

impl Course {
    /// Takes note of what the ranks do now.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when a rank that has missed steps trains on.
    pub(crate) fn note(&mut self, headers: &[Header]) -> Result<()> {
        if headers.iter().all(|header| header.operation != Operation::Backward) {
            return Ok(());
        }
        self.missed.resize(headers.len(), 0);
        for (rank, header) in headers.iter().enumerate() {
            if header.aside {
                self.missed[rank] += 1;
                self.stale = true;
            } else if self.missed[rank] > 0 {
                let missed = self.missed[rank];
                return Err(Error::mismatch(
                    format!(
                        "rank {rank} waited in a save while others took {missed} steps more, and now trains on with an \
                         optimizer that has not seen them"
                    ),
                    "give all ranks the same number of steps up to each save but the last",
                ));
            }
        }
        Ok(())
    }

    /// The rank whose weights the others are to take, if they have older ones; from now on they have not.
    pub(crate) fn take_stale(&mut self) -> Option<usize> {
        std::mem::take(&mut self.stale)
            .then(|| self.missed.iter().position(|&missed| missed == 0).unwrap_or(0))
    }

    /// How many steps each rank has missed; nothing if none has.
    pub(crate) fn missed(&self) -> &[i64] {
        if self.missed.iter().any(|&missed| missed > 0) { &self.missed } else { &[] }
    }
}

fn mismatch(headers: &[Header]) -> Error {
    let any = |operation| headers.iter().any(|header| header.operation == operation);
    let cure = if any(Operation::Leave) {
        "all ranks must take the same number of steps: let them vote on leaving a loop or skipping a batch, and \
         give each the same number of batches"
    } else if any(Operation::NormForward) {
        "a synchronised BatchNorm in training mode is a collective: run each of its forwards on all ranks in the same \
         mode, or keep its variable store local with `local_batch_norm`"
    } else {
        "all ranks must reach the same collectives in the same order: take them out of branches that only some \
         ranks enter"
    };
    Error::mismatch(facts(headers), cure)
}

/// "rank 0 is in backward number 4, ranks 1 and 2 are leaving after 3 backwards"
fn facts(headers: &[Header]) -> String {
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for (rank, header) in headers.iter().enumerate() {
        let text = header.operation.describe(header.backwards);
        match groups.iter_mut().find(|(known, _)| *known == text) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((text, vec![rank])),
        }
    }
    let parts: Vec<String> =
        groups.iter().map(|(text, ranks)| format!("{} {text}", name_ranks(ranks))).collect();
    parts.join(", ")
}

/// "rank 3 is", "ranks 0, 1 and 2 are"
fn name_ranks(ranks: &[usize]) -> String {
    let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
    match names.split_last() {
        Some((last, [])) => format!("rank {last} is"),
        Some((last, rest)) => format!("ranks {} and {last} are", rest.join(", ")),
        None => "no rank is".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(operation: Operation, backwards: i64) -> Header {
        Header { subject: 5, table: 7, extra: -1, ..Header::new(operation, backwards) }
    }

    fn aside(headers: &[Header]) -> Vec<bool> {
        headers.iter().map(|header| header.aside).collect()
    }

    #[test]
    fn the_same_operation_is_agreed_on() {
        for rule in [Uneven::Error, Uneven::Join] {
            let agreed = settle(vec![header(Operation::Backward, 3); 4], rule).unwrap();
            assert_eq!(aside(&agreed), [false; 4]);
        }
    }

    #[test]
    fn ranks_that_differ_are_all_named() {
        let headers = vec![
            header(Operation::Leave, 3),
            header(Operation::Backward, 4),
            header(Operation::Leave, 3),
        ];
        let error = settle(headers, Uneven::Error).unwrap_err().to_string();
        assert_eq!(
            error,
            "the ranks do different things: ranks 0 and 2 are leaving after 3 backwards, rank 1 is in backward \
             number 4; all ranks must take the same number of steps: let them vote on leaving a loop or skipping a \
             batch, and give each the same number of batches"
        );
    }

    #[test]
    fn who_has_returned_or_saves_stands_aside() {
        let headers = vec![
            header(Operation::Leave, 3),
            header(Operation::Backward, 5),
            header(Operation::Save, 4),
        ];
        let agreed = settle(headers, Uneven::Join).unwrap();
        assert!(agreed.iter().all(|header| header.operation == Operation::Backward));
        assert_eq!((aside(&agreed), lead(&agreed)), (vec![true, false, true], 1));
        let headers = vec![header(Operation::Leave, 3), header(Operation::Save, 5)];
        let agreed = settle(headers, Uneven::Join).unwrap();
        assert_eq!((aside(&agreed), agreed[0].operation), (vec![true, false], Operation::Save));
        let headers = vec![header(Operation::Leave, 3), header(Operation::Leave, 5)];
        assert_eq!(aside(&settle(headers, Uneven::Join).unwrap()), [false, false]);
    }

    #[test]
    fn ranks_under_way_must_still_do_the_same() {
        let headers = vec![
            header(Operation::Backward, 3),
            header(Operation::Vote, 3),
            header(Operation::Leave, 2),
        ];
        assert!(settle(headers, Uneven::Join).is_err());
    }

    #[test]
    fn who_has_missed_steps_takes_the_others_weights_and_does_not_train_on() {
        let mut course = Course::default();
        let uneven = vec![header(Operation::Save, 3), header(Operation::Backward, 4)];
        course.note(&settle(uneven, Uneven::Join).unwrap()).unwrap();
        assert_eq!((course.take_stale(), course.take_stale()), (Some(1), None));
        let error = course.note(&[header(Operation::Backward, 4); 2]).unwrap_err().to_string();
        assert!(error.contains("rank 0 waited in a save while others took 1 steps"), "{error}");
    }
}
