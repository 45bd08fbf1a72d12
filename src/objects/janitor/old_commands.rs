//! The deletion of commands that are over for long: by the clock, in bounded steps.

use std::collections::{BTreeMap, BTreeSet};

use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use futures_util::future;
use serde_json::json;
use uuid::Uuid;

use super::{Janitor, PASS, Pass};
use crate::objects::server_link::calls::{self, Forget, Forgotten};
use crate::platform;
use crate::platform::cost;
use crate::platform::log;
use crate::store::retention::{self, Due};

/// How often D1 is told of the same ones, before they are left to the next pass.
const TRIES: u32 = 3;
/// How long an object may take to forget some, in seconds.
const FORGETS_WITHIN: u64 = 20;
/// How many old commands are deleted at a time.
const OLD_COMMANDS: u64 = 100;

impl Janitor {
    /// Deletes the next old commands of the pass. False: there is no pass, or it is through.
    pub(super) async fn go_on_with_pass(&self) -> Result<bool, Error> {
        let storage = self.state.storage();
        let Some(mut pass) = storage.get::<Pass>(PASS).await? else { return Ok(false) };
        let until = match platform::kept_until(&self.env, platform::COMMAND_RETENTION) {
            Ok(Some(until)) => pass.until.map_or(until, |first| first.min(until)),
            kept => {
                self.end_pass(&pass).await?;
                return kept.map(|_| false);
            }
        };
        pass.until = Some(until);
        let found = retention::find(&self.env, pass.workspace, &pass.after, until, OLD_COMMANDS);
        let (due, looked) = cost::of(found).await;
        let due = due?;
        let Some(last) = due.last() else {
            let next = retention::next_workspace(&self.env, pass.workspace, until).await?;
            let Some(next) = next.found.or(next.last) else {
                self.end_pass(&pass).await?;
                return Ok(false);
            };
            pass = Pass { workspace: next, after: String::new(), failures: 0, ..pass };
            storage.put(PASS, &pass).await?;
            return Ok(true);
        };
        let (forgotten, is_all) = self.forget(&due, until, &mut pass.silent).await;
        let deleted = retention::delete(&self.env, pass.workspace, &forgotten, until);
        let (deleted, cost) = cost::of(deleted).await;
        let cost = looked + cost;
        pass.failures = if deleted.is_err() { pass.failures + 1 } else { 0 };
        if deleted.is_ok() {
            pass.deleted += forgotten.len() as u64;
        }
        if (is_all && deleted.is_ok()) || pass.failures >= TRIES {
            (pass.after, pass.failures) = (last.id.clone(), 0);
        }
        storage.put(PASS, &pass).await?;
        deleted?;
        log::event(
            "retention",
            json!({
                "workspace_id": pass.workspace, "found": due.len(), "deleted": forgotten.len(),
                "d1_calls": cost.d1_calls, "rows_read": cost.rows_read, "rows_written": cost.rows_written,
            }),
        );
        Ok(true)
    }

    /// Ends the pass.
    async fn end_pass(&self, pass: &Pass) -> Result<(), Error> {
        self.state.storage().delete(PASS).await?;
        log::event("retention_over", json!({"deleted": pass.deleted}));
        Ok(())
    }

    /// Has objects forget commands, but for the `silent` ones, to which those are added that do not
    /// answer in time. Returns the commands of which they have nothing any more, and whether that
    /// is all that can be done now.
    async fn forget<'a>(
        &self,
        due: &'a [Due],
        until: Timestamp,
        silent: &mut BTreeSet<String>,
    ) -> (Vec<&'a Due>, bool) {
        let mut by_server: BTreeMap<&str, Vec<&Due>> = BTreeMap::new();
        for command in due.iter().filter(|due| !silent.contains(&due.server_id)) {
            by_server.entry(&command.server_id).or_default().push(command);
        }
        let asked = by_server.into_iter().map(async |(server, commands)| {
            (server, self.forget_of(server, commands, until).await)
        });
        let mut forgotten = Vec::new();
        let mut is_all = true;
        for (server, of_server) in future::join_all(asked).await {
            match of_server {
                Ok((some, is_all_of_server)) => {
                    forgotten.extend(some);
                    is_all &= is_all_of_server;
                }
                Err(problem) => {
                    log::trouble("commands_not_forgotten", json!({"server": server}), &problem);
                    silent.insert(server.to_owned());
                }
            }
        }
        (forgotten, is_all)
    }

    /// The same for commands of one server.
    async fn forget_of<'a>(
        &self,
        server: &str,
        commands: Vec<&'a Due>,
        until: Timestamp,
    ) -> Result<(Vec<&'a Due>, bool), String> {
        // Ids of another form no object ever had.
        let Ok(object) = Uuid::try_parse(server) else { return Ok((commands, true)) };
        let ids = commands.iter().filter_map(|due| Uuid::try_parse(&due.id).ok()).collect();
        let ask = calls::Ask::Forget(Forget { ids, until });
        let Forgotten { ids, is_all } = self.within(FORGETS_WITHIN, object, ask).await?;
        let is_forgotten =
            |due: &&Due| Uuid::try_parse(&due.id).map_or(true, |id| ids.contains(&id));
        Ok((commands.into_iter().filter(is_forgotten).collect(), is_all))
    }
}
