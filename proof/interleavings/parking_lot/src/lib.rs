//! What the modelled sources take from `parking_lot`, under the same names.

use std::{
    ops::{Deref, DerefMut},
    time::Instant,
};

use shuttle::{rand::Rng, sync};

#[derive(Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// Holds nothing while its owner waits for a condition.
pub struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Mutex(sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect("no thread panics with the lock")))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is held")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is held")
    }
}

#[derive(Default)]
pub struct Condvar(sync::Condvar);

pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub fn new() -> Self {
        Condvar(sync::Condvar::new())
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.0.take().expect("it is held");
        guard.0 = Some(self.0.wait(held).expect("no thread panics with the lock"));
    }

    /// Time passes at random.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> WaitTimeoutResult {
        if shuttle::rand::thread_rng().gen_bool(0.5) {
            return WaitTimeoutResult(true);
        }
        self.wait(guard);
        WaitTimeoutResult(false)
    }
}
