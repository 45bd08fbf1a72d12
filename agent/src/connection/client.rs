//! Calls to the service over HTTP, and the one way by which every connection is made
//! (agent-protocol 1 and 4).
//!
//! There are no redirects, no cookies and no proxies: a call goes to the host of the configuration
//! or nowhere.

use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use farhand_domain::secret::Secret;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use uuid::Uuid;

use crate::config::{Service, Settings};

/// How long the service has for an answer. Later ones count as none.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long making a connection may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The most of an answer that is read, in bytes.
const MAX_ANSWER: usize = 1024 * 1024;
/// How long an unused connection is kept. Shorter than what servers and proxies usually allow, so
/// that a call rarely meets one that is just being closed.
const IDLE: Duration = Duration::from_secs(45);

/// Why a call has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoAnswer(pub String);

/// What a call came to: the answer's status, or why there is none.
pub type Outcome = Result<u16, NoAnswer>;

/// Calls the service as one server's agent. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    service: Service,
    headers: Headers,
    pool: Pool<Connector, Full<Bytes>>,
    connector: Connector,
}

/// The headers of each call and each WebSocket.
#[derive(Clone)]
pub struct Headers {
    /// `id="…", key="…"`, and marked as not to be shown.
    pub authorization: HeaderValue,
    /// The agent and its version.
    pub user_agent: HeaderValue,
    /// The service's host as the configuration names it.
    pub host: HeaderValue,
}

impl Client {
    /// A client with the credential of `settings`.
    ///
    /// # Errors
    /// What of the settings does not fit, in one line.
    pub fn new(settings: &Settings) -> Result<Self, String> {
        Self::of_server(&settings.service, settings.id, &settings.key)
    }

    /// A client with the id and key of a server.
    ///
    /// # Errors
    /// What of them does not fit, in one line.
    pub fn of_server(service: &Service, id: Uuid, key: &Secret) -> Result<Self, String> {
        Self::with(service.clone(), format!("id=\"{id}\", key=\"{}\"", key.expose()))
    }

    /// A client with a registration token.
    ///
    /// # Errors
    /// What of it does not fit, in one line.
    pub fn of_token(service: &Service, token: &Secret) -> Result<Self, String> {
        Self::with(service.clone(), format!("token=\"{}\"", token.expose()))
    }

    fn with(service: Service, credential: String) -> Result<Self, String> {
        let mut authorization = HeaderValue::try_from(credential)
            .map_err(|_| "the credential does not fit into a header")?;
        authorization.set_sensitive(true);
        let headers = Headers {
            authorization,
            user_agent: HeaderValue::from_static(concat!(
                "farhand-agent/",
                env!("CARGO_PKG_VERSION")
            )),
            host: HeaderValue::try_from(&service.authority)
                .map_err(|_| "the host does not fit into a header")?,
        };
        let connector = Connector::new(service.clone())?;
        let pool = Pool::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(4)
            .build(connector.clone());
        Ok(Self { service, headers, pool, connector })
    }

    /// Where the service is.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// The headers of each call.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Makes a connection of its own, for a WebSocket.
    ///
    /// # Errors
    /// The connection could not be made within [`CONNECT_TIMEOUT`].
    pub async fn connect(&self) -> io::Result<Stream> {
        self.connector.connect().await
    }

