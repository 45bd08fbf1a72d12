//! SMTP over the sockets of the runtime. [`farhand_domain::mail::smtp`] decides each step. This file does
//! the input and output. The runtime provides TLS, and checks the certificate against the host
//! name.

use farhand_domain::mail::message::MailFailure;
use farhand_domain::mail::smtp::{MailWithEnvelope, Security, SmtpServer, SmtpSession, SmtpStep};
use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use worker::{Delay, SecureTransport, Socket};

use super::before_timeout;

/// Delivers a mail to an SMTP server.
///
/// # Errors
/// The server refused the mail, the connection failed, or the time ran out.
pub async fn deliver(
    server: SmtpServer,
    mail: MailWithEnvelope,
    timeout: &mut Delay,
) -> Result<(), MailFailure> {
    let transport = match server.security {
        Security::StartTls => SecureTransport::StartTls,
        Security::Tls => SecureTransport::On,
    };
    let socket = Socket::builder().secure_transport(transport).connect(server.host, server.port);
    let mut session = SmtpSession::new(server.security, server.login, mail);
    let mut socket = socket.map_err(|error| session.broken(&error.to_string()))?;
    let mut first = String::new();
    let outcome = loop {
        match before_timeout(timeout, converse(&mut socket, &mut session, &first)).await {
            Ok(Pause::StartTls(then)) => {
                socket = socket.start_tls();
                first = then;
            }
            Ok(Pause::Delivered) => break Ok(()),
            Err(failure) => break Err(failure),
        }
    };
    // The outcome is known. Both calls are started but not awaited: if the server is silent, they
    // never complete.
    if outcome.is_ok() {
        socket.write_all(b"QUIT\r\n").now_or_never();
    }
    socket.close().now_or_never();
    outcome
}

/// The reason why the conversation stops.
enum Pause {
    /// Start TLS, and then send this text.
    StartTls(String),
    /// The server accepted the mail.
    Delivered,
}

/// Talks to the server until it accepts the mail or TLS has to start. Sends `first` first.
async fn converse(
    socket: &mut Socket,
    session: &mut SmtpSession,
    first: &str,
) -> Result<Pause, MailFailure> {
    let mut buffer = [0; 1024];
    let mut output = first.to_owned();
    loop {
        let done = async {
            socket.write_all(output.as_bytes()).await?;
            socket.read(&mut buffer).await
        };
        // Errors here include an untrusted certificate.
        let length = done.await.map_err(|error| session.broken(&error.to_string()))?;
        output = match session.receive(&buffer[..length])? {
            SmtpStep::Read => String::new(),
            SmtpStep::Send(text) => text,
            SmtpStep::StartTls(then) => return Ok(Pause::StartTls(then)),
            SmtpStep::Delivered => return Ok(Pause::Delivered),
        };
    }
}
