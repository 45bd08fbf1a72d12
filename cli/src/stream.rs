//! Follows a command's output, or a batch, over Server-Sent Events. Resumes the stream after a lost
//! connection.

use std::io::{BufRead, BufReader, Read};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{Client, segment};
use crate::error::{Error, Result};
use crate::output::note;
use crate::types::{BatchChange, Chunk, Command, CommandEnd};

/// The pauses before each attempt to reconnect, in seconds. Then farhand stops following the
/// command or the batch, which keeps running.
const RECONNECT_PAUSES: [u64; 8] = [0, 1, 2, 4, 8, 15, 30, 60];
/// After this time a connection counts as stable, also without output. The pauses begin again.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// How a command ended.
pub struct EndedCommand {
    pub command: Command,
    /// The command with all fields of the API.
    pub json: Value,
    pub output_truncated: bool,
}

/// One event of a stream.
#[derive(Debug, Default, PartialEq)]
struct Event {
    id: String,
    name: String,
    data: String,
}

/// Reads one event. `None` if the stream was cut off before its end.
fn next_event(lines: &mut impl BufRead) -> Option<Event> {
    let mut event = Event::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        lines.read_until(b'\n', &mut line).ok()?;
        let text = str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
        let text = text.strip_suffix('\r').unwrap_or(text);
        if text.is_empty() {
            if event.name.is_empty() {
                continue;
            }
            return Some(event);
        }
        // A line that begins with a colon is a comment.
        let (field, value) = text.split_once(':').unwrap_or((text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => value.clone_into(&mut event.id),
            "event" => value.clone_into(&mut event.name),
            "data" => event.data.push_str(value),
            _ => {}
        }
    }
}

fn parse<T: serde::de::DeserializeOwned>(data: &str) -> Result<T> {
    serde_json::from_str(data)
        .map_err(|error| Error::local(format!("The service sent a malformed event ({error}).")))
}

/// Reads events until `on_event` returns the end. Returns `None` if the stream was cut off. Sets
/// `last` to the id of each event that was read.
fn read<T>(
    stream: impl Read,
    last: &mut Option<String>,
    on_event: &mut impl FnMut(&Event) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let mut lines = BufReader::new(stream);
    while let Some(event) = next_event(&mut lines) {
        if let Some(end) = on_event(&event)? {
            return Ok(Some(end));
        }
        if !event.id.is_empty() {
            *last = Some(event.id);
        }
    }
    Ok(None)
}

/// Reads an event of a command's stream. Returns the end of the command, if this is the `end`
/// event.
fn command_event(
    event: &Event,
    on_chunk: &mut impl FnMut(&str) -> Result<()>,
) -> Result<Option<EndedCommand>> {
    match event.name.as_str() {
        "chunk" => on_chunk(&parse::<Chunk>(&event.data)?.content).map(|()| None),
        "end" => {
            let json = parse(&event.data)?;
            let command = parse(&event.data)?;
            let end: CommandEnd = parse(&event.data)?;
            let output_truncated = end.output_truncated;
            Ok(Some(EndedCommand { command, json, output_truncated }))
        }
        _ => Ok(None),
    }
}

/// Follows a command to its end. Calls `on_chunk` with each piece of output as it arrives.
pub fn follow(
    client: &Client,
    id: &str,
    mut on_chunk: impl FnMut(&str) -> Result<()>,
) -> Result<EndedCommand> {
    let path = format!("/api/events/commands/{}/stream/", segment(id));
    follow_events(client, &path, id, |event| command_event(event, &mut on_chunk))
}

/// Follows a batch to its end. Calls `on_change` with each change of a target's state. Returns the
/// batch as JSON.
pub fn follow_batch(
    client: &Client,
    id: &str,
    mut on_change: impl FnMut(BatchChange) -> Result<()>,
) -> Result<Value> {
    let path = format!("/api/events/batches/{}/stream/", segment(id));
    follow_events(client, &path, id, |event| match event.name.as_str() {
        "target" => on_change(parse(&event.data)?).map(|()| None),
        "end" => parse(&event.data).map(Some),
        _ => Ok(None),
    })
}

