//! The bridge's lock, which a child of fork may take from a holder that it has not got.

use loom::model::Builder;
use loom::thread;
use regall_races::atomic::{begin, time_for};
use regall_races::lock::{in_process, Lock};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

fn check(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 100_000;
    builder.max_duration = Some(time_for(Duration::from_secs(10)));
    builder.check(test);
}

/// A plain number: that two have it at a time is what loom is asked about.
struct Number(loom::cell::UnsafeCell<u64>);

// SAFETY: only the lock's holder touches it; loom fails the test if not.
unsafe impl Sync for Number {}

#[test]
fn one_at_a_time_and_what_one_wrote_the_next_sees() {
    check(|| {
        begin();
        in_process();
        let lock = Arc::new(Lock::new(Cell::new(0)));
        // Loom hears of its word before there are others.
        drop(lock.lock());
        let cell = Arc::new(Number(loom::cell::UnsafeCell::new(0)));
        let add = {
            let (lock, cell) = (lock.clone(), cell.clone());
            move || {
                let held = lock.lock();
                assert!(!held.abandoned());
                held.set(held.get() + 1);
                // SAFETY: see above.
                cell.0.with_mut(|n| unsafe { *n += 1 });
            }
        };
        let other = thread::spawn(add.clone());
        add();
        other.join().expect("the other one");
        assert_eq!(lock.lock().get(), 2);
    });
}
