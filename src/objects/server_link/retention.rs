//! The end of commands in a server's object, when they are taken from D1 as well.

use farhand_domain::retention;
use uuid::Uuid;
use worker::Result;

use super::calls::{Answer, Forget, Forgotten, Refusal, done};
use super::identity::Known;
use super::object::{ServerLink, now};

/// How much is removed in one go, in rows and in pages of 4 KiB together.
const AT_ONCE: u64 = 8_000;

impl ServerLink {
    /// Forgets commands that are over for long, with their output. One that is not over here, or of which D1 does not have the
    /// latest, stays. Doing it again does no harm.
    pub(super) async fn forget(&self, forget: Forget) -> Result<Answer> {
        let Forget { ids, until } = forget;
        if !self.is_used()? {
            return done(&Forgotten { ids, is_all: true });
        }
        let (ids, is_all) = self.tables().forget(&ids, until, AT_ONCE)?;
        for id in &ids {
            // Who still follows one hears that there is nothing more.
            self.ended.tell(id);
            self.output_came.tell(id);
        }
        self.forget_if_unused().await?;
        done(&Forgotten { ids, is_all })
    }

    /// The answer to a report of a command that is not here.
    pub(super) fn unknown(known: &Known, command: Uuid) -> Answer {
        if retention::may_be_taken(command, known.server, now()) {
            return Answer::Done(serde_json::Value::Null);
        }
        Answer::Refused(Refusal::NotFound)
    }
}
