//! The queue of one isolate's requests that hash a password. One request hashes at a time, and
//! known callers go first (contract 4.6).
//!
//! An isolate has one thread. Hashing yields between slices, so that other requests continue.
//! Hashing two passwords concurrently would take twice as long for each. So requests wait in a
//! bounded queue. If the queue is full, new requests are refused before any hashing.
//!
//! All workspaces share the queue, so one user must not fill it. A known user has at most
//! `MAX_PLACES_PER_USER` places. The user's other requests are parked. They take no place from
//! other users, and enter the queue at its end when the user's places become free. Every
//! `TURNS_PER_OLDEST`th turn goes to the oldest request in the queue, so strangers always make
//! progress.
//!
//! If a request is cut off, the runtime does not report it. So each entry is a lease. The request
//! renews it while it waits or hashes. A lease that is not renewed for `LEASE` ends.

use std::time::Duration;

use crate::time::Timestamp;

/// Maximum number of strangers' requests in the queue.
const MAX_QUEUED_STRANGERS: usize = 8;
/// Maximum number of known callers' requests in the queue.
const MAX_QUEUED_KNOWN: usize = 32;
/// Maximum number of a known user's requests in the queue, including a request that hashes.
const MAX_PLACES_PER_USER: usize = 2;
/// Maximum number of a known user's requests, including parked requests.
const MAX_REQUESTS_PER_USER: usize = 32;
/// One of this number of turns goes to the oldest request, even if a stranger sent it.
const TURNS_PER_OLDEST: u64 = 4;
/// A lease that is not renewed ends after this time. It is much longer than a slice of hashing.
const LEASE: Duration = Duration::from_secs(3);

/// Whether the caller of a request is known. Known callers go first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallerClass {
    /// The caller has a valid credential, or the user logged in from this address recently. The
    /// text identifies the user, see [`CallerClass::known`].
    Known(String),
    /// All other callers.
    Stranger,
}

impl CallerClass {
    /// The class of a known user of a workspace.
    pub fn known(workspace: &str, username: &str) -> Self {
        Self::Known(format!("{workspace}/{}", username.to_lowercase()))
    }
}

/// A request's entry in the gate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ticket {
    rank: CallerClass,
    number: u64,
}

/// Whether it is the request's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// The request may hash.
    Go,
    /// Another request is first. Call [`Gate::poll`] again soon.
    Wait,
}

/// A request in the queue, or a parked request.
#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    /// The position in the queue; `None`: parked.
    place: Option<u64>,
    renewed_at: Timestamp,
}

/// The queue for hashing, in the memory of an isolate.
#[derive(Default, Debug)]
pub struct Gate {
    /// The last number of a ticket or a place.
    last: u64,
    /// The number of turns so far.
    turns: u64,
    running: Option<(Ticket, Timestamp)>,
    waiting: Vec<Waiting>,
}

/// Whether a lease has ended. A lease also ends if the clock was set back by more than `LEASE`,
/// so that it does not block the gate.
fn has_lapsed(renewed_at: Timestamp, now: Timestamp) -> bool {
    renewed_at.plus(LEASE) < now || now.plus(LEASE) < renewed_at
}

impl Gate {
    fn drop_lapsed(&mut self, now: Timestamp) {
        self.running = self.running.take().filter(|(_, renewed_at)| !has_lapsed(*renewed_at, now));
        self.waiting.retain(|waiting| !has_lapsed(waiting.renewed_at, now));
    }

    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Whether the user has the maximum number of places.
    fn has_all_places(&self, rank: &CallerClass) -> bool {
        let queued = self
            .waiting
            .iter()
            .filter(|waiting| waiting.place.is_some() && waiting.ticket.rank == *rank);
        let running = self.running.iter().filter(|(ticket, _)| ticket.rank == *rank);
        *rank != CallerClass::Stranger && queued.count() + running.count() >= MAX_PLACES_PER_USER
    }

    /// Whether the queue is full for requests of known callers, or of strangers.
    fn is_queue_full(&self, rank: &CallerClass) -> bool {
        let is_alike = |other: &CallerClass| {
            (*other == CallerClass::Stranger) == (*rank == CallerClass::Stranger)
        };
        let queued = self
            .waiting
            .iter()
            .filter(|waiting| waiting.place.is_some() && is_alike(&waiting.ticket.rank));
        queued.count()
            >= if *rank == CallerClass::Stranger { MAX_QUEUED_STRANGERS } else { MAX_QUEUED_KNOWN }
    }

    /// Whether a request of this class would be refused.
    pub fn is_full(&mut self, rank: &CallerClass, now: Timestamp) -> bool {
        self.drop_lapsed(now);
        if self.has_all_places(rank) {
            return self.waiting.iter().filter(|waiting| waiting.ticket.rank == *rank).count()
                >= MAX_REQUESTS_PER_USER;
        }
        self.is_queue_full(rank)
    }