    /// Calls the service; what it answers beside the status does not matter. `timeout` is for all
    /// of it.
    ///
    /// # Errors
    /// There was no answer in time.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Outcome {
        self.call(method, path, body, timeout, false).await.map(|(status, _)| status)
    }

    /// Gets JSON from the service. Null if the response is not JSON.
    ///
    /// # Errors
    /// There was no answer in time.
    pub async fn get(&self, path: &str) -> Result<(u16, Value), NoAnswer> {
        self.ask(Method::GET, path, Bytes::new(), ANSWER_TIMEOUT).await
    }

    /// Calls the service for the sake of its answer, like [`get`](Self::get). `timeout` is for all
    /// of it.
    ///
    /// # Errors
    /// There was no answer in time.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<(u16, Value), NoAnswer> {
        let (status, answer) = self.call(method, path, body, timeout, true).await?;
        Ok((status, serde_json::from_slice(&answer).unwrap_or_default()))
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        timeout: Duration,
        is_read: bool,
    ) -> Result<(u16, Bytes), NoAnswer> {
        let request =
            self.request(method, path, body).map_err(|error| NoAnswer(error.to_string()))?;
        let call = async {
            let response =
                self.pool.request(request).await.map_err(|error| NoAnswer(causes(&error)))?;
            let status = response.status().as_u16();
            // Read to the end in any case: what is left unread costs the connection.
            match read(response).await {
                Ok(answer) => Ok((status, answer)),
                Err(_) if !is_read => Ok((status, Bytes::new())),
                Err(error) => Err(error),
            }
        };
        let late = || Err(NoAnswer(format!("no answer within {} s", timeout.as_secs())));
        tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| late())
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let uri = Uri::try_from(format!("{}{path}", self.service))?;
        let has_body = method != Method::GET;
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header(HOST, self.headers.host.clone())
            .header(AUTHORIZATION, self.headers.authorization.clone())
            .header(USER_AGENT, self.headers.user_agent.clone());
        if has_body {
            // Content-Length too: hyper leaves it out if it is 0, and some proxies require it.
            request = request
                .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
                .header(CONTENT_LENGTH, body.len());
        }
        request.body(Full::new(body))
    }
}

/// Reads an answer, as far as it is of a sensible size.
async fn read<B: Body<Error = hyper::Error>>(response: Response<B>) -> Result<Bytes, NoAnswer> {
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    Ok(body.map_err(|error| NoAnswer(error.to_string()))?.to_bytes())
}

/// An error with what caused it, as the outermost alone often says nothing. Some repeat their
/// cause: once is enough.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// Makes connections to the service.
#[derive(Clone)]
struct Connector {
    service: Service,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Connector {
    fn new(service: Service) -> Result<Self, String> {
        if !service.tls {
            return Ok(Self { service, tls: None });
        }
        let name = ServerName::try_from(service.host.clone())
            .map_err(|_| format!("{} is no host", service.host))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots())
            .with_no_client_auth();
        Ok(Self { service, tls: Some((TlsConnector::from(Arc::new(config)), name)) })
    }

    async fn connect(&self) -> io::Result<Stream> {
        let connect = async {
            let Service { host, port, .. } = &self.service;
            let tcp = if self.service.is_local_name() {
                TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).await?
            } else {
                TcpStream::connect((host.as_str(), *port)).await?
            };
            tcp.set_nodelay(true)?;
            // A peer that vanished is noticed within two minutes, and not only when the WebSocket
            // was silent for long.
            let keepalive = socket2::TcpKeepalive::new()
                .with_time(Duration::from_secs(60))
                .with_interval(Duration::from_secs(20))
                .with_retries(3);
            socket2::SockRef::from(&tcp).set_tcp_keepalive(&keepalive)?;
            Ok(match &self.tls {
                Some((tls, name)) => Stream::Tls(Box::new(tls.connect(name.clone(), tcp).await?)),
                None => Stream::Plain(tcp),
            })
        };
        let late = || Err(io::Error::new(io::ErrorKind::TimedOut, "no connection in time"));
        tokio::time::timeout(CONNECT_TIMEOUT, connect).await.unwrap_or_else(|_| late())
    }
}

/// The certificates that the host trusts, or the usual ones if it has none.
fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        log::warn!("certificates of this host: {error}");
    }
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        log::info!("this host has no root certificates: the agent's own are used");
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        // Each call is to the same host, so the address is not looked at.
        let connector = self.clone();
        Box::pin(async move { Ok(TokioIo::new(connector.connect().await?)) })
    }
}

/// A connection to the service.
pub enum Stream {
    /// http and ws.
    Plain(TcpStream),
    /// https and wss.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
