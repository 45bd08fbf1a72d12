//! Who is calling: the Authorization header's token, resolved in the same round trip as the
//! handler's own work.
//!
//! Every statement that a handler runs for a user begins with the common table `me`, which has one
//! row if the credential is alive in the request's workspace and none otherwise. So a read finds
//! nothing and a write changes nothing for a dead credential, and a revocation is effective at the
//! very next request.

use std::rc::Rc;
use std::time::Duration;

use farhand_domain::caller::{Caller, Kind};
use farhand_domain::error::Error;
use farhand_domain::page::Page;
use farhand_domain::secret::{Purpose, credential_hash};
use farhand_domain::session;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::Statement;
use futures_util::future;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use worker::Env;

use crate::auth::kept_lists::{Kept, KeptList};
use crate::http::request::Call;
use crate::objects::janitor;
use crate::platform;
use crate::platform::hints::Hints;
use crate::platform::log;
use crate::store::batch::{Batch, BatchResult};
use crate::store::db::{self, Failure, Items, Outcome};
use crate::store::list::{self, List};
use crate::store::login_tokens::{self, Entry};
use crate::store::scope::{Limited, Query, Scope, Who};
use crate::store::{api_tokens, sessions, workspaces};

/// For how long an isolate remembers what a token's caller was like.
const REMEMBERED: Duration = Duration::from_secs(60 * 60);
/// For how long an isolate that saw the right entry of a login token in KV does not read it again.
/// An entry that is lost in this time is written again later; nothing else depends on it, as D1
/// decides about the token in every request.
const SEEN: Duration = Duration::from_secs(10 * 60);
/// How long KV may not show what was written.
const KV_SETTLES_WITHIN: Duration = Duration::from_secs(60);

// The keys are those of KV, which name the workspace and the token's hash.
thread_local! {
    /// What the callers of live tokens were like.
    static CALLERS: Hints<String, Traits> = Hints::new(REMEMBERED);
    /// Entries of KV that were right when they were read or written.
    static ENTRIES: Hints<String, Entry> = Hints::new(SEEN);
    /// Keys whose entry in KV was written. KV may say for a minute that there is none, and takes
    /// one write a second for a key; so it is not written again for as long.
    static WRITTEN: Hints<String> = Hints::new(KV_SETTLES_WITHIN);
}

/// What decides how a token is looked up, and how a list is read for it. Each answer tells whether
/// that still holds.
#[derive(Clone, Copy, Default)]
struct Traits {
    /// KV has no entry for it.
    is_api_token: bool,
    /// See [`Caller::reaches_all`].
    reaches_all: bool,
    /// See [`Caller::reads_narrowly`].
    reads_narrowly: bool,
}

/// What is known of a token's entry in KV.
struct Known {
    entry: Option<Entry>,
    /// KV was not read.
    is_remembered: bool,
}

/// A token that was sent, not looked up yet. Each method that asks D1 refuses a credential that is
/// not alive.
pub struct Credential<'a> {
    call: &'a Call,
    /// The key of its entry in KV.
    key: String,
    /// What its statements are limited to.
    pub scope: Scope<'a>,
}

/// The `body` of a result's first row.
fn body(result: &Outcome) -> Result<Option<String>, Error> {
    #[derive(Deserialize)]
    struct Row {
        body: Option<String>,
    }
    Ok(db::first::<Row>(result)?.and_then(|row| row.body))
}

impl<'a> Credential<'a> {
    /// Reads the Authorization header.
    ///
    /// # Errors
    /// 401 without one, 403 if it has another form. A token of another form than ours is refused
    /// like an unknown one, without asking D1 or KV.
    pub fn of(call: &'a Call) -> Result<Self, Error> {
        let token = call.user_token()?;
        if !token.is_token() {
            return Err(Error::invalid_token());
        }
        let hash = credential_hash(Purpose::Token, &token);
        let limited = if call.takes_limited_tokens() { Limited::Taken } else { Limited::Refused };
        let workspace = call.workspace()?;
        let key = login_tokens::key(workspace, &hash);
        Ok(Self { call, key, scope: Scope::new(workspace, hash, call.now, limited) })
    }

