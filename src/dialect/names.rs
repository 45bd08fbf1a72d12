//! Looks up the names of resources that a native response only has the ids of.

use std::collections::BTreeSet;

use farhand_domain::dialect::reply::{Names, NeededNames, Shape, collect_needed};
use serde_json::Value;

use super::exchange::Exchange;

const GROUPS: &str = "/api/iam/groups/";
const USERS: &str = "/api/iam/users/";
const SERVERS: &str = "/api/servers/servers/";

/// Up to this number of resources, each one is read by its id. More are read as a list.
const MAX_SINGLE_READS: usize = 3;

/// The names for native resources. A name that the caller cannot read stays unknown.
pub async fn look_up(exchange: &mut Exchange, shape: Shape, items: &[Value]) -> Names {
    let mut needed = NeededNames::default();
    for item in items {
        collect_needed(shape, item, &mut needed);
    }
    let mut names = Names::default();
    for group in read(exchange, GROUPS, &needed.groups).await {
        let (id, name) = (group["id"].as_i64(), group["name"].as_str());
        names.groups.extend(id.zip(name.map(str::to_owned)));
    }
    for user in read(exchange, USERS, &needed.users).await {
        names.users.extend(user["id"].as_i64().map(|id| (id, user)));
    }
    names.servers = servers(exchange, &needed.servers).await;
    names
}

/// The native objects of servers, by their ids. Servers that the caller cannot access are left out.
pub async fn servers(
    exchange: &mut Exchange,
    ids: &BTreeSet<String>,
) -> std::collections::BTreeMap<String, Value> {
    let found = read(exchange, SERVERS, ids).await.into_iter();
    found.filter_map(|server| Some((server["id"].as_str()?.to_owned(), server))).collect()
}

/// Reads resources of a collection. The result may have more resources.
async fn read(
    exchange: &mut Exchange,
    collection: &str,
    ids: &BTreeSet<impl ToString>,
) -> Vec<Value> {
    if ids.is_empty() {
        return Vec::new();
    }
    if ids.len() > MAX_SINGLE_READS {
        return exchange.get_all(collection, "").await.unwrap_or_default();
    }
    let mut found = Vec::new();
    for id in ids {
        let path = format!("{collection}{}/", id.to_string());
        if let Ok((_, resource)) = exchange.get(&path, "").await {
            found.push(resource);
        }
    }
    found
}
