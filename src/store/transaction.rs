//! The statements of one change, in order. D1 runs them as one transaction.
//!
//! A store function returns a transaction, and `Credential::write` runs it. Each statement has a role
//! ([`StatementRole`]), which says how its result is used. So no code depends on the index of a
//! statement.

use farhand_sql::statement::Statement;

/// The role of a statement in a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatementRole {
    /// The result is not used.
    Step,
    /// Makes the change. It has a `body` if it changed something.
    Change,
    /// Selects the reply as `body`. The reply is used only if there was a change.
    Reply,
    /// Selects the hashes of the login tokens that the change invalidates, as a JSON array in
    /// `body`.
    EndedTokens,
    /// Makes the change by deleting a session. Its `body` is used for both
    /// [`StatementRole::Change`] and [`StatementRole::EndedTokens`].
    DeleteSession,
}

/// The statements of one change, in order. Without a [`StatementRole::Reply`], the `body` of the
/// [`StatementRole::Change`] is the reply.
#[derive(Default, Debug)]
pub struct Transaction(Vec<(StatementRole, Statement)>);

impl Transaction {
    fn add(mut self, part: StatementRole, statement: impl Into<Statement>) -> Self {
        self.0.push((part, statement.into()));
        self
    }

    /// Adds a statement whose result is not used.
    pub fn then(self, statement: impl Into<Statement>) -> Self {
        self.add(StatementRole::Step, statement)
    }

    /// Adds the statement that makes the change. Directly after it, adds the statement for the
    /// audit event, which reads `changes()`.
    pub fn change(self, change: impl Into<Statement>, event: impl Into<Statement>) -> Self {
        self.add(StatementRole::Change, change).then(event)
    }

    /// Adds the statement for the audit event, and then the statement that makes the change. Use
    /// this if the change may invalidate the credential of the request, or delete a name that the
    /// event needs. The event must not read `changes()`. Its `Insert::rest` needs its own
    /// condition.
    pub fn change_after_event(
        self,
        event: impl Into<Statement>,
        change: impl Into<Statement>,
    ) -> Self {
        self.then(event).add(StatementRole::Change, change)
    }

    /// Adds the statement for the audit event, and then the statement that deletes a session. The
    /// `body` of the deletion is a JSON array with the hash of the session's token.
    pub fn delete_session_after_event(
        self,
        event: impl Into<Statement>,
        end: impl Into<Statement>,
    ) -> Self {
        self.then(event).add(StatementRole::DeleteSession, end)
    }

    /// Adds a statement that selects the reply.
    pub fn returning(self, reply: impl Into<Statement>) -> Self {
        self.add(StatementRole::Reply, reply)
    }

    /// Adds a statement that selects the hashes of the login tokens that the change invalidates.
    /// Call this before the change is added.
    pub fn ending(self, tokens: impl Into<Statement>) -> Self {
        self.add(StatementRole::EndedTokens, tokens)
    }

    /// The roles and the statements, in the same order.
    pub fn into_parts(self) -> (Vec<StatementRole>, Vec<Statement>) {
        self.0.into_iter().unzip()
    }
}

/// The results of a transaction.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct TransactionResult {
    /// The reply, or `None` if nothing changed.
    pub reply: Option<String>,
    /// The hashes of the login tokens that the change invalidated, as a JSON array.
    pub ended_tokens: Option<String>,
}

impl TransactionResult {
    /// Interprets the `body` of each statement by its role.
    pub fn new(parts: &[StatementRole], bodies: Vec<Option<String>>) -> Self {
        let (mut change, mut reply, mut ended_tokens) = (None, None, None);
        for (part, body) in parts.iter().zip(bodies) {
            match part {
                StatementRole::Step => {}
                StatementRole::Change => change = body,
                StatementRole::Reply => reply = Some(body),
                StatementRole::EndedTokens => ended_tokens = body,
                StatementRole::DeleteSession => (change, ended_tokens) = (body.clone(), body),
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

    fn result(transaction: Transaction, bodies: &[Option<&str>]) -> TransactionResult {
        let (parts, statements) = transaction.into_parts();
        assert_eq!(statements.len(), bodies.len());
        TransactionResult::new(&parts, bodies.iter().map(|body| body.map(str::to_owned)).collect())
    }

    fn sql(text: &str) -> Statement {
        Statement::new(text)
    }

    #[test]
    fn without_a_reply_the_body_of_the_change_is_the_reply() {
        let transaction =
            || Transaction::default().ending(sql("tokens")).change(sql("update"), sql("event"));
        let done =
            TransactionResult { reply: Some("user".into()), ended_tokens: Some("[]".into()) };
        assert_eq!(result(transaction(), &[Some("[]"), Some("user"), None]), done);
        assert_eq!(result(transaction(), &[Some("[]"), None, None]), TransactionResult::default());
    }

    #[test]
    fn a_reply_is_used_only_if_something_changed() {
        let transaction = || {
            Transaction::default()
                .change(sql("update"), sql("event"))
                .then(sql("join"))
                .returning(sql("select"))
        };
        let replied = |bodies: &[Option<&str>]| result(transaction(), bodies).reply;
        assert_eq!(replied(&[Some("id"), None, None, Some("group")]).as_deref(), Some("group"));
        assert_eq!(replied(&[None, None, None, Some("group")]), None);
        assert_eq!(replied(&[Some("id"), None, None, None]), None);
    }

    #[test]
    fn the_event_may_precede_the_change() {
        let transaction = Transaction::default().change_after_event(sql("event"), sql("delete"));
        assert_eq!(result(transaction, &[None, Some("id")]).reply.as_deref(), Some("id"));
        let transaction =
            || Transaction::default().delete_session_after_event(sql("event"), sql("delete"));
        assert_eq!(result(transaction(), &[None, Some("[]")]).ended_tokens.as_deref(), Some("[]"));
        assert_eq!(result(transaction(), &[None, None]), TransactionResult::default());
    }
}