    /// The same credential for a check after a wait: it may have expired since the request began.
    #[must_use]
    pub fn after_wait(&self) -> Self {
        Self { call: self.call, key: self.key.clone(), scope: self.scope.at(platform::now()) }
    }

    /// Runs a statement that selects [`Who`], and the rest behind it, in one round trip. A failure
    /// is reported only if the credential is alive: otherwise no statement does anything that could
    /// fail.
    async fn resolve(
        &self,
        who: impl Into<Statement>,
        rest: Vec<Statement>,
    ) -> Result<(Caller, Outcome, Vec<Outcome>), Failure> {
        let statements = std::iter::once(who.into()).chain(rest).collect::<Vec<_>>();
        let (outcomes, entry) =
            future::join(db::batch(&self.call.env, statements), self.entry()).await;
        let mut outcomes = outcomes?.into_iter();
        let first = outcomes.next().ok_or_else(|| Error::internal("D1: no result"))?;
        let caller = self.settle(&first, entry)?;
        Ok((caller, first, outcomes.collect()))
    }

    /// The credential's entry in KV.
    async fn entry(&self) -> Known {
        let remembered = ENTRIES.with(|entries| entries.get(&self.key, self.scope.now));
        let is_remembered = remembered.is_some() || self.traits().is_api_token;
        let entry = if is_remembered {
            remembered
        } else {
            login_tokens::get(&self.call.env, self.scope.workspace, &self.scope.hash).await
        };
        Known { entry, is_remembered }
    }

    /// Takes the caller from what D1 says, and puts right what KV says.
    fn settle(&self, outcome: &Outcome, known: Known) -> Result<Caller, Error> {
        let who = db::first::<Who>(outcome)?.ok_or_else(|| Error::internal("D1: no row"))?;
        let Some(workspace_id) = who.workspace else {
            workspaces::forget(self.scope.workspace);
            return Err(Error::not_found());
        };
        workspaces::remember(self.scope.workspace, workspace_id, self.scope.now);
        self.call.workspace_proven.set(true);
        let Some(me) = who.me else {
            CALLERS.with(|callers| callers.forget(&self.key));
            ENTRIES.with(|entries| entries.forget(&self.key));
            if known.entry.is_some() {
                forget_login_tokens(self.call, self.scope.workspace, vec![self.scope.hash.clone()]);
            }
            return Err(Error::invalid_token());
        };
        let caller: Caller = serde_json::from_str(&me)?;
        let is_api_token = caller.kind == Kind::ApiToken;
        let (reaches_all, reads_narrowly) = (caller.reaches_all(), caller.reads_narrowly());
        let traits = Traits { is_api_token, reaches_all, reads_narrowly };
        CALLERS.with(|callers| callers.put(self.key.clone(), traits, self.scope.now));
        self.call.caller.replace(Some(caller.clone()));
        if let Some(acl) = &caller.acl {
            let is_allowed = self.call.takes_limited_tokens()
                && acl.allows_method(&self.call.method)
                && acl.allows_address(&self.call.remote_ip());
            if !is_allowed {
                return Err(Error::acl_not_allowed());
            }
        }
        self.keep_up(&caller, known);
        Ok(caller)
    }

