//! Measures what a future costs in D1 and KV. The functions that call D1 and KV add to the current
//! count, so every call is included. Background work that continues after the future ends is not
//! included.

use std::cell::Cell;
use std::ops::Add;
use std::pin::pin;

use futures_util::future;
use serde::{Deserialize, Serialize};

/// The cost of a future: what D1 and KV bill, and the round trips. Sent as JSON from objects to
/// their callers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Cost {
    /// Round trips to D1.
    pub d1_calls: u32,
    /// Rows that D1 read.
    pub rows_read: u64,
    /// Rows that D1 wrote, including index entries.
    pub rows_written: u64,
    /// Reads of KV entries.
    pub kv_reads: u32,
}

impl Add for Cost {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            d1_calls: self.d1_calls + more.d1_calls,
            rows_read: self.rows_read + more.rows_read,
            rows_written: self.rows_written + more.rows_written,
            kv_reads: self.kv_reads + more.kv_reads,
        }
    }
}

thread_local! {
    /// The cost so far of the future that is being polled. Outside of [`measure`], its value is
    /// ignored.
    static CURRENT: Cell<Cost> = Cell::default();
}

/// Runs a future and measures its cost. An isolate interleaves futures. So each poll sets the count
/// of its own future first, and restores the previous count afterwards.
pub async fn measure<T>(work: impl Future<Output = T>) -> (T, Cost) {
    let mut work = pin!(work);
    let mut cost = Cost::default();
    let done = future::poll_fn(|context| {
        let others = CURRENT.replace(cost);
        let polled = work.as_mut().poll(context);
        cost = CURRENT.replace(others);
        polled
    });
    (done.await, cost)
}

/// Adds a cost to the current work.
pub fn add(more: Cost) {
    CURRENT.set(CURRENT.get() + more);
}

/// Counts a round trip to D1. Call this before the round trip.
pub fn add_d1_call() {
    add(Cost { d1_calls: 1, ..Cost::default() });
}

/// Counts a read of a KV entry. Call this before the read.
pub fn add_kv_read() {
    add(Cost { kv_reads: 1, ..Cost::default() });
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use super::*;

    fn pending_once() -> impl Future<Output = ()> {
        let mut was_polled = false;
        future::poll_fn(move |context: &mut Context<'_>| {
            context.waker().wake_by_ref();
            if std::mem::replace(&mut was_polled, true) { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    #[test]
    fn each_piece_of_work_has_its_own_count() {
        let work = async |calls: u32| {
            for _ in 0..calls {
                add_d1_call();
                pending_once().await;
            }
        };
        let both = future::join(measure(work(3)), measure(async { measure(work(2)).await.1 }));
        let Some(((_, three), (two, none))) = futures_util::FutureExt::now_or_never(async {
            let mut both = pin!(both);
            // The test has no executor that a waker could notify, so poll until both are done.
            loop {
                if let Poll::Ready(done) =
                    future::poll_fn(|context| Poll::Ready(both.as_mut().poll(context))).await
                {
                    break done;
                }
            }
        }) else {
            panic!("the future must be ready: it awaits nothing")
        };
        assert_eq!((three.d1_calls, two.d1_calls, none.d1_calls), (3, 2, 0));
    }
}
