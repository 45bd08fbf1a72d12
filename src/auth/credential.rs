//! The credential of a user's request: the token in the Authorization header.
//!
//! The credential check costs no round trip of its own. Every statement that a handler runs for a
//! user begins with the common table `me` ([`Scope`]). `me` has one row if the credential is valid
//! in the request's workspace, and no row otherwise. So for an invalid credential a read finds
//! nothing and a write changes nothing, and a revocation takes effect at the next request
//! (contract 4.3).

use std::rc::Rc;
use std::time::Duration;

use farhand_domain::access::caller::{Caller, CredentialKind};
use farhand_domain::error::Error;
use farhand_domain::http::page::Page;
use farhand_domain::limits::quota;
use farhand_domain::link::call::Refusal;
use farhand_domain::people::session;
use farhand_domain::secret::{Purpose, credential_hash};
use farhand_domain::time::Timestamp;
use farhand_sql::statement::Statement;
use futures_util::future;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use worker::Env;

use crate::auth::list_cache::{CachedList, CachedStatement};
use crate::http::request::Call;
use crate::objects::janitor;
use crate::platform;
use crate::platform::hints::Hints;
use crate::platform::log;
use crate::store::database::Database;
use crate::store::db::{self, Failure, Items, StatementResult};
use crate::store::list::{self, List};
use crate::store::login_tokens::{self, Entry};
use crate::store::scope::{CallerRow, LimitedTokens, Query, Readers, Scope};
use crate::store::transaction::{Transaction, TransactionResult};
use crate::store::{api_tokens, quota_bytes, sessions, workspaces};

/// How long an isolate caches a [`CallerHint`].
const CALLER_HINT_TTL: Duration = Duration::from_secs(60 * 60);
/// How long an isolate does not read the KV entry of a login token again after it saw a correct
/// one. If KV loses the entry during this time, it is written again later. Nothing else depends on
/// the entry, because D1 decides about the token in every request.
const KV_ENTRY_HINT_TTL: Duration = Duration::from_secs(10 * 60);
/// How long KV may still return the old value after a write.
const KV_PROPAGATION_TIME: Duration = Duration::from_secs(60);

// The keys of these maps are KV keys, which contain the workspace and the hash of the token.
thread_local! {
    /// Hints about the callers of valid tokens.
    static CALLERS: Hints<String, CallerHint> = Hints::new(CALLER_HINT_TTL);
    /// KV entries that were correct when this isolate read or wrote them.
    static KV_ENTRIES: Hints<String, Entry> = Hints::new(KV_ENTRY_HINT_TTL);
    /// Keys whose KV entry was repaired. KV may return the old value for [`KV_PROPAGATION_TIME`],
    /// and accepts one write a second per key. So the entry is not repaired again within that time.
    static RECENT_KV_WRITES: Hints<String> = Hints::new(KV_PROPAGATION_TIME);
}

/// A cached hint about a token's caller. It selects how the token is looked up and which list
/// statement runs first. Every D1 result shows whether the hint is still correct.
#[derive(Clone, Copy, Default)]
struct CallerHint {
    /// True for an API token, which has no KV entry.
    is_api_token: bool,
    /// See [`Caller::has_full_access`].
    has_full_access: bool,
    /// See [`Caller::is_history_limited`].
    is_history_limited: bool,
}

/// The result of looking up the KV entry of a token.
struct KvLookup {
    entry: Option<Entry>,
    /// Whether the entry came from this isolate's cache, so that KV was not read.
    is_remembered: bool,
}

/// A well-formed token that is not checked yet. Each method that queries D1 checks the token, and
/// fails with 403 `INVALID_TOKEN` if it is not valid.
pub struct Credential<'a> {
    call: &'a Call,
    /// The key of the token's KV entry.
    key: String,
    /// The common tables and parameters of the caller's statements.
    pub scope: Scope<'a>,
}