    /// After the response: moves a session's expiry and repairs its KV entry, or notes an API
    /// token's use; each at most every ten minutes.
    fn keep_up(&self, caller: &Caller, Known { entry, is_remembered }: Known) {
        let (env, now) = (self.call.env.clone(), self.scope.now);
        let (workspace_id, id, key) = (caller.workspace_id, caller.credential_id, self.key.clone());
        let is_due = caller.moved_at.is_none_or(|moved| session::is_refresh_due(moved, now));
        match caller.kind {
            Kind::ApiToken => {
                if is_due {
                    let noted = async move { api_tokens::touch(&env, workspace_id, id, now).await };
                    self.call.context.wait_until(logged(noted));
                }
            }
            Kind::Session => {
                let expires_at =
                    if is_due { Some(session::expires_at(now)) } else { caller.expires_at };
                let Some(expires_at) = expires_at else { return };
                let wanted = Entry { session: id, expires_at };
                if entry == Some(wanted) {
                    if !is_remembered {
                        ENTRIES.with(|entries| entries.put(key, wanted, now));
                    }
                    return;
                }
                // The next request reads it.
                ENTRIES.with(|entries| entries.forget(&key));
                if !is_due && (is_remembered || !self.may_write_entry()) {
                    return;
                }
                let (workspace, hash) = (self.scope.workspace.to_owned(), self.scope.hash.clone());
                self.call.context.wait_until(logged(async move {
                    if is_due {
                        sessions::refresh(&env, workspace_id, id, now, expires_at).await?;
                    }
                    login_tokens::put(&env, &workspace, &hash, wanted).await?;
                    ENTRIES.with(|entries| entries.put(key, wanted, now));
                    Ok(())
                }));
            }
        }
    }

    /// What its caller was like; as of nobody in particular if that is not remembered.
    fn traits(&self) -> Traits {
        CALLERS.with(|callers| callers.get(&self.key, self.scope.now)).unwrap_or_default()
    }

    /// Tells whether the token's KV entry was not written lately, and notes that it is now.
    fn may_write_entry(&self) -> bool {
        WRITTEN.with(|written| written.is_new(self.key.clone(), self.scope.now))
    }

    /// Looks the credential up, and does nothing else.
    pub async fn check(&self) -> Result<Caller, Error> {
        let (caller, ..) = self.resolve(self.scope.check(), vec![]).await?;
        Ok(caller)
    }

    /// Passes on input that was read before the credential was looked up; where it is bad, the
    /// credential's own refusal comes first (contract 3.4).
    pub async fn checked<T>(&self, input: Result<T, Error>) -> Result<T, Error> {
        match input {
            Ok(input) => Ok(input),
            Err(error) => {
                self.check().await?;
                Err(error)
            }
        }
    }

    /// Reads what a query asks for, as JSON text.
    pub async fn read(&self, query: Query) -> Result<(Caller, Option<String>), Error> {
        let (caller, result, _) = self.resolve(self.scope.read(query), vec![]).await?;
        Ok((caller, body(&result)?))
    }

    /// The same, decoded.
    pub async fn find<T: DeserializeOwned>(
        &self,
        query: Query,
    ) -> Result<(Caller, Option<T>), Error> {
        let (caller, found) = self.read(query).await?;
        Ok((caller, found.map(|found| serde_json::from_str(&found)).transpose()?))
    }

    /// The list that is kept for the request's path and query.
    pub fn kept_list(&self) -> Option<Rc<KeptList>> {
        KeptList::find(&self.scope, self.call)
    }

    /// Keeps a page of a list for the next request with the same path and query: it must depend on
    /// nothing else.
    pub fn keep_list(&self, list: List, page: Page) -> Rc<KeptList> {
        KeptList::keep(&self.scope, self.call, list, page)
    }

    /// Reads a page of a list. Returns the caller, the JSON array of the items, and the number of
    /// all.
    pub async fn list(&self, list: &KeptList) -> Result<(Caller, Items, u64), Error> {
        let Some(narrow) = &list.narrow else { return self.list_widely(list).await };
        if self.traits().reads_narrowly {
            let (caller, items, total) = self.page(narrow).await?;
            if caller.reads_narrowly() {
                return Ok((caller, items, total.unwrap_or(0)));
            }
        }
        let found = self.list_widely(list).await?;
        if !found.0.reads_narrowly() {
            return Ok(found);
        }
        // Not the other way round: a list that became narrow in between must not be read widely.
        let (caller, items, total) = self.page(narrow).await?;
        Ok((caller, items, total.unwrap_or(0)))
    }

