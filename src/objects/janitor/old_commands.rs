//! Deletes commands and batches that ended long ago, in bounded steps of a pass.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use futures_util::future;
use serde_json::json;
use uuid::Uuid;

use super::{Janitor, PASS_KEY, Pass};
use crate::objects::server_link::calls::{self, DeleteOldCommands, DeletedCommands};
use crate::platform;
use crate::platform::cost;
use crate::platform::log;
use crate::store::Progress;
use crate::store::retention::{self, OldCommand};

/// The maximum number of tries to delete the same commands in D1. After that, they wait for the
/// next pass.
const MAX_TRIES: u32 = 3;
/// The timeout for an object's deletion of commands.
const DELETE_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum number of commands that one step deletes.
const COMMANDS_PER_STEP: u64 = 100;

impl Janitor {
    /// Deletes the next old commands of the pass, then old batches. Then moves on to the next
    /// workspace.
    pub(super) async fn continue_pass(&self) -> Result<Progress, Error> {
        let storage = self.state.storage();
        let Some(mut pass) = storage.get::<Pass>(PASS_KEY).await? else {
            return Ok(Progress::Done);
        };
        let until = match platform::retention_cutoff(&self.env, platform::COMMAND_RETENTION) {
            Ok(Some(until)) => pass.until.map_or(until, |first| first.min(until)),
            // Commands are kept forever, or the setting is invalid.
            none_or_error => {
                self.end_pass(&pass).await?;
                return none_or_error.map(|_| Progress::Done);
            }
        };
        pass.until = Some(until);
        let database = self.database(pass.workspace);
        let found =
            retention::find(&database, pass.workspace, &pass.after, until, COMMANDS_PER_STEP);
        let (old, find_cost) = cost::measure(found).await;
        let old = old?;
        let Some(last) = old.last() else {
            let batches = retention::delete_batches(&database, pass.workspace, until).await?;
            if batches == Progress::More {
                return Ok(Progress::More);
            }
            let scan = retention::scan_workspaces(&self.cell, pass.workspace, until).await?;
            let Some(next) = scan.found.or(scan.last) else {
                self.end_pass(&pass).await?;
                return Ok(Progress::Done);
            };
            pass = Pass { workspace: next, after: String::new(), failures: 0, ..pass };
            storage.put(PASS_KEY, &pass).await?;
            return Ok(Progress::More);
        };
        let (absent, progress) = self.delete_in_objects(&old, until, &mut pass.silent).await;
        let deleted = retention::delete(&database, pass.workspace, &absent, until);
        let (deleted, delete_cost) = cost::measure(deleted).await;
        let cost = find_cost + delete_cost;
        pass.failures = if deleted.is_err() { pass.failures + 1 } else { 0 };
        if deleted.is_ok() {
            pass.deleted += absent.len() as u64;
        }
        if (progress == Progress::Done && deleted.is_ok()) || pass.failures >= MAX_TRIES {
            (pass.after, pass.failures) = (last.id.clone(), 0);
        }
        storage.put(PASS_KEY, &pass).await?;
        deleted?;
        log::event(
            "retention",
            json!({
                "workspace_id": pass.workspace, "found": old.len(), "deleted": absent.len(),
                "d1_calls": cost.d1_calls, "rows_read": cost.rows_read, "rows_written": cost.rows_written,
            }),
        );
        Ok(Progress::More)
    }

    async fn end_pass(&self, pass: &Pass) -> Result<(), Error> {
        self.state.storage().delete(PASS_KEY).await?;
        log::event("retention_over", json!({"deleted": pass.deleted}));
        Ok(())
    }

    /// Deletes commands in the objects of their servers. Skips the `silent` servers, and adds the
    /// servers whose objects do not respond in time. Returns the commands that the objects no
    /// longer have, and whether the objects have more to delete for these commands.
    async fn delete_in_objects<'a>(
        &self,
        old: &'a [OldCommand],
        until: Timestamp,
        silent: &mut BTreeSet<String>,
    ) -> (Vec<&'a OldCommand>, Progress) {
        let mut by_server: BTreeMap<&str, Vec<&OldCommand>> = BTreeMap::new();
        for command in old.iter().filter(|command| !silent.contains(&command.server_id)) {
            by_server.entry(&command.server_id).or_default().push(command);
        }
        let calls = by_server.into_iter().map(async |(server, commands)| {
            (server, self.delete_in_object(server, commands, until).await)
        });
        let mut absent = Vec::new();
        let mut progress = Progress::Done;
        for (server, result) in future::join_all(calls).await {
            match result {
                Ok((commands, Progress::Done)) => absent.extend(commands),
                Ok((commands, more)) => {
                    absent.extend(commands);
                    progress = more;
                }
                Err(problem) => {
                    log::error("commands_not_forgotten", json!({"server": server}), &problem);
                    silent.insert(server.to_owned());
                }
            }
        }
        (absent, progress)
    }

    /// Deletes commands of one server in its object: see [`Self::delete_in_objects`].
    async fn delete_in_object<'a>(
        &self,
        server: &str,
        commands: Vec<&'a OldCommand>,
        until: Timestamp,
    ) -> Result<(Vec<&'a OldCommand>, Progress), String> {
        // Objects are named by UUIDs. A server with another id has no object.
        let Ok(object) = Uuid::try_parse(server) else { return Ok((commands, Progress::Done)) };
        let ids = commands.iter().filter_map(|old| Uuid::try_parse(&old.id).ok()).collect();
        let message = calls::LinkRequest::DeleteOldCommands(DeleteOldCommands { ids, until });
        let DeletedCommands { ids, is_complete } =
            self.call_in_time(DELETE_TIMEOUT, object, message).await?;
        let is_deleted =
            |old: &&OldCommand| Uuid::try_parse(&old.id).map_or(true, |id| ids.contains(&id));
        let progress = if is_complete { Progress::Done } else { Progress::More };
        Ok((commands.into_iter().filter(is_deleted).collect(), progress))
    }
}
