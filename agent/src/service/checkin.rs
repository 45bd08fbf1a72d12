//! The calls that the agent makes before it connects, and its heartbeat (agent-protocol 2).

use std::time::Duration;

use farhand_domain::agent::wire::HostPolicy;
use hyper::Method;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::connection::client::{Client, RESPONSE_TIMEOUT};
use crate::host::facts::{Facts, read_load};
use crate::reports::jitter;
use crate::runner::policy::PolicyFile;

/// The call with the facts of the host.
const SYNC: &str = "/api/servers/servers/-/sync/";
/// The time limit for reading the policy, so that an account database that hangs cannot stop the
/// heartbeat.
const POLICY_TIMEOUT: Duration = Duration::from_secs(10);
/// The first pause between two attempts to check in. Each pause doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// The maximum pause between two attempts to check in.
const MAX_PAUSE: Duration = Duration::from_secs(300);
/// The pauses between the attempts of a call that is not the first one, in seconds. Reports have
/// the same pauses.
const RETRY_PAUSES: [u64; 5] = [1, 2, 4, 8, 16];
/// The default interval of the heartbeat.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(300);
/// The minimum interval of the heartbeat, in seconds. With it, a wrong value from the service
/// cannot cause a flood of calls.
const MIN_INTERVAL: f64 = 1.0;
/// The maximum interval of the heartbeat, in seconds. With it, a wrong value cannot silence the
/// agent.
const MAX_INTERVAL: f64 = 24.0 * 60.0 * 60.0;

/// The policy of the host, and what the service knows about it.
pub struct ReportedPolicy {
    file: PolicyFile,
    /// What the service last accepted. `None`: nothing.
    accepted: Option<HostPolicy>,
}

impl ReportedPolicy {
    pub fn new(file: PolicyFile) -> Self {
        Self { file, accepted: None }
    }

    /// The current policy. Returns `None` if it could not be read within [`POLICY_TIMEOUT`].
    async fn current(&self) -> Option<HostPolicy> {
        let file = self.file.clone();
        // Blocks, because account databases can be on the network.
        let summary = tokio::task::spawn_blocking(move || file.summary());
        timeout(POLICY_TIMEOUT, summary).await.ok()?.ok()
    }
}

/// The facts of this host and its policy, as the body of the `commit` and `sync` calls.
fn facts_body(facts: &Facts, policy: Option<&HostPolicy>) -> Value {
    let mut body = serde_json::to_value(facts).unwrap_or_default();
    if let (Some(body), Some(policy)) = (body.as_object_mut(), policy) {
        body.insert("policy".to_owned(), json!(policy));
    }
    body
}

/// Waits until the service accepts this agent's key, without a time limit, and reports the host's
/// facts. Returns the interval of the heartbeat, or `None` if the service wants no heartbeat.
pub async fn check_in(client: &Client, reported: &mut ReportedPolicy) -> Option<Duration> {
    // 1. Wait until the service accepts the key.
    let commissioned = find_own_server(client).await;
    // 2. Report an event. If this or a later call fails, the agent continues.
    let (record, description) = if commissioned {
        ("started", "The agent started.")
    } else {
        ("committed", "The agent started for the first time.")
    };
    let event = json!({"reporter": "farhand-agent", "record": record, "description": description});
    call_with_retries(client, Method::POST, "/api/events/events/", &event).await;
    // 3. Report the facts of this host.
    let facts = Facts::read();
    let policy = reported.current().await;
    let body = facts_body(&facts, policy.as_ref());
    let is_accepted = if commissioned {
        let is_accepted = call_with_retries(client, Method::PATCH, SYNC, &body).await;
        // The response may request facts, but is ignored, because `sync` has already sent all
        // facts.
        call_with_retries(
            client,
            Method::POST,
            "/api/servers/servers/-/sync-check/",
            &json!({"hashes": facts.hashes()}),
        )
        .await;
        is_accepted
    } else {
        call_with_retries(client, Method::PUT, "/api/servers/servers/-/commit/", &body).await
    };
    reported.accepted = policy.filter(|_| is_accepted);
    // 4. Request the interval of the heartbeat.
    match client.get("/api/metrics/config/").await {
        Ok((200, config)) => heartbeat_interval(&config),
        _ => Some(DEFAULT_INTERVAL),
    }
}