    /// Queues or parks a request. Returns `None` if too many requests wait.
    pub fn enter(&mut self, rank: CallerClass, now: Timestamp) -> Option<Ticket> {
        if self.is_full(&rank, now) {
            return None;
        }
        let ticket = Ticket { number: self.next_number(), rank };
        self.wait(ticket.clone(), now);
        Some(ticket)
    }

    /// Queues a request, or parks it if its user has all places.
    fn wait(&mut self, ticket: Ticket, now: Timestamp) {
        let place = (!self.has_all_places(&ticket.rank)).then_some(ticket.number);
        self.waiting.push(Waiting { ticket, place, renewed_at: now });
    }

    /// Moves parked requests into the queue if their users have free places, oldest first.
    fn unpark(&mut self) {
        for index in 0..self.waiting.len() {
            let Some(waiting) = self.waiting.get(index).filter(|waiting| waiting.place.is_none())
            else {
                continue;
            };
            let rank = &waiting.ticket.rank;
            if self.has_all_places(rank) || self.is_queue_full(rank) {
                continue;
            }
            let number = self.next_number();
            if let Some(waiting) = self.waiting.get_mut(index) {
                waiting.place = Some(number);
            }
        }
    }

    /// The request whose turn is next.
    fn first(&self) -> Option<&Ticket> {
        let queued =
            self.waiting.iter().filter_map(|waiting| Some((&waiting.ticket, waiting.place?)));
        let is_for_oldest = self.turns % TURNS_PER_OLDEST == TURNS_PER_OLDEST - 1;
        let order = |(ticket, place): &(&Ticket, u64)| {
            (!is_for_oldest && ticket.rank == CallerClass::Stranger, *place)
        };
        queued.min_by_key(order).map(|(ticket, _)| ticket)
    }

    /// Renews the lease of a waiting request. If the request is first, its turn begins. A request
    /// whose lease has ended waits again, with its old place.
    pub fn poll(&mut self, ticket: &Ticket, now: Timestamp) -> Turn {
        self.drop_lapsed(now);
        match self.waiting.iter_mut().find(|waiting| waiting.ticket == *ticket) {
            Some(waiting) => waiting.renewed_at = now,
            None => self.wait(ticket.clone(), now),
        }
        self.unpark();
        if self.running.is_some() || self.first() != Some(ticket) {
            return Turn::Wait;
        }
        self.turns += 1;
        self.waiting.retain(|waiting| waiting.ticket != *ticket);
        self.running = Some((ticket.clone(), now));
        Turn::Go
    }

    /// Renews the lease of a request that hashes.
    pub fn renew(&mut self, ticket: &Ticket, now: Timestamp) {
        if let Some((running, renewed_at)) = &mut self.running
            && running == ticket
        {
            *renewed_at = now;
        }
    }

