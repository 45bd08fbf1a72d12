//! Who waits for something to happen in an object.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::future;
use worker::Delay;

/// Those who wait, by what they wait for. Who is told looks for themselves whether it is what they waited for.
pub struct Waiting<K>(RefCell<HashMap<K, Vec<oneshot::Sender<()>>>>);

impl<K> Default for Waiting<K> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<K: Eq + Hash> Waiting<K> {
    /// Waits until somebody tells of `what`, or so long.
    pub async fn wait(&self, what: K, longest: Duration) {
        let (told, tell) = oneshot::channel();
        self.0.borrow_mut().entry(what).or_default().push(told);
        future::select(tell, Delay::from(longest)).await;
        self.0.borrow_mut().retain(|_, waiting| {
            waiting.retain(|waiter| !waiter.is_canceled());
            !waiting.is_empty()
        });
    }

    /// Tells all who wait for `what`.
    pub fn tell(&self, what: &K) {
        for waiting in self.0.borrow_mut().remove(what).unwrap_or_default() {
            // One who has gone does not hear it.
            waiting.send(()).ok();
        }
    }

    /// Lets all go.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}
