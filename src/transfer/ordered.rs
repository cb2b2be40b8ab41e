//! Work on all processors whose results keep their order: a bounded number of pieces is under way, so the
//! memory is bounded whatever the amount. Knows nothing of what is worked on.

use std::collections::BTreeMap;
use std::thread;

use crossbeam_channel::{Sender, unbounded};

/// Enough for every coder; what is large is on the heap.
const STACK: usize = 256 << 10;
/// More would not be faster than a disk, and each takes about a megabyte.
const MAX_WORKERS: usize = 8;

/// How many threads to use here.
pub(super) fn workers() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(MAX_WORKERS)
}

/// Take pieces from `next` until there is none, `work` on them in `count` threads, and give each result to
/// `take` in the order of the pieces. `fresh` makes a thread's own tools. Ends at the first error. Where no
/// thread can be started the caller does the work.
pub(super) fn in_order<T: Send, R: Send, S, E>(
    count: usize,
    fresh: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, T) -> R + Sync,
    mut next: impl FnMut() -> Result<Option<T>, E>,
    mut take: impl FnMut(R) -> Result<(), E>,
) -> Result<(), E> {
    // Enough that a thread need not wait for a slow piece of another one.
    let window = count as u64 * 4;
    let (give, given) = unbounded::<(u64, T)>();
    let (done, ready) = unbounded::<Option<(u64, R)>>();
    thread::scope(|scope| {
        let started = (0..count).filter(|n| {
            let (given, end, fresh, work) = (given.clone(), Ended(done.clone()), &fresh, &work);
            let run = move || {
                let mut tools = fresh();
                for (turn, piece) in given {
                    if end.0.send(Some((turn, work(&mut tools, piece)))).is_err() {
                        return;
                    }
                }
            };
            thread::Builder::new().name(format!("archive-{n}")).stack_size(STACK).spawn_scoped(scope, run).is_ok()
        });
        if started.count() == 0 {
            let mut tools = fresh();
            while let Some(piece) = next()? {
                take(work(&mut tools, piece))?;
            }
            return Ok(());
        }
        // Dropped at every way out, so that the threads end and the scope can close.
        let give = give;
        let (mut asked, mut taken, mut more) = (0u64, 0u64, true);
        let mut early = BTreeMap::new();
        loop {
            while more && asked - taken < window {
                match next()? {
                    Some(piece) => {
                        give.send((asked, piece)).expect("the receiver lives here too");
                        asked += 1;
                    }
                    None => more = false,
                }
            }
            if taken == asked {
                return Ok(());
            }
            let result = ready.recv().expect("a sender lives here too");
            let (turn, result) = result.expect("a thread of the archive panicked");
            early.insert(turn, result);
            while let Some(result) = early.remove(&taken) {
                take(result)?;
                taken += 1;
            }
        }
    })
}

/// Says when a thread ends early, so that nobody waits for its results.
struct Ended<R>(Sender<Option<(u64, R)>>);

impl<R> Drop for Ended<R> {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.0.send(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_pieces() {
        let mut pieces = 0..1000u64;
        let mut got = Vec::new();
        in_order::<_, _, _, ()>(
            3,
            || (),
            |(), n| {
                if n % 7 == 0 {
                    thread::yield_now();
                }
                n * n
            },
            || Ok(pieces.next()),
            |n| {
                got.push(n);
                Ok(())
            },
        )
        .unwrap();
        assert_eq!(got, (0..1000).map(|n| n * n).collect::<Vec<_>>());
    }

    #[test]
    fn the_first_error_ends_the_work() {
        let mut pieces = 0..1000u64;
        let ended = in_order(2, || (), |(), n| n, || Ok(pieces.next()), |n| if n == 20 { Err("full") } else { Ok(()) });
        assert_eq!(ended, Err("full"));
        let ended = in_order(2, || (), |(), n: u32| n, || Err("gone"), |_| Ok(()));
        assert_eq!(ended, Err("gone"));
    }
}