/// The column `body` of the first row.
fn body(result: &StatementResult) -> Result<Option<String>, Error> {
    #[derive(Deserialize)]
    struct BodyRow {
        body: Option<String>,
    }
    Ok(db::first::<BodyRow>(result)?.and_then(|row| row.body))
}

impl<'a> Credential<'a> {
    /// Reads the Authorization header.
    ///
    /// # Errors
    /// 401 if the header is missing, 403 if it has another form (contract 4.1). A token that this
    /// service cannot have generated is refused without a lookup (contract 4.2).
    pub fn from_request(call: &'a Call) -> Result<Self, Error> {
        let token = call.user_token()?;
        if !token.is_token() {
            return Err(Error::invalid_token());
        }
        let hash = credential_hash(Purpose::Token, &token);
        let limited = if call.accepts_limited_tokens() {
            LimitedTokens::Accepted
        } else {
            LimitedTokens::Refused
        };
        let workspace = call.workspace()?;
        let key = login_tokens::key(workspace, &hash);
        Ok(Self { call, key, scope: Scope::new(workspace, hash, call.now, limited) })
    }

    /// A copy for another check after a wait: the token may have expired since the request arrived.
    #[must_use]
    pub fn after_wait(&self) -> Self {
        Self { call: self.call, key: self.key.clone(), scope: self.scope.at(platform::now()) }
    }

    /// Runs a statement that selects [`CallerRow`], and the statements `rest`, in one round trip.
    /// Returns the caller, the result of the first statement, and the results of `rest`. An invalid
    /// credential cannot cause a [`Failure`], because its statements change nothing.
    async fn run_with_check(
        &self,
        who: impl Into<Statement>,
        rest: Vec<Statement>,
    ) -> Result<(Caller, StatementResult, Vec<StatementResult>), Failure> {
        let statements = std::iter::once(who.into()).chain(rest).collect::<Vec<_>>();
        let (outcomes, kv) =
            future::join(db::batch(&self.call.database, statements), self.kv_entry()).await;
        let mut outcomes = outcomes?.into_iter();
        let first = outcomes.next().ok_or_else(|| Error::internal("D1: no result"))?;
        let caller = self.authorize(&first, kv)?;
        Ok((caller, first, outcomes.collect()))
    }

    /// Looks up the token's KV entry, in this isolate's cache first.
    async fn kv_entry(&self) -> KvLookup {
        let remembered = KV_ENTRIES.with(|entries| entries.get(&self.key, self.scope.now));
        let is_remembered = remembered.is_some() || self.caller_hint().is_api_token;
        let entry = if is_remembered {
            remembered
        } else {
            login_tokens::get(&self.call.env, self.scope.workspace, &self.scope.hash).await
        };
        KvLookup { entry, is_remembered }
    }

    /// Reads the caller from a D1 result, updates the hints, and checks the limits of a limited API
    /// token (contract 4.12). After the response, repairs the KV entry `kv` if it differs from D1.
    fn authorize(&self, outcome: &StatementResult, kv: KvLookup) -> Result<Caller, Error> {
        let who = db::first::<CallerRow>(outcome)?.ok_or_else(|| Error::internal("D1: no row"))?;
        let Some(workspace_id) = who.workspace else {
            workspaces::forget(self.scope.workspace);
            return Err(Error::not_found());
        };
        workspaces::remember(self.scope.workspace, workspace_id, self.scope.now);
        self.call.is_workspace_known.set(true);
        let Some(me) = who.me else {
            CALLERS.with(|callers| callers.forget(&self.key));
            KV_ENTRIES.with(|entries| entries.forget(&self.key));
            if kv.entry.is_some() {
                forget_login_tokens(self.call, self.scope.workspace, vec![self.scope.hash.clone()]);
            }
            return Err(Error::invalid_token());
        };
        let caller: Caller = serde_json::from_str(&me)?;
        let is_api_token = caller.kind == CredentialKind::ApiToken;
        let (has_full_access, is_history_limited) =
            (caller.has_full_access(), caller.is_history_limited());
        let hint = CallerHint { is_api_token, has_full_access, is_history_limited };
        CALLERS.with(|callers| callers.put(self.key.clone(), hint, self.scope.now));
        self.call.caller.replace(Some(caller.clone()));
        if let Some(acl) = &caller.acl {
            let is_allowed = self.call.accepts_limited_tokens()
                && acl.allows_method(&self.call.method)
                && acl.allows_address(&self.call.remote_ip());
            if !is_allowed {
                return Err(Error::acl_not_allowed());
            }
        }
        self.record_use_later(&caller, kv);
        Ok(caller)
    }

