//! The turn of an object: the one place with the order on which delivery rests
//! (docs/contributing/simulation.md).
//!
//! An object has a machine, which decides, and a [`Platform`], which acts. Each event is handled in
//! a turn:
//!
//! 1. The machine handles the event: it writes to the object's storage, and returns effects.
//! 2. The effects that need no `await` are carried out, in their order. If an effect causes an
//!    event, the machine handles that event in the same turn.
//! 3. The alarm is set.
//! 4. Calls get their replies.
//! 5. The requests are sent. Each of them ends with an event, which has a turn of its own.
//!
//! There is no `await` in 1 and 2, so all writes of a turn commit together. The platform delays
//! messages and requests of the object until these writes are durable.
//!
//! The alarm is set before the replies and the requests. After a crash, the alarm continues the
//! work of a call that got its reply, and of a request whose answer is lost.
//!
//! The objects of the Worker run this code, and so do the simulated worlds of the tests.

use std::collections::VecDeque;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::time::Timestamp;

/// What a machine acts on: the platform of the Worker, or a simulated world.
pub trait Platform: Sized {
    /// An input of the machine.
    type Event;
    /// An output of the machine.
    type Effect;
    /// A reply to a call, with the call.
    type Reply;
    /// Work that ends with an event, or in nothing.
    type Request;
    /// A request that was sent, until it ends.
    type Pending;

    /// Lets the machine handle an event. Everything that it writes to the object's storage commits
    /// together with the turn's other writes.
    fn step(&mut self, event: Self::Event) -> Vec<Self::Effect>;

    /// Carries out an effect that needs no `await`, or adds it to the turn.
    fn carry_out(&mut self, effect: Self::Effect, turn: &mut Turn<Self>);

    /// Sets the alarm, unless it goes off earlier. A failure is only logged.
    fn set_alarm(&mut self, at: Timestamp) -> impl Future<Output = ()>;

    /// Replies to a call.
    fn reply(&mut self, reply: Self::Reply);

    /// Sends a request. The caller of [`Turn::end`] waits for its end.
    fn send(&mut self, request: Self::Request) -> Self::Pending;
}

/// A turn that has begun, with the effects that are carried out at its end.
#[must_use = "without its end, a turn sets no alarm, and sends nothing"]
pub struct Turn<P: Platform> {
    events: VecDeque<P::Event>,
    alarm: Option<Timestamp>,
    replies: Vec<P::Reply>,
    requests: Vec<P::Request>,
}

impl<P: Platform> Turn<P> {
    /// Handles an event, and carries out the effects that need no `await`.
    pub fn begin(platform: &mut P, event: P::Event) -> Self {
        let mut turn = Self {
            events: VecDeque::from([event]),
            alarm: None,
            replies: Vec::new(),
            requests: Vec::new(),
        };
        while let Some(event) = turn.events.pop_front() {
            for effect in platform.step(event) {
                platform.carry_out(effect, &mut turn);
            }
        }
        turn
    }

    /// The machine handles this event in the same turn.
    pub fn cause(&mut self, event: P::Event) {
        self.events.push_back(event);
    }

    /// Sets the alarm at the end of the turn. A later step of the turn knows more, so its time
    /// replaces that of an earlier step.
    pub fn set_alarm(&mut self, at: Timestamp) {
        self.alarm = Some(at);
    }

    /// Replies to a call at the end of the turn, after the alarm is set.
    pub fn reply(&mut self, reply: P::Reply) {
        self.replies.push(reply);
    }

    /// Sends a request at the end of the turn, after all replies.
    pub fn request(&mut self, request: P::Request) {
        self.requests.push(request);
    }

    /// Sets the alarm, replies to calls, and sends the requests. Returns the requests.
    pub async fn end(self, platform: &mut P) -> Vec<P::Pending> {
        if let Some(at) = self.alarm {
            platform.set_alarm(at).await;
        }
        for reply in self.replies {
            platform.reply(reply);
        }
        self.requests.into_iter().map(|request| platform.send(request)).collect()
    }

    /// Like [`Self::end`], for a simulated world, where setting the alarm takes no time.
    ///
    /// # Panics
    /// [`Platform::set_alarm`] waits for something.
    pub fn end_at_once(self, platform: &mut P) -> Vec<P::Pending> {
        match pin!(self.end(platform)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(requests) => requests,
            Poll::Pending => panic!("the alarm was not set at once"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    /// Records what is done. Event 1 has an effect of each kind, and causes event 2.
    #[derive(Default)]
    struct Recorder(Vec<String>);

    impl Platform for Recorder {
        type Event = u8;
        type Effect = &'static str;
        type Reply = u8;
        type Request = u8;
        type Pending = u8;

        fn step(&mut self, event: u8) -> Vec<&'static str> {
            self.0.push(format!("step {event}"));
            match event {
                1 => vec!["request", "reply", "alarm", "immediate", "cause", "immediate"],
                _ => vec!["alarm", "immediate"],
            }
        }

        fn carry_out(&mut self, effect: &'static str, turn: &mut Turn<Self>) {
            match effect {
                "request" => turn.request(4),
                "reply" => turn.reply(3),
                "alarm" => turn.set_alarm(Timestamp::from_millis(self.0.len() as u64)),
                "cause" => turn.cause(2),
                _ => self.0.push(effect.to_owned()),
            }
        }

        fn set_alarm(&mut self, at: Timestamp) -> impl Future<Output = ()> {
            self.0.push(format!("alarm {}", at.as_millis()));
            ready(())
        }

        fn reply(&mut self, reply: u8) {
            self.0.push(format!("reply {reply}"));
        }

        fn send(&mut self, request: u8) -> u8 {
            self.0.push(format!("send {request}"));
            request
        }
    }

    #[test]
    fn a_turn_has_one_order() {
        let mut recorder = Recorder::default();
        let turn = Turn::begin(&mut recorder, 1);
        let before_the_end = ["step 1", "immediate", "immediate", "step 2", "immediate"];
        assert_eq!(recorder.0, before_the_end);
        assert_eq!(turn.end_at_once(&mut recorder), [4]);
        assert_eq!(recorder.0[before_the_end.len()..], ["alarm 4", "reply 3", "send 4"]);
    }
}
