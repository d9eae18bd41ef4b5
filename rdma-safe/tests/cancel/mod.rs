//! Dropping futures at each of their polls.
#![allow(dead_code)] // each test binary uses its part

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Builder;

/// No wait of a test is longer than this.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// And no test.
const TEST_LIMIT: Duration = Duration::from_secs(120);

/// Polls `future` at most `polls` times, and drops it if it is not ready then: `None`. Between the polls the others have
/// their turn, whether something has woken it or not.
pub(crate) async fn at_most<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let future = pin!(future);
    Limited { left: polls, future, insists: true }.await
}

/// The same, polled only when it is woken.
pub(crate) async fn at_most_woken<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let future = pin!(future);
    Limited { left: polls, future, insists: false }.await
}

struct Limited<'f, F> {
    left: usize,
    future: Pin<&'f mut F>,
    /// Polled again without being woken.
    insists: bool,
}

impl<F: Future> Future for Limited<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        match self.future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.left == 0 => Poll::Ready(None),
            Poll::Pending => {
                if self.insists {
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }
}

/// Repeats what is cancelled, with different numbers of polls before each drop, until it is done. Once in a while it is
/// left to sleep: a task that only tries again starves those it waits for where threads share a processor.
pub(crate) async fn until_done<F: Future>(
    seed: &mut u64,
    mut make: impl FnMut() -> F,
) -> F::Output {
    loop {
        let polls = match next(seed) % 4 {
            3 => usize::MAX,
            few => few as usize,
        };
        if let Some(output) = at_most_woken(polls, make()).await {
            return output;
        }
    }
}

/// A linear congruential generator: which polls are cut is repeatable.
pub(crate) fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *seed >> 33
}

/// Fails instead of hanging.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: not within {LIMIT:?}"),
    }
}

/// Runs a test in a runtime of one thread, and in one of two.
pub(crate) fn in_both<F: Future<Output = ()>>(test: impl Fn() -> F) {
    in_one_thread(&test);
    in_two_threads(test);
}

pub(crate) fn in_one_thread<F: Future<Output = ()>>(test: impl Fn() -> F) {
    run(&mut Builder::new_current_thread(), test());
}

pub(crate) fn in_two_threads<F: Future<Output = ()>>(test: impl Fn() -> F) {
    run(Builder::new_multi_thread().worker_threads(2), test());
}

fn run(runtime: &mut Builder, test: impl Future<Output = ()>) {
    let runtime = runtime.enable_all().build().unwrap();
    let in_time = runtime.block_on(async { tokio::time::timeout(TEST_LIMIT, test).await });
    in_time.expect("the test is over in time");
}
