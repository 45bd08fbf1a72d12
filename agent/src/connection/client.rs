//! HTTP calls to the service, and the connector that every connection uses
//! (agent-protocol 1 and 4).
//!
//! The client follows no redirects, stores no cookies and uses no proxies. It connects only to the
//! host of the configuration.

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

/// The time limit for a response.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for a new connection, including TLS.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of a response body, in bytes.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;
/// The maximum size of a downloaded file, in bytes.
const MAX_FILE_BYTES: usize = 64 * 1024 * 1024;
/// How long an unused connection is kept. Servers and proxies usually keep connections longer, so a
/// call rarely uses a connection that the other side is closing.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// The reason why a call got no response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoResponse(pub String);

/// The status of the response, or the reason why there was no response.
pub type Outcome = Result<u16, NoResponse>;

/// Calls the service with one credential. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    service: Service,
    headers: Headers,
    pool: Pool<Connector, Full<Bytes>>,
    connector: Connector,
}

/// The headers of each call and each WebSocket handshake.
#[derive(Clone)]
pub struct Headers {
    /// The credential, marked as sensitive so that it is not logged.
    pub authorization: HeaderValue,
    /// The agent's name and version.
    pub user_agent: HeaderValue,
    /// The service's host and port from the configuration.
    pub host: HeaderValue,
}

impl Client {
    /// Creates a client with the server's id and key from `settings`.
    ///
    /// # Errors
    /// The reason why the settings cannot be used, in one line.
    pub fn new(settings: &Settings) -> Result<Self, String> {
        Self::for_server(&settings.service, settings.id, &settings.key)
    }

    /// Creates a client with the id and key of a server.
    ///
    /// # Errors
    /// The reason why the id or the key cannot be used, in one line.
    pub fn for_server(service: &Service, id: Uuid, key: &Secret) -> Result<Self, String> {
        Self::with_credential(service.clone(), format!("id=\"{id}\", key=\"{}\"", key.expose()))
    }

    /// Creates a client with a registration token.
    ///
    /// # Errors
    /// The reason why the token cannot be used, in one line.
    pub fn for_token(service: &Service, token: &Secret) -> Result<Self, String> {
        Self::with_credential(service.clone(), format!("token=\"{}\"", token.expose()))
    }

    fn with_credential(service: Service, credential: String) -> Result<Self, String> {
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
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(4)
            .build(connector.clone());
        Ok(Self { service, headers, pool, connector })
    }

    pub fn service(&self) -> &Service {
        &self.service
    }

    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Opens a new connection, for a WebSocket.
    ///
    /// # Errors
    /// The connection failed, or took longer than [`CONNECT_TIMEOUT`].
    pub async fn connect(&self) -> io::Result<Stream> {
        self.connector.connect().await
    }

    /// Calls the service and returns the status only. `timeout` covers the whole call.
    ///
    /// # Errors
    /// There was no response in time.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Outcome {
        self.call(method, path, body, timeout, BodyUse::Ignored).await.map(|(status, _)| status)
    }

    /// Gets JSON from the service. Returns null as the value if the response is not JSON.
    ///
    /// # Errors
    /// There was no response in time.
    pub async fn get(&self, path: &str) -> Result<(u16, Value), NoResponse> {
        self.call_json(Method::GET, path, Bytes::new(), RESPONSE_TIMEOUT).await
    }

    /// Calls the service and returns the response as JSON, like [`get`](Self::get). `timeout`
    /// covers the whole call.
    ///
    /// # Errors
    /// There was no response in time.
    pub async fn call_json(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<(u16, Value), NoResponse> {
        let needed = BodyUse::Needed { max: MAX_RESPONSE_BYTES };
        let (status, body) = self.call(method, path, body, timeout, needed).await?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    /// Gets a file of at most [`MAX_FILE_BYTES`]. `timeout` covers the whole download.
    ///
    /// # Errors
    /// The file did not arrive in time, or is too large.
    pub async fn download(
        &self,
        path: &str,
        timeout: Duration,
    ) -> Result<(u16, Bytes), NoResponse> {
        let needed = BodyUse::Needed { max: MAX_FILE_BYTES };
        self.call(Method::GET, path, Bytes::new(), timeout, needed).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        timeout: Duration,
        body_use: BodyUse,
    ) -> Result<(u16, Bytes), NoResponse> {
        let request = self
            .build_request(method, path, body)
            .map_err(|error| NoResponse(error.to_string()))?;
        let call = async {
            let response =
                self.pool.request(request).await.map_err(|error| NoResponse(causes(&error)))?;
            let status = response.status().as_u16();
            // Always reads the whole body, because otherwise the connection could not be used
            // again.
            match body_use {
                BodyUse::Needed { max } => Ok((status, read_body(response, max).await?)),
                BodyUse::Ignored => {
                    let _ = read_body(response, MAX_RESPONSE_BYTES).await;
                    Ok((status, Bytes::new()))
                }
            }
        };
        let late = || Err(NoResponse(format!("no response within {} s", timeout.as_secs())));
        tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| late())
    }

    fn build_request(
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
            // Content-Length is set here because hyper omits it if it is 0, and some proxies
            // require it.
            request = request
                .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
                .header(CONTENT_LENGTH, body.len());
        }
        request.body(Full::new(body))
    }
}

/// What a call does with the body of the response.
#[derive(Clone, Copy)]
enum BodyUse {
    /// Nothing. If the body cannot be read, the call succeeds.
    Ignored,
    /// Returns it. A body of more than `max` bytes is an error.
    Needed { max: usize },
}

/// Reads a body of at most `max` bytes.
async fn read_body<B: Body<Error = hyper::Error>>(
    response: Response<B>,
    max: usize,
) -> Result<Bytes, NoResponse> {
    let body = Limited::new(response.into_body(), max).collect().await;
    Ok(body.map_err(|error| NoResponse(error.to_string()))?.to_bytes())
}

/// The text of an error and its causes, because the outermost error alone often says little. A
/// cause that the text already contains is not repeated.
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

/// Opens connections to the service.
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
            .map_err(|_| format!("{} is not a valid host name", service.host))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(root_certificates())
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
            // Keepalive detects within two minutes that the other side has vanished. Without it,
            // the agent would notice only after a long silence on the WebSocket.
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

/// The root certificates of the host, or if the host has none, the agent's built-in certificates.
fn root_certificates() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        log::warn!("certificates of this host: {error}");
    }
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        log::info!("this host has no root certificates: the agent uses its built-in ones");
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
        // Ignores the URI, because all calls go to the same host.
        let connector = self.clone();
        Box::pin(async move { Ok(TokioIo::new(connector.connect().await?)) })
    }
}

/// A connection to the service.
pub enum Stream {
    /// http or ws.
    Plain(TcpStream),
    /// https or wss.
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
