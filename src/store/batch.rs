//! The statements of one change, in their order. D1 runs them as one transaction.
//!
//! A store function returns a batch, and `Credential::write` runs it. Nobody counts statements: each one is added together with
//! its role, and the roles tell which result is the reply.

use super::db::Statement;

/// What the result of a statement is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Nothing.
    Step,
    /// It makes the change: its `body` is null if it changed nothing.
    Change,
    /// Its `body` is the reply, if there was a change.
    Reply,
    /// Its `body` is the hashes of the login tokens that the change ends, as a JSON array.
    EndedTokens,
}

/// The statements of one change, in their order, with their roles. A change without a [`Role::Reply`] replies with its own `body`.
#[derive(Default, Debug)]
pub struct Batch(Vec<(Role, Statement)>);

impl Batch {
    fn add(mut self, role: Role, statement: Statement) -> Self {
        self.0.push((role, statement));
        self
    }

    /// A statement whose result is not used.
    pub fn then(self, statement: Statement) -> Self {
        self.add(Role::Step, statement)
    }

    /// The statement that makes the change, and directly behind it that for its audit event, which reads `changes()`.
    pub fn change(self, change: Statement, event: Statement) -> Self {
        self.add(Role::Change, change).then(event)
    }

    /// The same for an event that has a condition of its own, and comes first: after the change the credential may be dead, or
    /// the name of what it deleted gone.
    pub fn change_after_event(self, event: Statement, change: Statement) -> Self {
        self.then(event).add(Role::Change, change)
    }

    /// A statement that selects the reply.
    pub fn returning(self, reply: Statement) -> Self {
        self.add(Role::Reply, reply)
    }

    /// A statement that selects the hashes of the login tokens that the change ends, before it.
    pub fn ending(self, tokens: Statement) -> Self {
        self.add(Role::EndedTokens, tokens)
    }

    /// The roles, and the statements.
    pub fn into_parts(self) -> (Vec<Role>, Vec<Statement>) {
        self.0.into_iter().unzip()
    }
}

/// What a change returned.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The reply; `None`: nothing was changed.
    pub reply: Option<String>,
    /// The hashes of the login tokens that it ended, as a JSON array.
    pub ended_tokens: Option<String>,
}

impl Outcome {
    /// The outcome of a batch with these roles, by the `body` of each statement.
    pub fn new(roles: &[Role], bodies: Vec<Option<String>>) -> Self {
        let (mut change, mut reply, mut ended_tokens) = (None, None, None);
        for (role, body) in roles.iter().zip(bodies) {
            match role {
                Role::Step => {}
                Role::Change => change = body,
                Role::Reply => reply = Some(body),
                Role::EndedTokens => ended_tokens = body,
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

    fn outcome(batch: Batch, bodies: &[Option<&str>]) -> Outcome {
        let (roles, statements) = batch.into_parts();
        assert_eq!(statements.len(), bodies.len());
        Outcome::new(&roles, bodies.iter().map(|body| body.map(str::to_owned)).collect())
    }

    fn sql(text: &str) -> Statement {
        Statement::new(text)
    }

    #[test]
    fn a_change_replies_with_its_own_body() {
        let batch = || Batch::default().ending(sql("tokens")).change(sql("update"), sql("event"));
        let done = Outcome { reply: Some("user".into()), ended_tokens: Some("[]".into()) };
        assert_eq!(outcome(batch(), &[Some("[]"), Some("user"), None]), done);
        assert_eq!(outcome(batch(), &[Some("[]"), None, None]), Outcome::default());
    }

    #[test]
    fn a_reply_of_its_own_counts_only_with_a_change() {
        let batch = || Batch::default().change(sql("update"), sql("event")).then(sql("join")).returning(sql("select"));
        let replied = |bodies: &[Option<&str>]| outcome(batch(), bodies).reply;
        assert_eq!(replied(&[Some("id"), None, None, Some("group")]).as_deref(), Some("group"));
        assert_eq!(replied(&[None, None, None, Some("group")]), None);
        assert_eq!(replied(&[Some("id"), None, None, None]), None);
    }

    #[test]
    fn an_event_may_come_first() {
        let batch = Batch::default().change_after_event(sql("event"), sql("delete"));
        assert_eq!(outcome(batch, &[None, Some("id")]).reply.as_deref(), Some("id"));
    }
}
