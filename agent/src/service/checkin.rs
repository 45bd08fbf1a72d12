//! The calls before the agent connects, and its heartbeat (agent-protocol 2).

use std::time::Duration;

use hyper::Method;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::connection::client::{ANSWER_TIMEOUT, Client};
use crate::host::facts::{Facts, read_load};
use crate::reports::jitter;

/// The first pause between two attempts to check in, and the longest; each is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));
/// The pauses between tries of the calls that follow, in seconds, as for reports.
const RETRIES: [u64; 5] = [1, 2, 4, 8, 16];
/// The interval of the heartbeat if the service names none.
const HEARTBEAT: Duration = Duration::from_secs(300);
/// The smallest and the largest interval, in seconds. A wrong one must neither flood the service
/// nor silence the agent.
const INTERVALS: (f64, f64) = (1.0, 24.0 * 60.0 * 60.0);

/// Checks in and reports the host's facts, until the service knows this agent, however long that
/// takes. Returns the interval of the heartbeat, if the service wants one.
pub async fn check_in(client: &Client) -> Option<Duration> {
    // 1. The service must know this agent.
    let commissioned = find_own_server(client).await;
    // 2. An event; like all that follows, nothing depends on it.
    let (record, description) = if commissioned {
        ("started", "The agent started.")
    } else {
        ("committed", "The agent started for the first time.")
    };
    let event = json!({"reporter": "farhand-agent", "record": record, "description": description});
    call_with_retries(client, Method::POST, "/api/events/events/", &event).await;
    // 3. What this host is.
    let facts = Facts::read();
    let told = serde_json::to_value(&facts).unwrap_or_default();
    if commissioned {
        call_with_retries(client, Method::PATCH, "/api/servers/servers/-/sync/", &told).await;
        // All that the service could ask for in its answer was in the call before.
        call_with_retries(
            client,
            Method::POST,
            "/api/servers/servers/-/sync-check/",
            &json!({"hashes": facts.hashes()}),
        )
        .await;
    } else {
        call_with_retries(client, Method::PUT, "/api/servers/servers/-/commit/", &told).await;
    }
    // 4. How often it wants to hear of this agent.
    match client.get("/api/metrics/config/").await {
        Ok((200, config)) => heartbeat_interval(&config),
        _ => Some(HEARTBEAT),
    }
}

/// Gets this agent's server until the response says whether it is commissioned.
async fn find_own_server(client: &Client) -> bool {
    let mut pause = PAUSES.0;
    loop {
        let why = match client.get("/api/servers/servers/-/").await {
            Ok((200, server)) => match server["commissioned"].as_bool() {
                Some(commissioned) => return commissioned,
                None => "the answer is not a server".to_owned(),
            },
            Ok((403, _)) => "the id or the key is wrong, or the server is deleted".to_owned(),
            Ok((status, _)) => format!("status {status}"),
            Err(why) => why.0,
        };
        log::warn!(
            "cannot check in at {}: {why}; next try in {} s",
            client.service(),
            pause.as_secs()
        );
        sleep(jitter(pause)).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Makes a call, with a few retries.
async fn call_with_retries(client: &Client, method: Method, path: &str, body: &Value) {
    let body = Bytes::from(body.to_string());
    let mut pauses = RETRIES.iter();
    loop {
        let outcome = client.send(method.clone(), path, body.clone(), ANSWER_TIMEOUT).await;
        let why = match outcome {
            Ok(200..=299) => return,
            Ok(status) => format!("status {status}"),
            Err(why) => why.0,
        };
        let Some(pause) = pauses.next() else {
            return log::warn!("{method} {path}: {why}");
        };
        sleep(Duration::from_secs(*pause)).await;
    }
}

/// Reads the interval from `[{"type": "status", "interval": s}]`. None if the service wants no
/// heartbeat.
fn heartbeat_interval(config: &Value) -> Option<Duration> {
    let status = config.as_array()?.iter().find(|entry| entry["type"] == "status")?;
    let seconds = status["interval"].as_f64().unwrap_or(HEARTBEAT.as_secs_f64());
    Some(Duration::from_secs_f64(seconds.clamp(INTERVALS.0, INTERVALS.1)))
}

/// Sends the service a sign of life and the host's load every `interval`. Never returns.
pub async fn heartbeat(client: &Client, interval: Duration) {
    loop {
        sleep(jitter(interval)).await;
        let body = Bytes::from(json!({"load": read_load()}).to_string());
        // The next one is the retry.
        match client
            .send(Method::PATCH, "/api/servers/servers/-/status/", body, ANSWER_TIMEOUT)
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
    fn intervals_are_read_and_bounded() {
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
