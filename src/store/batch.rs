//! The statements of one change, in their order. D1 runs them as one transaction.
//!
//! A store function returns a batch, and `Credential::write` runs it. Each statement is added as a
//! part with a meaning, so that nobody finds a result, or the place for the audit event, by
//! counting.

use farhand_sql::statement::Statement;

/// What a statement of a batch is for, and so what its result is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Its result is not used.
    Step,
    /// It makes the change, and has a `body` if it changed something.
    Change,
    /// Its `body` is the reply, if there was a change.
    Reply,
    /// Its `body` is the hashes of the login tokens that the change ends, as a JSON array.
    EndedTokens,
    /// It makes the change, which is the end of login tokens: its `body` is both.
    End,
}

/// The statements of one change, in their order. Without a [`Part::Reply`], the `body` of the
/// [`Part::Change`] is the reply.
#[derive(Default, Debug)]
pub struct Batch(Vec<(Part, Statement)>);

impl Batch {
    fn add(mut self, part: Part, statement: impl Into<Statement>) -> Self {
        self.0.push((part, statement.into()));
        self
    }

    /// A statement whose result is not used.
    pub fn then(self, statement: impl Into<Statement>) -> Self {
        self.add(Part::Step, statement)
    }

    /// The statement that makes the change, and directly behind it that for its audit event, which
    /// reads `changes()`.
    pub fn change(self, change: impl Into<Statement>, event: impl Into<Statement>) -> Self {
        self.add(Part::Change, change).then(event)
    }

    /// The same for an event that comes before the change: after it the credential may be dead, or
    /// the name of what it deleted gone. The event must not read `changes()`: its `Insert::rest`
    /// has a condition of its own.
    pub fn change_after_event(
        self,
        event: impl Into<Statement>,
        change: impl Into<Statement>,
    ) -> Self {
        self.then(event).add(Part::Change, change)
    }

    /// The same for the deletion of a session, which has its token's hash in a JSON array as its
    /// `body`.
    pub fn end_after_event(self, event: impl Into<Statement>, end: impl Into<Statement>) -> Self {
        self.then(event).add(Part::End, end)
    }

    /// A statement that selects the reply.
    pub fn returning(self, reply: impl Into<Statement>) -> Self {
        self.add(Part::Reply, reply)
    }

    /// A statement that selects the hashes of the login tokens that the change ends, before it.
    pub fn ending(self, tokens: impl Into<Statement>) -> Self {
        self.add(Part::EndedTokens, tokens)
    }

    /// The parts and the statements, in the same order.
    pub fn into_parts(self) -> (Vec<Part>, Vec<Statement>) {
        self.0.into_iter().unzip()
    }
}

/// The results of a batch.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct BatchResult {
    /// The reply; `None`: nothing was changed.
    pub reply: Option<String>,
    /// The hashes of the login tokens that it ended, as a JSON array.
    pub ended_tokens: Option<String>,
}

impl BatchResult {
    /// Takes the `body` of each statement by its part.
    pub fn new(parts: &[Part], bodies: Vec<Option<String>>) -> Self {
        let (mut change, mut reply, mut ended_tokens) = (None, None, None);
        for (part, body) in parts.iter().zip(bodies) {
            match part {
                Part::Step => {}
                Part::Change => change = body,
                Part::Reply => reply = Some(body),
                Part::EndedTokens => ended_tokens = body,
                Part::End => (change, ended_tokens) = (body.clone(), body),
            }
        }
        let is_changed = change.is_some();
        let reply = reply.unwrap_or(change).filter(|_| is_changed);
        Self { ended_tokens: ended_tokens.filter(|_| is_changed), reply }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(batch: Batch, bodies: &[Option<&str>]) -> BatchResult {
        let (parts, statements) = batch.into_parts();
        assert_eq!(statements.len(), bodies.len());
        BatchResult::new(&parts, bodies.iter().map(|body| body.map(str::to_owned)).collect())
    }

    fn sql(text: &str) -> Statement {
        Statement::new(text)
    }

    #[test]
    fn a_change_replies_with_its_own_body() {
        let batch = || Batch::default().ending(sql("tokens")).change(sql("update"), sql("event"));
        let done = BatchResult { reply: Some("user".into()), ended_tokens: Some("[]".into()) };
        assert_eq!(result(batch(), &[Some("[]"), Some("user"), None]), done);
        assert_eq!(result(batch(), &[Some("[]"), None, None]), BatchResult::default());
    }

    #[test]
    fn a_reply_of_its_own_counts_only_with_a_change() {
        let batch = || {
            Batch::default()
                .change(sql("update"), sql("event"))
                .then(sql("join"))
                .returning(sql("select"))
        };
        let replied = |bodies: &[Option<&str>]| result(batch(), bodies).reply;
        assert_eq!(replied(&[Some("id"), None, None, Some("group")]).as_deref(), Some("group"));
        assert_eq!(replied(&[None, None, None, Some("group")]), None);
        assert_eq!(replied(&[Some("id"), None, None, None]), None);
    }

    #[test]
    fn an_event_may_come_first() {
        let batch = Batch::default().change_after_event(sql("event"), sql("delete"));
        assert_eq!(result(batch, &[None, Some("id")]).reply.as_deref(), Some("id"));
        let batch = || Batch::default().end_after_event(sql("event"), sql("delete"));
        assert_eq!(result(batch(), &[None, Some("[]")]).ended_tokens.as_deref(), Some("[]"));
        assert_eq!(result(batch(), &[None, None]), BatchResult::default());
    }
}
