//! Request bodies: reads the input as the body of each endpoint.

use farhand_domain::access::api_token::{NewToken, TokenChanges, TokenReplacement};
use farhand_domain::batch::request::{NewBatch, TargetSelection};
use farhand_domain::command::request::MAX_TARGETS;
use farhand_domain::command::request::{MAX_LINE, NewCommand};
use farhand_domain::error::{Error, ErrorKind};
use farhand_domain::http::fields::Fields;
use farhand_domain::people::group::{GroupChanges, MembershipChange, NewMembership};
use farhand_domain::access::registration_token::{NewRegistrationToken, Registration};
use farhand_domain::fleet::server::ServerChanges;
use farhand_domain::time::Timestamp;
use farhand_domain::people::user::{UserChanges, read_new_user};
use serde_json::Value;

pub fn check(data: &[u8]) {
    let is_object = serde_json::from_slice::<Value>(data).is_ok_and(|value| value.is_object());
    let is_blank = data.iter().all(u8::is_ascii_whitespace);
    let fields = Fields::from_json(data);
    assert_eq!(fields.is_ok(), is_object || is_blank);
    let Some(fields) = read_or_reject(fields) else { return };
    let canonical = fields.canonical();
    let again = Fields::from_json(canonical.expose().as_bytes()).expect("it is the JSON of an object");
    assert_eq!(again.canonical().expose(), canonical.expose());

    let read = || Fields::from_json(data).expect("it was read before");
    let now = Timestamp::from_millis(1_795_224_225_000);
    if let Some(command) = read_or_reject(NewCommand::read(read(), now, 400)) {
        let length = command.spec.line.chars().count();
        assert!((1..=MAX_LINE).contains(&length) && !command.spec.line.contains('\0'));
        assert!((1..=86_400).contains(&command.spec.timeout));
        assert!(command.expires_at.is_none_or(|expires| expires > now));
        assert!(command.spec.username.is_none_or(|name| !name.trim().is_empty() && !name.starts_with('-')));
    }
    if let Some(batch) = read_or_reject(NewBatch::read(read(), now, 400)) {
        assert!((1..=MAX_TARGETS as u32).contains(&batch.spec.max_concurrency.rounded_up(MAX_TARGETS)));
        let stored = serde_json::to_string(&batch.spec.targets).expect("a selection is JSON");
        assert_eq!(serde_json::from_str::<TargetSelection>(&stored).expect("can be read"), batch.spec.targets);
    }
    if let Some(token) = read_or_reject(NewToken::read(read(), now)) {
        assert!((1..=128).contains(&token.name.chars().count()));
        assert!(token.expires_at.is_none_or(|expires| expires > now));
        if let Some(acl) = token.acl {
            let stored = serde_json::to_string(&acl).expect("a list is JSON");
            assert_eq!(serde_json::from_str::<farhand_domain::access::acl::Acl>(&stored).expect("can be read"), acl);
        }
    }
    read_or_reject(TokenReplacement::read(read(), now));
    read_or_reject(TokenChanges::read(read(), now));
    read_or_reject(read_new_user(read()));
    read_or_reject(UserChanges::read(read()));
    read_or_reject(UserChanges::read_all(read()));
    read_or_reject(GroupChanges::read(read()));
    read_or_reject(GroupChanges::read_all(read()));
    read_or_reject(NewMembership::read(read()));
    read_or_reject(MembershipChange::read(read()));
    read_or_reject(MembershipChange::read_all(read()));
    read_or_reject(ServerChanges::read(read()));
    read_or_reject(ServerChanges::read_all(read()));
    read_or_reject(NewRegistrationToken::read(read(), now));
    if let Some(registration) = read_or_reject(Registration::read(read())) {
        assert!((1..=64).contains(&registration.name.len()) && registration.name.is_ascii());
    }
}

/// Returns the value. An error must have messages by field.
fn read_or_reject<T>(result: Result<T, Error>) -> Option<T> {
    let error = match result {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    assert_eq!(error.kind, ErrorKind::Invalid, "{error:?}");
    assert!(!error.fields.is_empty());
    assert!(error.fields.values().flatten().all(|message| !message.is_empty()), "{error:?}");
    None
}
