//! SMTP over the platform's sockets: carries out what [`farhand_domain::smtp`] decides. The runtime
//! does the TLS, and checks the certificate against the host's name.

use farhand_domain::mail::Failure;
use farhand_domain::smtp::{Mail, Next, Security, Server, Session};
use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use worker::{Delay, SecureTransport, Socket};

use super::in_time;

/// Hands a mail over.
///
/// # Errors
/// The server did not take it, or did not say so in time.
pub async fn deliver(server: Server, mail: Mail, too_late: &mut Delay) -> Result<(), Failure> {
    let transport = match server.security {
        Security::StartTls => SecureTransport::StartTls,
        Security::Tls => SecureTransport::On,
    };
    let socket = Socket::builder().secure_transport(transport).connect(server.host, server.port);
    let mut session = Session::new(server.security, server.login, mail);
    let mut socket = socket.map_err(|error| session.broken(&error.to_string()))?;
    let mut first = String::new();
    let outcome = loop {
        match in_time(too_late, talk(&mut socket, &mut session, &first)).await {
            Ok(Pause::StartTls(then)) => {
                socket = socket.start_tls();
                first = then;
            }
            Ok(Pause::Delivered) => break Ok(()),
            Err(failure) => break Err(failure),
        }
    };
    // What becomes of these two changes nothing any more, and a server that is silent would never
    // let them end.
    if outcome.is_ok() {
        socket.write_all(b"QUIT\r\n").now_or_never();
    }
    socket.close().now_or_never();
    outcome
}

/// Where the talk stops.
enum Pause {
    /// TLS is to begin, and this to be sent then.
    StartTls(String),
    /// The server has taken the mail.
    Delivered,
}

async fn talk(socket: &mut Socket, session: &mut Session, first: &str) -> Result<Pause, Failure> {
    let mut buffer = [0; 1024];
    let mut said = first.to_owned();
    loop {
        let done = async {
            socket.write_all(said.as_bytes()).await?;
            socket.read(&mut buffer).await
        };
        // A certificate that is not trusted is such an error too.
        let length = done.await.map_err(|error| session.broken(&error.to_string()))?;
        said = match session.receive(&buffer[..length])? {
            Next::Read => String::new(),
            Next::Send(text) => text,
            Next::StartTls(then) => return Ok(Pause::StartTls(then)),
            Next::Delivered => return Ok(Pause::Delivered),
        };
    }
}
