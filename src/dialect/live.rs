//! Live events: a client opens a channel, connects to its WebSocket, and subscribes to events
//! (contract 21.6). The channel is a Durable Object.

use farhand_domain::error::{Error, ErrorKind, NON_FIELD};
use farhand_domain::http::fields::Fields;
use farhand_domain::id;
use farhand_domain::secret::{Purpose, Secret, credential_hash};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use serde_json::{Map, Value, json};
use uuid::Uuid;
use worker::{Headers, Method, Request, RequestInit};

use super::channel::{
    self, MAX_SUBSCRIPTIONS, Message, Owner, SECRET_HEADER, Subscribed, Subscription,
};
use super::exchange::Exchange;
use crate::api::dispatch;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects;
use crate::platform;

/// An endpoint that any valid credential may read.
const STATUS: &str = "/api/status/";

/// The hash of the caller's token, as in `Credential`.
fn token_hash(call: &Call) -> Result<String, Error> {
    Ok(credential_hash(Purpose::Token, &call.user_token()?))
}

/// `POST /api/events/sessions/`: opens a channel.
pub async fn open_channel(exchange: &mut Exchange) -> Result<Reply, Reply> {
    let input = exchange.fields().await.and_then(Fields::finish);
    exchange.get(STATUS, "").await?;
    let opened = match input {
        Ok(()) => open(&exchange.call).await,
        Err(error) => Err(error),
    };
    let (id, secret) = opened.map_err(|error| exchange.refusal(&error))?;
    let origin = exchange.call.origin.replacen("http", "ws", 1);
    let url = format!("{origin}/ws/events/{id}/{}/", secret.expose());
    let channel = json!({"id": id, "channel_id": id, "websocket_url": url});
    Ok(exchange.reply(201, &channel))
}

async fn open(call: &Call) -> Result<(Uuid, Secret), Error> {
    let id = Uuid::from_bytes(platform::random()?);
    let secret = platform::new_secret()?;
    let owner = Owner {
        workspace: call.workspace()?.to_owned(),
        token_hash: token_hash(call)?,
        remote_ip: call.remote_ip(),
    };
    let secret_hash = credential_hash(Purpose::Channel, &secret);
    channel::call::<()>(&call.env, id, &Message::Open { owner, secret_hash }).await?;
    Ok((id, secret))
}

/// A request for events.
struct NewSubscription {
    channel: Uuid,
    is_output: bool,
    target: Uuid,
}

impl NewSubscription {
    fn read(mut fields: Fields) -> Result<Self, Error> {
        let uuid = |fields: &mut Fields, name| {
            let id = fields.text(name, 1..=64).map(|text| id::parse(&text));
            if id == Some(None) {
                fields.reject(name, "Enter a UUID.");
            }
            id.flatten()
        };
        let channel = uuid(&mut fields, "channel");
        let event = fields.text("event_type", 1..=64);
        let is_output = match event.as_deref() {
            Some("command_output") => Some(true),
            Some("command_fin") => Some(false),
            Some(_) => {
                fields.reject("event_type", "Choose command_output or command_fin.");
                None
            }
            None => None,
        };
        let target = uuid(&mut fields, "target_id");
        let input = channel.zip(is_output).zip(target);
        let ((channel, is_output), target) = fields.finish_with(input)?;
        Ok(Self { channel, is_output, target })
    }
}

/// `POST /api/events/subscriptions/`: subscribes a channel of the same credential. The native read
/// of the command or of the server decides whether the caller may.
pub async fn subscribe(exchange: &mut Exchange) -> Result<Reply, Reply> {
    let input = match exchange.fields().await.and_then(NewSubscription::read) {
        Ok(input) => input,
        Err(error) => {
            exchange.get(STATUS, "").await?;
            return Err(exchange.refusal(&error));
        }
    };
    let NewSubscription { channel, is_output, target } = input;
    let collection = if is_output { "/api/events/commands/" } else { "/api/servers/servers/" };
    let (_, resource) = exchange.get(&format!("{collection}{target}/"), "").await?;
    let subscription = if is_output {
        let resource: Map<String, Value> = resource.as_object().cloned().unwrap_or_default();
        Subscription::Output { command: target, resource }
    } else {
        Subscription::Ends { server: target }
    };
    let subscribed = async {
        let token_hash = token_hash(&exchange.call)?;
        let message = Message::Subscribe { token_hash, subscription };
        channel::call::<Subscribed>(&exchange.call.env, channel, &message).await
    };
    match subscribed.await {
        Ok(Subscribed::Yes) => {
            let event = if is_output { "command_output" } else { "command_fin" };
            let body = json!({"channel": channel, "event_type": event, "target_id": target});
            Ok(exchange.reply(201, &body))
        }
        Ok(Subscribed::NoChannel) => Err(exchange.missing("No such channel.")),
        Ok(Subscribed::TooMany) => {
            let message = format!("A channel has at most {MAX_SUBSCRIPTIONS} subscriptions.");
            Err(exchange.refusal(&Error::field("channel", message)))
        }
        Err(error) => Err(exchange.refusal(&error)),
    }
}

/// `GET /ws/events/<channel>/<secret>/`: the WebSocket of a channel. The secret in the path is the
/// only credential.
pub async fn connect(exchange: &mut Exchange) -> Result<Reply, Reply> {
    exchange.call.parameters = ["channel", "secret"]
        .map(|name| (name.to_owned(), exchange.parameter(name).to_owned()))
        .to_vec();
    Ok(dispatch::answer(&mut exchange.call, socket).await)
}

fn socket(call: &mut Call) -> LocalBoxFuture<'_, Result<Reply, Error>> {
    open_socket(call).boxed_local()
}

async fn open_socket(call: &mut Call) -> Result<Reply, Error> {
    let missing = || Error::new(ErrorKind::NotFound, "No such channel.");
    let workspace = call.workspace()?.to_owned();
    let channel = id::parse(call.parameter("channel")).ok_or_else(missing)?;
    let is_upgrade =
        call.header("Upgrade").is_some_and(|value| value.eq_ignore_ascii_case("websocket"));
    if !is_upgrade {
        return Err(Error::field(NON_FIELD, "Connect with a WebSocket."));
    }
    let secret = Secret::new(call.parameter("secret"));
    if !secret.is_token() {
        return Err(missing());
    }
    let hash = credential_hash(Purpose::Channel, &secret);
    let headers = Headers::new();
    headers.set("Upgrade", "websocket")?;
    headers.set(SECRET_HEADER, &json!([workspace, hash]).to_string())?;
    let mut init = RequestInit::new();
    init.with_method(Method::Get).with_headers(headers);
    let request = Request::new_with_init(objects::ORIGIN, &init)?;
    let stub = objects::stub(&call.env, platform::CHANNEL, &channel.to_string())?;
    let response = objects::fetch(&stub, request).await?;
    match response.websocket() {
        Some(socket) => Ok(Reply::web_socket(socket)),
        None => Err(missing()),
    }
}