/// Requests this agent's server until a response says whether it is commissioned.
async fn find_own_server(client: &Client) -> bool {
    let mut pause = FIRST_PAUSE;
    loop {
        let why = match client.get("/api/servers/servers/-/").await {
            Ok((200, server)) => match server["commissioned"].as_bool() {
                Some(commissioned) => return commissioned,
                None => "the response is not a server".to_owned(),
            },
            Ok((403, _)) => "the id or the key is wrong, or the server is deleted".to_owned(),
            Ok((status, _)) => format!("status {status}"),
            Err(why) => why.0,
        };
        log::warn!(
            "cannot check in at {}: {why}; next attempt in {} s",
            client.service(),
            pause.as_secs()
        );
        sleep(jitter(pause)).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Makes a call, with a few retries. If all attempts fail, logs a warning. Returns whether the
/// service accepted the call.
async fn call_with_retries(client: &Client, method: Method, path: &str, body: &Value) -> bool {
    let body = Bytes::from(body.to_string());
    let mut pauses = RETRY_PAUSES.iter();
    loop {
        let outcome = client.send(method.clone(), path, body.clone(), RESPONSE_TIMEOUT).await;
        let why = match outcome {
            Ok(200..=299) => return true,
            Ok(status) => format!("status {status}"),
            Err(why) => why.0,
        };
        let Some(pause) = pauses.next() else {
            log::warn!("{method} {path}: {why}");
            return false;
        };
        sleep(Duration::from_secs(*pause)).await;
    }
}

/// Parses `[{"type": "status", "interval": seconds}]`. Returns `None` if the service wants no
/// heartbeat.
fn heartbeat_interval(config: &Value) -> Option<Duration> {
    let status = config.as_array()?.iter().find(|entry| entry["type"] == "status")?;
    let seconds = status["interval"].as_f64().unwrap_or(DEFAULT_INTERVAL.as_secs_f64());
    Some(Duration::from_secs_f64(seconds.clamp(MIN_INTERVAL, MAX_INTERVAL)))
}

/// Sends the host's load to the service every `interval`, as a sign of life, and the facts of the
/// host if its policy changed. Never returns.
pub async fn heartbeat(client: &Client, interval: Duration, reported: &mut ReportedPolicy) {
    loop {
        sleep(jitter(interval)).await;
        let policy = reported.current().await;
        if policy.is_some() && policy != reported.accepted {
            let body = Bytes::from(facts_body(&Facts::read(), policy.as_ref()).to_string());
            // A failed report is repeated with the next heartbeat.
            match client.send(Method::PATCH, SYNC, body, RESPONSE_TIMEOUT).await {
                Ok(200..=299) => reported.accepted = policy,
                Ok(status) => log::warn!("the policy is not reported: status {status}"),
                Err(why) => log::warn!("the policy is not reported: {}", why.0),
            }
        }
        let body = Bytes::from(json!({"load": read_load()}).to_string());
        // A failed heartbeat is not retried, because the next heartbeat follows soon.
        match client
            .send(Method::PATCH, "/api/servers/servers/-/status/", body, RESPONSE_TIMEOUT)
            .await
        {
            Ok(200..=299) => {}
            Ok(status) => log::warn!("heartbeat: status {status}"),
            Err(why) => log::warn!("heartbeat: {}", why.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heartbeat_interval_is_bounded() {
        let seconds = |config| heartbeat_interval(&config).map(|interval| interval.as_secs());
        assert_eq!(
            seconds(json!([{"type": "cpu", "interval": 1}, {"type": "status", "interval": 60}])),
            Some(60)
        );
        assert_eq!(seconds(json!([{"type": "status"}])), Some(300));
        assert_eq!(seconds(json!([{"type": "status", "interval": -5}])), Some(1));
        assert_eq!(seconds(json!([{"type": "status", "interval": 1e300}])), Some(86_400));
        assert_eq!((seconds(json!([])), seconds(json!({}))), (None, None));
    }
}
