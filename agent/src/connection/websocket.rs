//! The WebSocket on which commands arrive: dialing, messages and reconnecting
//! (agent-protocol 2, 3 and 5).
//!
//! Commands do not depend on this connection. While it is down, they run and send their reports
//! over HTTP.

use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farhand_domain::agent::wire::{
    AgentCommand, FEATURES_HEADER, MessageFromAgent, MessageToAgent,
};
use futures_util::{SinkExt, StreamExt};
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, ORIGIN, USER_AGENT};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connection::client::{Client, Stream, causes};

/// The path of the WebSocket on which commands arrive.
const COMMANDS: &str = "/ws/servers/backhaul/";
/// The path of a WebSocket without commands. A server can have several.
const CONTROL: &str = "/ws/servers/control/";
/// A socket without a data message for this long is treated as dead. The service pings more often.
const MAX_SILENCE: Duration = Duration::from_secs(35 * 60);
/// The time limit for connecting and for the handshake together.
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);
/// The time limit for sending a pong.
const PONG_TIMEOUT: Duration = Duration::from_secs(10);
/// The log text for a handshake that is refused with 403.
pub const KEY_REFUSED: &str = "the service refuses the key: it is wrong, or the server is deleted";
/// The time limit for the closing handshake.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// A session shorter than this counts as a failure. After two short sessions in a row, the agent
/// waits before it dials, as after a failed dial. Without this wait, two agents of one server,
/// which close each other's socket, would redial many times a second.
const MIN_SESSION: Duration = Duration::from_secs(10);
/// The maximum size of a message from the service, in bytes.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// The reason why the agent does not dial again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finished {
    /// The service sent `quit`.
    Quit,
    /// The agent is shutting down.
    Draining,
}

/// The reason why a session ended.
#[derive(Clone, PartialEq, Eq, Debug)]
enum SessionEnd {
    /// The agent does not dial again.
    Finished(Finished),
    /// The service asked for a new connection.
    Reconnect,
    /// The connection failed, with the reason.
    Dropped(String),
}

/// Handles the messages of the service.
pub trait CommandHandler {
    /// Accepts a command and runs it.
    fn accept(&self, order: AgentCommand);
    /// Kills a command.
    fn kill(&self, id: Uuid);
    /// The value of [`FEATURES_HEADER`] (agent-protocol 6.1).
    fn features(&self) -> String;
}

/// Opens and closes a WebSocket without commands, to check that WebSockets reach the service.
///
/// # Errors
/// The reason why they do not, in one line.
pub async fn check(client: &Client) -> Result<(), String> {
    let mut socket = dial(client, CONTROL, String::new()).await?;
    // The check has succeeded, whether or not the service answers the close frame in time.
    let _ = timeout(CLOSE_TIMEOUT, socket.close(None)).await;
    Ok(())
}

/// Keeps a WebSocket open and passes its messages to `handler`, until the service sends `quit` or
/// `draining` is cancelled. Cancels `connected` when the first WebSocket is open.
pub async fn run(
    client: &Client,
    draining: &CancellationToken,
    connected: &CancellationToken,
    handler: &impl CommandHandler,
) -> Finished {
    // Failed dials and short sessions in a row.
    let mut failures = 0;
    loop {
        let dialed = tokio::select! {
            dialed = dial(client, COMMANDS, handler.features()) => dialed,
            () = draining.cancelled() => return Finished::Draining,
        };
        let pause = match dialed {
            Ok(socket) => {
                log::info!("connected to {}", client.service());
                connected.cancel();
                let began = Instant::now();
                match session(socket, draining, handler).await {
                    SessionEnd::Finished(finished) => return finished,
                    SessionEnd::Reconnect => {
                        log::info!("the service asked for a new connection");
                        failures = 0;
                        Duration::ZERO
                    }
                    SessionEnd::Dropped(why) => {
                        log::warn!("connection lost: {why}");
                        failures = if began.elapsed() < MIN_SESSION { failures + 1 } else { 0 };
                        // Redials almost immediately. After a restart of the service all agents
                        // redial, so a random delay spreads their calls.
                        if failures < 2 {
                            Duration::from_millis(fastrand::u64(0..500))
                        } else {
                            pause_after(failures - 1)
                        }
                    }
                }
            }
            Err(why) => {
                failures += 1;
                let pause = pause_after(failures);
                log::warn!(
                    "cannot connect to {}: {why}; next attempt in {:.0} s",
                    client.service(),
                    pause.as_secs_f64()
                );
                pause
            }
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = draining.cancelled() => return Finished::Draining,
        }
    }
}

/// The pause after a number of failures in a row: 5, 10, 20, 40, 60, 60 … s, randomly shortened or
/// extended by up to a fifth.
fn pause_after(failures: u32) -> Duration {
    let seconds = (5 << failures.saturating_sub(1).min(4)).min(60);
    Duration::from_secs(seconds).mul_f64(0.8 + 0.4 * fastrand::f64())
}