    /// After the response: extends the session, or updates `last_used_at` of the API token, at most
    /// once in 10 minutes (contract 4.3 and 4.8). Repairs a KV entry that does not match the
    /// session.
    fn record_use_later(&self, caller: &Caller, KvLookup { entry, is_remembered }: KvLookup) {
        let (database, now) = (self.call.database.clone(), self.scope.now);
        let (workspace_id, id, key) = (caller.workspace_id, caller.credential_id, self.key.clone());
        let is_due = caller.moved_at.is_none_or(|moved| session::is_extension_due(moved, now));
        match caller.kind {
            CredentialKind::ApiToken => {
                if is_due {
                    let touched =
                        async move { api_tokens::touch(&database, workspace_id, id, now).await };
                    self.call.context.wait_until(log_failure(touched));
                }
            }
            CredentialKind::Session => {
                let expires_at =
                    if is_due { Some(session::expires_at(now)) } else { caller.expires_at };
                let Some(expires_at) = expires_at else { return };
                let wanted = Entry { session: id, expires_at };
                if entry == Some(wanted) {
                    if !is_remembered {
                        KV_ENTRIES.with(|entries| entries.put(key, wanted, now));
                    }
                    return;
                }
                // A cached entry is outdated. Without it, the next request reads KV.
                KV_ENTRIES.with(|entries| entries.forget(&key));
                if !is_due && (is_remembered || !self.claim_kv_write()) {
                    return;
                }
                let (workspace, hash) = (self.scope.workspace.to_owned(), self.scope.hash.clone());
                let env = self.call.env.clone();
                self.call.context.wait_until(log_failure(async move {
                    if is_due {
                        sessions::refresh(&database, workspace_id, id, now, expires_at).await?;
                    }
                    login_tokens::put(&env, &workspace, &hash, wanted).await?;
                    KV_ENTRIES.with(|entries| entries.put(key, wanted, now));
                    Ok(())
                }));
            }
        }
    }

    /// The hint about the token's caller, or the default hint.
    fn caller_hint(&self) -> CallerHint {
        CALLERS.with(|callers| callers.get(&self.key, self.scope.now)).unwrap_or_default()
    }

    /// Whether the KV entry may be repaired now. If so, blocks further repairs for
    /// [`KV_PROPAGATION_TIME`].
    fn claim_kv_write(&self) -> bool {
        RECENT_KV_WRITES.with(|written| written.is_new(self.key.clone(), self.scope.now))
    }

    /// Checks the credential only.
    pub async fn check(&self) -> Result<Caller, Error> {
        let (caller, ..) = self.run_with_check(self.scope.check(), vec![]).await?;
        Ok(caller)
    }

    /// Unwraps input that was read before the credential was checked. If the input is invalid,
    /// checks the credential first, because its refusal takes precedence (contract 3.4).
    pub async fn require_input<T>(&self, input: Result<T, Error>) -> Result<T, Error> {
        match input {
            Ok(input) => Ok(input),
            Err(error) => {
                self.check().await?;
                Err(error)
            }
        }
    }

    /// Runs a query for the caller. Returns its JSON text, or `None` if it found nothing.
    pub async fn read(&self, query: Query) -> Result<(Caller, Option<String>), Error> {
        let (caller, result, _) = self.run_with_check(self.scope.read(query), vec![]).await?;
        Ok((caller, body(&result)?))
    }