/// Follows the stream of a command or a batch until `on_event` returns its end.
fn follow_events<T>(
    client: &Client,
    path: &str,
    id: &str,
    mut on_event: impl FnMut(&Event) -> Result<Option<T>>,
) -> Result<T> {
    let mut last = None;
    let mut failures = 0;
    loop {
        let (before, began) = (last.clone(), Instant::now());
        let failure = match client.stream(path, last.as_deref()) {
            Ok(stream) => {
                if let Some(end) = read(stream, &mut last, &mut on_event)? {
                    return Ok(end);
                }
                if last != before || began.elapsed() >= STABLE_AFTER {
                    failures = 0;
                }
                "The stream was cut off.".to_owned()
            }
            Err(Error::Connection(message)) => message,
            Err(Error::Refused(refusal)) if refusal.status >= 500 || refusal.status == 429 => {
                refusal.to_string()
            }
            Err(error) => return Err(error),
        };
        let Some(seconds) = RECONNECT_PAUSES.get(failures) else {
            return Err(Error::local(format!("Lost the stream of {id}: {failure}")));
        };
        if failures == 1 {
            note("The connection was lost. Trying again.");
        }
        failures += 1;
        thread::sleep(Duration::from_secs(*seconds));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMAND: &str = r#"{"id": "1", "line": "x", "username": "u", "server_name": "web-1",
        "requested_by": null, "state": "failed", "status": {"text": "Failed", "message": "Failed."},
        "success": false, "exit_code": 3, "output_bytes": 4, "elapsed_time": 0.1,
        "scheduled_at": "2026-11-21T01:23:45.678901+00:00", "output_truncated": true}"#;

    fn events(text: &str) -> (String, Option<String>, Option<EndedCommand>) {
        let (mut output, mut last) = (String::new(), None);
        let mut on_chunk = |content: &str| {
            output.push_str(content);
            Ok(())
        };
        let end = read(text.as_bytes(), &mut last, &mut |event: &Event| {
            command_event(event, &mut on_chunk)
        });
        (output, last, end.unwrap())
    }

    #[test]
    fn chunks_and_the_end() {
        let command = COMMAND.replace('\n', " ");
        let text = format!(
            "retry: 1000\n\n: comment\n\nid: 0\nevent: chunk\ndata: {{\"seq\":0,\"content\":\"a\\n\"}}\n\n\
             id: 1\r\nevent: chunk\r\ndata: {{\"seq\":1,\"content\":\"b\"}}\r\n\r\nevent: end\ndata: {command}\n\n"
        );
        let (output, last, end) = events(&text);
        let end = end.unwrap();
        assert_eq!((output.as_str(), last.as_deref()), ("a\nb", Some("1")));
        assert_eq!((end.command.exit_code, end.output_truncated), (Some(3), true));
    }

    #[test]
    fn changes_of_a_batch_and_its_end() {
        let change = |seq: u32, state: &str| {
            format!(
                "id: {seq}\nevent: target\ndata: {{\"server\":\"s\",\"command\":\"c\",\"state\":\"{state}\",\"exit_code\":null}}\n\n"
            )
        };
        let second = change(2, "success") + "event: end\ndata: {\"state\":\"finished\"}\n\n";
        let (url, requests) = serve(vec![change(1, "sent"), second]);
        let address = crate::address::Address::parse(&url, false).unwrap();
        let client = Client::new(address, Some("abc".to_owned())).unwrap();
        let mut states = Vec::new();
        let end = follow_batch(&client, "1", |change| {
            states.push(change.state);
            Ok(())
        });
        assert_eq!(
            (states.join(" "), &end.unwrap()["state"]),
            ("sent success".into(), &"finished".into())
        );
        let requests = requests.join().unwrap();
        assert!(requests[0].starts_with("GET /api/events/batches/1/stream/ HTTP/1.1"));
        assert!(requests[1].to_lowercase().contains("last-event-id: 1\r\n"), "{}", requests[1]);
    }

    #[test]
    fn an_event_that_was_cut_off_is_read_again() {
        let text = "id: 4\nevent: chunk\ndata: {\"seq\":4,\"content\":\"a\"}\n\nid: 5\nevent: chunk\ndata: {\"seq\"";
        let (output, last, end) = events(text);
        assert_eq!((output.as_str(), last.as_deref(), end.is_none()), ("a", Some("4"), true));
    }

    /// Serves one response on each connection. Returns the requests.
    fn serve(responses: Vec<String>) -> (String, thread::JoinHandle<Vec<String>>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = thread::spawn(move || {
            let answer = |body: String| {
                let (mut socket, _) = listener.accept().unwrap();
                let (mut request, mut bytes) = (String::new(), [0; 4096]);
                while !request.contains("\r\n\r\n") {
                    let length = socket.read(&mut bytes).unwrap();
                    request.push_str(str::from_utf8(&bytes[..length]).unwrap());
                }
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
                std::io::Write::write_all(&mut socket, (head.to_owned() + &body).as_bytes())
                    .unwrap();
                request
            };
            responses.into_iter().map(answer).collect()
        });
        (url, requests)
    }

    #[test]
    fn a_lost_connection_is_continued_where_it_stopped() {
        let chunk = |seq: u32| {
            format!("id: {seq}\nevent: chunk\ndata: {{\"seq\":{seq},\"content\":\"{seq} \"}}\n\n")
        };
        let end = format!("event: end\ndata: {}\n\n", COMMAND.replace('\n', " "));
        let first = chunk(0) + &chunk(1) + "id: 2\nevent: chunk\nda";
        let (url, requests) = serve(vec![first, chunk(2) + &end]);
        let address = crate::address::Address::parse(&url, false).unwrap();
        let client = Client::new(address, Some("abc".to_owned())).unwrap();
        let mut output = String::new();
        let end = follow(&client, "1", |content| {
            output.push_str(content);
            Ok(())
        });
        assert_eq!((output.as_str(), end.unwrap().command.exit_code), ("0 1 2 ", Some(3)));
        let requests: Vec<String> =
            requests.join().unwrap().iter().map(|request| request.to_lowercase()).collect();
        assert!(requests[0].starts_with("get /api/events/commands/1/stream/ http/1.1"));
        assert!(!requests[0].contains("last-event-id"));
        assert!(requests[1].contains("last-event-id: 1\r\n"), "{}", requests[1]);
        assert!(requests[1].contains("authorization: token=\"abc\"\r\n"), "{}", requests[1]);
    }
}
