//! Dropping futures at each of their polls.
#![allow(dead_code)] // each test binary uses its part

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

/// No wait of a test is longer than this.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Polls `future` at most `polls` times, and drops it if it is not ready then: `None`.
pub(crate) async fn at_most<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    struct Limited<'f, F> {
        left: usize,
        future: Pin<&'f mut F>,
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
                // Polled again after the others, whether something has woken it or not.
                Poll::Pending => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        }
    }
    let future = pin!(future);
    Limited { left: polls, future }.await
}

/// Repeats what is cancelled, with different numbers of polls before each drop, until it is done.
pub(crate) async fn until_done<F: Future>(
    seed: &mut u64,
    mut make: impl FnMut() -> F,
) -> F::Output {
    loop {
        let polls = next(seed) as usize % 4;
        if let Some(output) = at_most(polls, make()).await {
            return output;
        }
        // The other side's turn.
        tokio::task::yield_now().await;
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

/// Runs a test in a runtime of one thread, and in one of four.
pub(crate) fn in_both<F: Future<Output = ()>>(test: impl Fn() -> F) {
    let mut one = tokio::runtime::Builder::new_current_thread();
    let mut four = tokio::runtime::Builder::new_multi_thread();
    four.worker_threads(4);
    for builder in [&mut one, &mut four] {
        builder.enable_all().build().unwrap().block_on(soon("the test", test()));
    }
}