    /// Like [`Credential::read`], for a query that is cheaper without the rules of access control
    /// lists. The last read is correct for its caller: the token may get a list between two reads.
    pub async fn read_history(
        &self,
        query: impl Fn(Readers) -> Query,
    ) -> Result<(Caller, Option<String>), Error> {
        if !self.caller_hint().is_history_limited {
            let found = self.read(query(Readers::Unlimited)).await?;
            if !found.0.is_history_limited() {
                return Ok(found);
            }
        }
        self.read(query(Readers::All)).await
    }

    /// Like [`Credential::read`], and decodes the JSON.
    pub async fn find<T: DeserializeOwned>(
        &self,
        query: Query,
    ) -> Result<(Caller, Option<T>), Error> {
        let (caller, found) = self.read(query).await?;
        Ok((caller, found.map(|found| serde_json::from_str(&found)).transpose()?))
    }

    /// Returns the cached list of the request's path and query.
    pub fn cached_list(&self) -> Option<Rc<CachedList>> {
        CachedList::find(&self.scope, self.call)
    }

    /// Caches a list for later requests with the same path and query. The list must depend on
    /// nothing else.
    pub fn cache_list(&self, list: List, page: Page) -> Rc<CachedList> {
        CachedList::insert(&self.scope, self.call, list, page)
    }

    /// Reads a page of a list. Returns the caller, the items, and the number of items on all pages.
    pub async fn list(&self, list: &CachedList) -> Result<(Caller, Items, u64), Error> {
        let Some(narrow) = &list.narrow else { return self.list_unfiltered(list).await };
        if self.caller_hint().is_history_limited {
            let (caller, items, total) = self.page(narrow).await?;
            if caller.is_history_limited() {
                return Ok((caller, items, total.unwrap_or(0)));
            }
        }
        let found = self.list_unfiltered(list).await?;
        if !found.0.is_history_limited() {
            return Ok(found);
        }
        // The filtered read must be the last one. The token may get an access control list between
        // two reads, and must not see a page that was read without this list.
        let (caller, items, total) = self.page(narrow).await?;
        Ok((caller, items, total.unwrap_or(0)))
    }

    /// Reads a page of a list without the filter for limited API tokens.
    async fn list_unfiltered(&self, list: &CachedList) -> Result<(Caller, Items, u64), Error> {
        if let (Some(select), true) = (&list.full_access, self.caller_hint().has_full_access)
            && let (caller, items, Some(total)) = self.page(select).await?
        {
            return Ok((caller, items, total));
        }
        let (caller, items, total) = self.page(&list.select).await?;
        Ok((caller, items, total.unwrap_or(0)))
    }

    /// Reads a page of a list with one of its statements. Without full access, the statement for
    /// full access returns no total.
    async fn page(&self, cached: &CachedStatement) -> Result<(Caller, Items, Option<u64>), Error> {
        let (statement, values) = (cached.statement(&self.scope)?, self.scope.values());
        let page = db::run_page(&self.call.database, statement, &values);
        let (page, kv) = future::join(page, self.kv_entry()).await;
        let (first, items) = page?;
        Ok((self.authorize(&first, kv)?, items, list::total(&first)?))
    }

    /// Prepares repeated checks of the credential and of a query that it can read. For a GET that
    /// accepts limited tokens.
    pub fn watch(&self, query: Query) -> Watch {
        Watch {
            env: self.call.env.clone(),
            database: self.call.database.clone(),
            workspace: self.scope.workspace.to_owned(),
            hash: self.scope.hash.clone(),
            remote_ip: self.call.remote_ip(),
            query,
        }
    }