/// Opens a WebSocket.
async fn dial(
    client: &Client,
    path: &str,
    features: String,
) -> Result<WebSocketStream<Stream>, String> {
    let service = client.service();
    let scheme = if service.tls { "wss" } else { "ws" };
    let url = format!("{scheme}://{}{}{path}", service.authority, service.path);
    let mut request = url.into_client_request().map_err(|error| causes(&error))?;
    let origin = service.origin().parse().map_err(|_| "the host does not fit into a header")?;
    let headers = client.headers();
    request.headers_mut().insert(HOST, headers.host.clone());
    request.headers_mut().insert(AUTHORIZATION, headers.authorization.clone());
    request.headers_mut().insert(USER_AGENT, headers.user_agent.clone());
    request.headers_mut().insert(ORIGIN, origin);
    let name = HeaderName::try_from(FEATURES_HEADER).map_err(|error| causes(&error))?;
    request
        .headers_mut()
        .insert(name, HeaderValue::try_from(features).map_err(|error| causes(&error))?);
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_MESSAGE_BYTES));
    let dial = async {
        let stream = client.connect().await.map_err(|error| causes(&error))?;
        let dialed = client_async_with_config(request, stream, Some(config)).await;
        dialed.map(|(socket, _)| socket).map_err(|error| match error {
            Error::Http(response) if response.status().as_u16() == 403 => KEY_REFUSED.to_owned(),
            Error::Http(response) => format!("status {}", response.status().as_u16()),
            error => causes(&error),
        })
    };
    timeout(DIAL_TIMEOUT, dial).await.unwrap_or_else(|_| Err("no response in time".to_owned()))
}

/// Handles the messages of one WebSocket until it ends.
async fn session<S: AsyncRead + AsyncWrite + Unpin>(
    mut socket: WebSocketStream<S>,
    draining: &CancellationToken,
    handler: &impl CommandHandler,
) -> SessionEnd {
    let mut silent = pin!(sleep(MAX_SILENCE));
    let end = loop {
        let message = tokio::select! {
            message = socket.next() => message,
            () = draining.cancelled() => break SessionEnd::Finished(Finished::Draining),
            () = &mut silent => break SessionEnd::Dropped(format!("no message for {} minutes", MAX_SILENCE.as_secs() / 60)),
        };
        let text = match message {
            Some(Ok(Message::Text(text))) => text,
            Some(Ok(Message::Binary(_))) => {
                log::warn!("a binary message was ignored");
                silent.as_mut().reset(Instant::now() + MAX_SILENCE);
                continue;
            }
            Some(Ok(Message::Close(frame))) => {
                let code = frame.map_or(CloseCode::Status, |frame| frame.code);
                // This read also sends the close frame of the agent.
                let _ = timeout(CLOSE_TIMEOUT, socket.next()).await;
                return SessionEnd::Dropped(format!("closed with {code}"));
            }
            Some(Ok(_)) => continue,
            Some(Err(error)) => return SessionEnd::Dropped(causes(&error)),
            None => return SessionEnd::Dropped("closed".to_owned()),
        };
        silent.as_mut().reset(Instant::now() + MAX_SILENCE);
        match parse(&text) {
            MessageToAgent::Ping => match timeout(PONG_TIMEOUT, socket.send(pong())).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return SessionEnd::Dropped(causes(&error)),
                Err(_) => {
                    return SessionEnd::Dropped("the pong could not be sent in time".to_owned());
                }
            },
            MessageToAgent::Command { command } => handler.accept(*command),
            MessageToAgent::Kill { id } => handler.kill(id),
            MessageToAgent::Reconnect => break SessionEnd::Reconnect,
            MessageToAgent::Quit => break SessionEnd::Finished(Finished::Quit),
            MessageToAgent::Unknown => {
                log::warn!("an unknown or invalid message was ignored")
            }
        }
    };
    close(socket, handler).await;
    end
}

/// Closes with code 1000. Commands that arrive before the service closes are still handled, because
/// the service sends each command only once.
async fn close<S: AsyncRead + AsyncWrite + Unpin>(
    mut socket: WebSocketStream<S>,
    handler: &impl CommandHandler,
) {
    let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    let closing = async {
        if socket.close(Some(frame)).await.is_err() {
            return;
        }
        while let Some(Ok(message)) = socket.next().await {
            let Message::Text(text) = message else { continue };
            match parse(&text) {
                MessageToAgent::Command { command } => handler.accept(*command),
                MessageToAgent::Kill { id } => handler.kill(id),
                _ => {}
            }
        }
    };
    let until = Instant::now() + CLOSE_TIMEOUT;
    tokio::select! {
        () = closing => {}
        () = sleep_until(until) => {}
    }
}

/// Parses a message. Invalid messages are treated as unknown.
fn parse(text: &str) -> MessageToAgent {
    serde_json::from_str(text).unwrap_or(MessageToAgent::Unknown)
}