    /// Reads a page of a list, whatever the API token's list allows of it.
    async fn list_widely(&self, list: &KeptList) -> Result<(Caller, Items, u64), Error> {
        if let (Some(select), true) = (&list.full_access, self.traits().reaches_all)
            && let (caller, items, Some(total)) = self.page(select).await?
        {
            return Ok((caller, items, total));
        }
        let (caller, items, total) = self.page(&list.select).await?;
        Ok((caller, items, total.unwrap_or(0)))
    }

    /// Reads a page of a list with one of its statements.
    async fn page(&self, kept: &Kept) -> Result<(Caller, Items, Option<u64>), Error> {
        let (statement, values) = (kept.statement(&self.scope)?, self.scope.values());
        let reading = db::run_page(&self.call.env, statement, &values);
        let (read, entry) = future::join(reading, self.entry()).await;
        let (first, items) = read?;
        Ok((self.settle(&first, entry)?, items, list::total(&first)?))
    }

    /// The credential of a GET that takes limited tokens, with what it reads, to be checked again.
    pub fn watch(&self, query: Query) -> Watch {
        Watch {
            env: self.call.env.clone(),
            workspace: self.scope.workspace.to_owned(),
            hash: self.scope.hash.clone(),
            remote_ip: self.call.remote_ip(),
            query,
        }
    }

    /// Writes a change with its audit event in one transaction. After the response, the KV entries
    /// of the login tokens that the change ends are deleted. Returns the caller and the reply; no
    /// reply means that nothing was changed.
    ///
    /// # Errors
    /// The credential is not alive, or a uniqueness rule is broken.
    pub async fn write(&self, batch: Batch) -> Result<(Caller, Option<String>), Failure> {
        let (parts, statements) = batch.into_parts();
        let (caller, _, results) = self.resolve(self.scope.check(), statements).await?;
        self.call.audited.borrow_mut().push(caller.workspace_id);
        let bodies = results.iter().map(body).collect::<Result<_, Error>>()?;
        let BatchResult { reply, ended_tokens } = BatchResult::new(&parts, bodies);
        forget_login_tokens(
            self.call,
            self.scope.workspace,
            sessions::read_token_hashes(ended_tokens)?,
        );
        Ok((caller, reply))
    }
}

/// A credential with what it reads, to be looked at again and again while its response is under
/// way.
pub struct Watch {
    env: Env,
    workspace: String,
    hash: String,
    remote_ip: String,
    query: Query,
}

impl Watch {
    /// Tells whether the credential is still alive, may call from where it does, and still reads
    /// what it did.
    pub async fn still_reads(&self, now: Timestamp) -> Result<bool, Error> {
        let scope = Scope::new(&self.workspace, self.hash.clone(), now, Limited::Taken);
        let result = db::run(&self.env, scope.read(self.query.clone())).await?;
        let who = db::first::<Who>(&result)?.and_then(|who| who.me);
        let Some(me) = who else { return Ok(false) };
        let caller: Caller = serde_json::from_str(&me)?;
        let reads = body(&result)?.is_some();
        Ok(reads && caller.acl.is_none_or(|acl| acl.allows_address(&self.remote_ip)))
    }
}

/// After the response: removes the KV entries of login tokens whose sessions are gone from D1.
pub fn forget_login_tokens(call: &Call, workspace: &str, hashes: Vec<String>) {
    if hashes.is_empty() {
        return;
    }
    let (env, workspace) = (call.env.clone(), workspace.to_owned());
    call.context.wait_until(logged(async move {
        for hash in hashes {
            login_tokens::delete(&env, &workspace, &hash).await?;
        }
        Ok(())
    }));
}

/// After the response: has the waiting commands of revoked sessions cancelled. They are refused at
/// delivery already.
pub fn cancel_revoked(call: &Call) {
    let env = call.env.clone();
    call.context.wait_until(logged(async move { janitor::cancel_revoked(&env).await }));
}

/// Work after the response, whose failure only the log hears of: the next request does it again.
async fn logged(work: impl Future<Output = Result<(), Error>>) {
    if let Err(error) = work.await {
        log::trouble("afterwork_failed", json!({}), &error.detail);
    }
}