    /// Removes a request's entry, whether it waits or hashes.
    pub fn leave(&mut self, ticket: &Ticket) {
        self.running = self.running.take().filter(|(running, _)| running != ticket);
        self.waiting.retain(|waiting| waiting.ticket != *ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_MILLIS: i64 = LEASE.as_millis() as i64;

    fn at(millis: i64) -> Timestamp {
        Timestamp::parse("2026-11-21T00:00:00Z").unwrap().plus_millis(millis)
    }

    fn user(number: usize) -> CallerClass {
        CallerClass::known("acme", &format!("user{number}"))
    }

    /// Lets all waiting requests hash one after the other, and returns them in that order.
    fn drain(gate: &mut Gate, mut tickets: Vec<Ticket>) -> Vec<Ticket> {
        let mut order = Vec::new();
        while !tickets.is_empty() {
            let next =
                tickets.iter().position(|ticket| gate.poll(ticket, at(1)) == Turn::Go).unwrap();
            gate.leave(&tickets[next]);
            order.push(tickets.remove(next));
        }
        order
    }

    #[test]
    fn requests_hash_one_at_a_time_in_order() {
        let mut gate = Gate::default();
        let tickets: Vec<_> =
            (0..3).map(|_| gate.enter(CallerClass::Stranger, at(0)).unwrap()).collect();
        assert_eq!(gate.poll(&tickets[1], at(0)), Turn::Wait);
        assert_eq!(gate.poll(&tickets[0], at(0)), Turn::Go);
        assert_eq!(gate.poll(&tickets[1], at(1)), Turn::Wait);
        gate.leave(&tickets[0]);
        assert_eq!(gate.poll(&tickets[2], at(2)), Turn::Wait);
        // A waiting request that leaves does not block the queue.
        gate.leave(&tickets[1]);
        assert_eq!(gate.poll(&tickets[2], at(3)), Turn::Go);
    }

    #[test]
    fn known_callers_go_first_and_have_their_own_places() {
        let mut gate = Gate::default();
        let running = gate.enter(CallerClass::Stranger, at(0)).unwrap();
        assert_eq!(gate.poll(&running, at(0)), Turn::Go);
        let strangers: Vec<_> = (0..MAX_QUEUED_STRANGERS)
            .map(|_| gate.enter(CallerClass::Stranger, at(0)).unwrap())
            .collect();
        assert!(gate.is_full(&CallerClass::Stranger, at(0)));
        assert_eq!(gate.enter(CallerClass::Stranger, at(0)), None);
        let known: Vec<_> =
            (0..MAX_QUEUED_KNOWN).map(|number| gate.enter(user(number), at(0)).unwrap()).collect();
        assert_eq!(gate.enter(user(MAX_QUEUED_KNOWN), at(0)), None);
        gate.leave(&running);
        assert_eq!(gate.poll(&strangers[0], at(1)), Turn::Wait);
        assert_eq!(gate.poll(&known[1], at(1)), Turn::Wait);
        assert_eq!(gate.poll(&known[0], at(1)), Turn::Go);
        gate.leave(&known[0]);
        assert_eq!(gate.poll(&known[1], at(1)), Turn::Go);
    }

    #[test]
    fn every_fourth_turn_goes_to_the_oldest_request() {
        let mut gate = Gate::default();
        let strangers: Vec<_> =
            (0..2).map(|_| gate.enter(CallerClass::Stranger, at(0)).unwrap()).collect();
        let known: Vec<_> = (0..8).map(|number| gate.enter(user(number), at(0)).unwrap()).collect();
        let order = drain(&mut gate, [strangers.clone(), known.clone()].concat());
        let (first, second, rest) = (&known[..3], &known[3..6], &known[6..]);
        assert_eq!(order, [first, &strangers[..1], second, &strangers[1..], rest].concat());
        // The same holds while known callers keep coming.
        let stranger = gate.enter(CallerClass::Stranger, at(0)).unwrap();
        let mut turns = 0;
        loop {
            let known = gate.enter(user(turns), at(0)).unwrap();
            if gate.poll(&stranger, at(0)) == Turn::Go {
                break;
            }
            assert_eq!(gate.poll(&known, at(0)), Turn::Go);
            gate.leave(&known);
            turns += 1;
        }
        assert!(turns < TURNS_PER_OLDEST as usize, "{turns}");
    }

    #[test]
    fn a_user_has_at_most_two_places() {
        let mut gate = Gate::default();
        let greedy: Vec<_> =
            (0..MAX_REQUESTS_PER_USER).map(|_| gate.enter(user(0), at(0)).unwrap()).collect();
        // Other users still get all other places, before the user's parked requests.
        let places = MAX_QUEUED_KNOWN - MAX_PLACES_PER_USER;
        let others: Vec<_> =
            (1..=places).map(|number| gate.enter(user(number), at(0)).unwrap()).collect();
        assert_eq!(gate.enter(user(MAX_QUEUED_KNOWN), at(0)), None);
        let stranger = gate.enter(CallerClass::Stranger, at(0)).unwrap();
        assert!(gate.is_full(&user(0), at(0)));
        let order = drain(&mut gate, [greedy.clone(), others.clone(), vec![stranger]].concat());
        assert_eq!(order[..2], greedy[..2]);
        let last_other = order.iter().position(|ticket| *ticket == others[places - 1]).unwrap();
        let overtook = order[..last_other].iter().filter(|ticket| ticket.rank == user(0)).count();
        assert_eq!(overtook, MAX_PLACES_PER_USER);
        // Workspace and username identify a user. Case is ignored.
        assert_ne!(user(1), CallerClass::known("other", "user1"));
        assert_eq!(user(1), CallerClass::known("acme", "USER1"));
    }

    #[test]
    fn a_request_that_is_cut_off_blocks_nothing() {
        let mut gate = Gate::default();
        let (dead, dead_waiter) =
            (gate.enter(user(0), at(0)).unwrap(), gate.enter(user(0), at(0)).unwrap());
        assert_eq!(gate.poll(&dead, at(0)), Turn::Go);
        let alive = gate.enter(CallerClass::Stranger, at(0)).unwrap();
        assert_eq!(gate.poll(&alive, at(LEASE_MILLIS)), Turn::Wait);
        assert_eq!(gate.poll(&alive, at(LEASE_MILLIS + 1)), Turn::Go);
        // A request that was only slow waits again.
        assert_eq!(gate.poll(&dead_waiter, at(LEASE_MILLIS + 2)), Turn::Wait);
        // Renewing extends a lease, but has no effect for a ticket whose lease has ended.
        gate.renew(&alive, at(2 * LEASE_MILLIS));
        gate.renew(&dead, at(9 * LEASE_MILLIS));
        assert_eq!(gate.poll(&dead_waiter, at(3 * LEASE_MILLIS)), Turn::Wait);
        assert_eq!(gate.poll(&dead_waiter, at(3 * LEASE_MILLIS + 1)), Turn::Go);
        // The clock is set back by an hour.
        let next = gate.enter(CallerClass::Stranger, at(-3_600_000)).unwrap();
        assert_eq!(gate.poll(&next, at(-3_600_000)), Turn::Go);
    }
}