fn pong() -> Message {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut pong = serde_json::to_value(MessageFromAgent::Pong).unwrap_or_default();
    pong["timestamp"] = Value::from(now);
    Message::text(pong.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Mutex;

    use tokio::io::{DuplexStream, duplex};
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    /// Records the calls of the session.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<String>>);

    impl CommandHandler for Recorder {
        fn accept(&self, order: AgentCommand) {
            self.0.lock().unwrap().push(order.line);
        }

        fn kill(&self, id: Uuid) {
            self.0.lock().unwrap().push(format!("kill {id}"));
        }

        fn features(&self) -> String {
            String::new()
        }
    }

    /// Runs a session against a scripted service. Returns its end, and the calls of the handler.
    async fn talk<F: Future<Output = ()>>(
        service: impl FnOnce(WebSocketStream<DuplexStream>) -> F,
    ) -> (SessionEnd, Vec<String>) {
        let (near, far) = duplex(64 * 1024);
        let agent = WebSocketStream::from_raw_socket(near, Role::Client, None).await;
        let far = WebSocketStream::from_raw_socket(far, Role::Server, None).await;
        let recorder = Recorder::default();
        let never = CancellationToken::new();
        let (end, ()) = tokio::join!(session(agent, &never, &recorder), service(far));
        (end, recorder.0.into_inner().unwrap())
    }

    fn command(line: &str) -> Message {
        let id = Uuid::nil();
        Message::text(format!(
            r#"{{"query":"command","command":{{"id":"{id}","shell":"system","line":"{line}","user":"a","data":null}}}}"#
        ))
    }

    fn kill(number: u128) -> Message {
        Message::text(format!(r#"{{"query":"kill","id":"{}"}}"#, Uuid::from_u128(number)))
    }

    #[tokio::test(start_paused = true)]
    async fn each_message_has_its_effect() {
        let (end, lines) = talk(|mut far| async move {
            for odd in [
                "{}",
                "x",
                "[]",
                r#"{"query":"dance"}"#,
                r#"{"query":"command","command":{"id":1}}"#,
            ] {
                far.send(Message::text(odd)).await.unwrap();
            }
            far.send(Message::binary("x")).await.unwrap();
            far.send(command("one")).await.unwrap();
            far.send(kill(1)).await.unwrap();
            far.send(Message::text(r#"{"query":"kill","id":1}"#)).await.unwrap();
            far.send(Message::text(r#"{"query":"ping"}"#)).await.unwrap();
            let pong: Value =
                serde_json::from_str(far.next().await.unwrap().unwrap().to_text().unwrap())
                    .unwrap();
            assert_eq!(pong["query"], "pong");
            assert!(pong["timestamp"].as_f64() > Some(1.7e9));
            far.send(Message::text(r#"{"query":"reconnect"}"#)).await.unwrap();
            // The service sends these messages before it receives the agent's close frame.
            far.send(command("two")).await.unwrap();
            far.send(kill(2)).await.unwrap();
            let closed = far.next().await.unwrap().unwrap();
            assert!(
                matches!(closed, Message::Close(Some(frame)) if frame.code == CloseCode::Normal)
            );
        })
        .await;
        let kill = |number| format!("kill {}", Uuid::from_u128(number));
        assert_eq!(
            (end, lines),
            (SessionEnd::Reconnect, vec!["one".to_owned(), kill(1), "two".to_owned(), kill(2)])
        );
    }

    #[tokio::test(start_paused = true)]
    async fn quit_ends_the_session() {
        let (end, _) = talk(|mut far| async move {
            far.send(Message::text(r#"{"query":"quit"}"#)).await.unwrap();
            while let Some(Ok(_)) = far.next().await {}
        })
        .await;
        assert_eq!(end, SessionEnd::Finished(Finished::Quit));
    }

    #[tokio::test(start_paused = true)]
    async fn protocol_pings_do_not_keep_a_silent_socket_open() {
        let began = Instant::now();
        let (end, _) = talk(|mut far| async move {
            sleep(MAX_SILENCE / 2).await;
            far.send(Message::text("{}")).await.unwrap();
            for _ in 0..4 {
                sleep(MAX_SILENCE / 5).await;
                far.send(Message::Ping("x".into())).await.unwrap();
            }
            while let Some(Ok(_)) = far.next().await {}
        })
        .await;
        assert_eq!(end, SessionEnd::Dropped("no message for 35 minutes".to_owned()));
        assert_eq!(began.elapsed().as_secs(), MAX_SILENCE.as_secs() * 3 / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_peer_ends_the_session() {
        let (end, _) = talk(|far| async move { drop(far) }).await;
        assert!(matches!(end, SessionEnd::Dropped(_)), "{end:?}");
        let (end, _) = talk(|mut far| async move { far.close(None).await.unwrap() }).await;
        assert!(matches!(end, SessionEnd::Dropped(_)), "{end:?}");
    }

    #[test]
    fn pauses_grow_to_a_minute() {
        for (failures, seconds) in
            [(1, 5.0), (2, 10.0), (3, 20.0), (4, 40.0), (5, 60.0), (6, 60.0), (u32::MAX, 60.0)]
        {
            let pause = pause_after(failures).as_secs_f64();
            assert!((seconds * 0.8..=seconds * 1.2).contains(&pause), "{failures}: {pause}");
        }
    }
}