    /// Writes a change and its audit event in one transaction. Returns the caller and the reply. No
    /// reply means that nothing was changed. If the change invalidates login tokens, their KV
    /// entries are deleted after the response.
    ///
    /// # Errors
    /// The credential is not valid, or a uniqueness rule is violated. 429 if the change counts for
    /// the quota of bytes, and the caller has no bytes left (contract 11.4).
    pub async fn write(
        &self,
        transaction: Transaction,
    ) -> Result<(Caller, Option<String>), Failure> {
        let (parts, mut statements) = transaction.into_parts();
        let guard = self.call.audit_action().is_some_and(quota::counts);
        if guard {
            statements.insert(0, quota_bytes::require_room(&self.scope, self.call.config.quotas));
        }
        let written = self.run_with_check(self.scope.check(), statements).await;
        let (caller, _, results) = match written {
            Err(Failure::NotNull(column)) if column == quota_bytes::GUARD => {
                let query = quota_bytes::find_retry_after(self.call.config.quotas);
                let (_, seconds) = self.find(query).await?;
                let retry_after = seconds.unwrap_or(quota::DAY_SECONDS);
                return Err(Error::from(Refusal::TooManyBytes { retry_after }).into());
            }
            written => written?,
        };
        self.call.audited_chains.borrow_mut().push(caller.workspace_id);
        let results = &results[usize::from(guard)..];
        let bodies = results.iter().map(body).collect::<Result<_, Error>>()?;
        let TransactionResult { reply, ended_tokens } = TransactionResult::new(&parts, bodies);
        forget_login_tokens(
            self.call,
            self.scope.workspace,
            sessions::read_token_hashes(ended_tokens)?,
        );
        Ok((caller, reply))
    }
}

/// A credential and a query that it can read, for repeated checks during a streamed response.
pub struct Watch {
    env: Env,
    database: Database,
    workspace: String,
    hash: String,
    remote_ip: String,
    query: Query,
}

impl Watch {
    /// A watch without a request. `hash` is the hash of the token, `remote_ip` the address of the
    /// client.
    pub fn new(env: Env, workspace: String, hash: String, remote_ip: String, query: Query) -> Self {
        let database = Database::of_slug(&env, &workspace);
        Self { env, database, workspace, hash, remote_ip, query }
    }

    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The value of the query, if the credential is still valid and its access control list still
    /// allows the client's address. Returns `None` otherwise, or if the query finds nothing.
    pub async fn read(&self, now: Timestamp) -> Result<Option<String>, Error> {
        let scope = Scope::new(&self.workspace, self.hash.clone(), now, LimitedTokens::Accepted);
        let result = db::run(&self.database, scope.read(self.query.clone())).await?;
        let who = db::first::<CallerRow>(&result)?.and_then(|who| who.me);
        let Some(me) = who else { return Ok(None) };
        let caller: Caller = serde_json::from_str(&me)?;
        let is_allowed = caller.acl.is_none_or(|acl| acl.allows_address(&self.remote_ip));
        Ok(body(&result)?.filter(|_| is_allowed))
    }

    /// Whether [`Watch::read`] still returns a value.
    pub async fn can_still_read(&self, now: Timestamp) -> Result<bool, Error> {
        Ok(self.read(now).await?.is_some())
    }
}

/// After the response: deletes the KV entries of login tokens whose sessions are no longer in D1.
pub fn forget_login_tokens(call: &Call, workspace: &str, hashes: Vec<String>) {
    if hashes.is_empty() {
        return;
    }
    let (env, workspace) = (call.env.clone(), workspace.to_owned());
    call.context.wait_until(log_failure(async move {
        for hash in hashes {
            login_tokens::delete(&env, &workspace, &hash).await?;
        }
        Ok(())
    }));
}

/// After the response: cancels the waiting commands of revoked sessions (contract 11.5). The
/// permission recheck already prevents their delivery.
pub fn cancel_revoked(call: &Call) {
    let env = call.env.clone();
    call.context.wait_until(log_failure(async move { janitor::cancel_revoked(&env).await }));
}

/// Runs work after the response. A failure is only logged, because a later request or alarm repeats
/// the work.
async fn log_failure(work: impl Future<Output = Result<(), Error>>) {
    if let Err(error) = work.await {
        log::error("afterwork_failed", json!({}), &error.detail);
    }
}
