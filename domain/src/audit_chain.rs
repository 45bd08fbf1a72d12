//! The chain of hashes that shows whether audit events were changed, taken away or put in between
//! afterwards (`docs/audit.md`).
//!
//! Each sealed event is a *link*: it has a number, from 1 on in its workspace, and the SHA-256 of
//! the hash before it, that number, the type of its actor and the digest of all of its columns.
//! Whoever changes one must compute all later hashes again; and the hash of the latest is kept
//! elsewhere.
//!
//! Old anonymous events are deleted from the middle of the chain. Their digest stays, so the chain
//! can still be verified, and the type of the actor in the hash proves that the deleted event was
//! an anonymous one.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::output::hex;
use crate::time::Timestamp;

/// A link as it is stored, in the order of the database's `json_array`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The number in the chain. Events are numbered in the order in which they were written.
    pub link: i64,
    /// The hash, in hexadecimal; `None` until it is sealed.
    pub hash: Option<String>,
    /// What the hash is of.
    pub content: Content,
}

/// An event's columns, as texts.
pub type Columns = [Option<String>; COLUMNS.len()];

/// What a link holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// An event.
    Event(Box<Columns>),
    /// The digest of an anonymous event that was deleted because of its age.
    Expired(String),
}

/// The columns that a digest covers, in its order.
pub const COLUMNS: [&str; 15] = [
    "id",
    "occurred_at",
    "actor_type",
    "actor_id",
    "actor_name",
    "credential_type",
    "credential_id",
    "action",
    "object_type",
    "object_id",
    "object_name",
    "outcome",
    "remote_ip",
    "request_id",
    "details",
];

/// The type of the actor of an anonymous event, as it is stored.
const ANONYMOUS: &str = "anonymous";

impl Row {
    /// An event's column.
    fn column(&self, place: usize) -> Option<&str> {
        match &self.content {
            Content::Event(columns) => columns.get(place)?.as_deref(),
            Content::Expired(_) => None,
        }
    }

    /// The event's id.
    pub fn id(&self) -> Option<&str> {
        self.column(0)
    }

    /// When it happened.
    pub fn occurred_at(&self) -> Option<Timestamp> {
        self.column(1).and_then(|time| Timestamp::parse(time).ok())
    }

    /// Whether the event was deleted because of its age.
    pub fn is_expired(&self) -> bool {
        matches!(self.content, Content::Expired(_))
    }

    /// The digest of the event.
    pub fn digest(&self) -> String {
        match &self.content {
            Content::Event(columns) => digest(columns),
            Content::Expired(digest) => digest.clone(),
        }
    }

    /// The hash that the link should have, behind another hash.
    fn hash(&self, workspace: i64, before: &str) -> String {
        let actor = if self.is_expired() { Some(ANONYMOUS) } else { self.column(2) };
        hash(workspace, before, self.link, actor, &self.digest())
    }
}

/// Where a chain is: its last link. The hash of number 0 is empty.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Head {
    /// The number of links.
    pub link: i64,
    /// The hash of the last one.
    pub hash: String,
}

/// What is hashed, so that no two different inputs make the same bytes: each text with its length
/// before it, and a missing one told apart from an empty one.
struct Encoder(Sha256);

impl Encoder {
    fn number(&mut self, number: i64) {
        self.0.update(number.to_be_bytes());
    }

    fn text(&mut self, text: Option<&str>) {
        self.0.update([u8::from(text.is_some())]);
        let text = text.unwrap_or_default();
        self.number(text.len() as i64);
        self.0.update(text.as_bytes());
    }

    /// The hash in hexadecimal.
    fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}

/// The digest of an event.
pub fn digest(columns: &Columns) -> String {
    let mut encoder = Encoder(Sha256::new());
    encoder.text(Some("farhand audit event 1"));
    for column in columns {
        encoder.text(column.as_deref());
    }
    encoder.finish()
}

/// The hash of a link: of its workspace, the hash before it, its number, the type of its event's
/// actor and the event's digest.
pub fn hash(workspace: i64, before: &str, link: i64, actor: Option<&str>, digest: &str) -> String {
    let mut encoder = Encoder(Sha256::new());
    encoder.text(Some("farhand audit link 2"));
    encoder.text(Some(&workspace.to_string()));
    encoder.text(Some(before));
    encoder.number(link);
    encoder.text(actor);
    encoder.text(Some(digest));
    encoder.finish()
}

/// The seals of some links that follow each other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seals {
    /// The number of the first link.
    pub first: i64,
    /// The number of the last link.
    pub last: i64,
    /// The earliest time of an event.
    pub earliest: String,
    /// The latest time of an event.
    pub latest: String,
    /// The hash of each link, [`HASH`] characters each.
    pub hashes: String,
}

/// The length of a hash in hexadecimal.
pub const HASH: usize = 64;

impl Seals {
    /// The hash of a link.
    pub fn hash(&self, link: i64) -> Option<&str> {
        let at = usize::try_from(link.checked_sub(self.first)?).ok()?.checked_mul(HASH)?;
        self.hashes.get(at..at + HASH)
    }
}

/// Puts rows at the end of a chain, in their order, up to the first number that is missing between
/// them. `None` if there are no rows.
pub fn seal(workspace: i64, head: &Head, rows: &[Row]) -> Option<(Seals, Head)> {
    let (first, mut head, mut hashes) = (rows.first()?.link, head.clone(), String::new());
    let mut times = Vec::new();
    for (row, link) in rows.iter().zip(first..).take_while(|(row, link)| row.link == *link) {
        head = Head { link, hash: row.hash(workspace, &head.hash) };
        hashes += &head.hash;
        times.extend(row.column(1));
    }
    let time = |time: Option<&&str>| time.copied().unwrap_or_default().to_owned();
    let (earliest, latest) = (time(times.iter().min()), time(times.iter().max()));
    Some((Seals { first, last: head.link, earliest, latest, hashes }, head))
}

/// What is wrong with a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Problem {
    /// There is no event with that number.
    Missing,
    /// The event is not what was sealed.
    Altered,
    /// An event has a number that another one has, or that was not given to any.
    Foreign,
    /// The events up to this one fit together, but are not those that were sealed.
    Rewritten,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "missing",
            Self::Altered => "altered",
            Self::Foreign => "foreign",
            Self::Rewritten => "rewritten",
        })
    }
}

/// The first link that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Broken {
    /// Its number.
    pub link: i64,
    /// The event that stands there, if there is one.
    pub event: Option<String>,
    /// What is wrong.
    pub problem: Problem,
}

/// Looks along a chain, link by link.
#[derive(Clone, Debug)]
pub struct Verifier {
    workspace: i64,
    last: Head,
    expired: i64,
}

impl Verifier {
    /// Begins behind a link.
    pub fn after(workspace: i64, last: Head) -> Self {
        Self { workspace, last, expired: 0 }
    }

    /// The same, which accepts that anonymous events up to a link were deleted because of their
    /// age.
    pub fn expired_up_to(self, link: i64) -> Self {
        Self { expired: link, ..self }
    }

    /// The last link that was found good.
    pub fn last(&self) -> &Head {
        &self.last
    }

    /// There is no next link, though there should be.
    pub fn missing(&self) -> Broken {
        Broken { link: self.last.link + 1, event: None, problem: Problem::Missing }
    }

    /// Looks at the row with the next higher number, or the same one again. `anchor` is the hash
    /// that is kept elsewhere of that link, if there is one.
    ///
    /// # Errors
    /// It is not the next link of the chain.
    pub fn take(&mut self, row: &Row, anchor: Option<&str>) -> Result<(), Broken> {
        let (expected, link) = (self.last.link + 1, row.link);
        let event = row.id().map(str::to_owned);
        let broken = |problem| Err(Broken { link, event, problem });
        if link > expected {
            return Err(self.missing());
        }
        if link < expected {
            return broken(Problem::Foreign);
        }
        if row.is_expired() && link > self.expired {
            return Err(self.missing());
        }
        let hash = row.hash(self.workspace, &self.last.hash);
        if row.hash.as_deref() != Some(hash.as_str()) {
            return broken(Problem::Altered);
        }
        if anchor.is_some_and(|anchor| anchor != hash) {
            return broken(Problem::Rewritten);
        }
        self.last = Head { link, hash };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORKSPACE: i64 = 7;

    fn columns() -> impl Strategy<Value = Columns> {
        proptest::array::uniform15(proptest::option::of("[ab\"\\\\\0,]{0,3}"))
    }

    fn rows(most: usize) -> impl Strategy<Value = Vec<Row>> {
        proptest::collection::vec(columns(), 1..=most).prop_map(|all| {
            let row = |(link, columns)| Row {
                link,
                hash: None,
                content: Content::Event(Box::new(columns)),
            };
            (1..).zip(all).map(row).collect()
        })
    }

    /// Seals rows as they would be stored.
    fn sealed(rows: Vec<Row>) -> (Vec<Row>, Head) {
        let (seals, head) = seal(WORKSPACE, &Head::default(), &rows).unwrap();
        (with_hashes(rows, &seals), head)
    }

    fn with_hashes(mut rows: Vec<Row>, seals: &Seals) -> Vec<Row> {
        for row in &mut rows {
            row.hash = seals.hash(row.link).map(str::to_owned);
        }
        rows
    }

    /// Looks along rows as they are read: by their numbers.
    fn verify(rows: &[Row], head: &Head) -> Result<(), Broken> {
        verify_expired(rows, head, 0)
    }

    /// The same when anonymous events up to a link may be expired.
    fn verify_expired(rows: &[Row], head: &Head, expired: i64) -> Result<(), Broken> {
        let mut rows = rows.to_vec();
        rows.sort_by_key(|row| row.link);
        let mut verifier = Verifier::after(WORKSPACE, Head::default()).expired_up_to(expired);
        for row in &rows {
            let anchor = (row.link == head.link).then_some(head.hash.as_str());
            if verifier.last().link == head.link {
                return Err(Broken { link: row.link, event: None, problem: Problem::Foreign });
            }
            verifier.take(row, anchor)?;
        }
        if verifier.last().link < head.link { Err(verifier.missing()) } else { Ok(()) }
    }

    proptest! {
        #[test]
        fn a_chain_is_good_whatever_is_in_it(rows in rows(12), cut in 0_usize..12) {
            let (whole, head) = sealed(rows.clone());
            prop_assert_eq!(verify(&whole, &head), Ok(()));
            // Sealed in two goes it is the same.
            let (first, rest) = rows.split_at(cut.min(rows.len()));
            let (mut hashes, mut end) = (String::new(), Head::default());
            for part in [first, rest] {
                let Some((seals, next)) = seal(WORKSPACE, &end, part) else { continue };
                prop_assert_eq!((seals.first, seals.last), (end.link + 1, next.link));
                hashes += &seals.hashes;
                end = next;
            }
            prop_assert_eq!(&end, &head);
            prop_assert_eq!(hashes, whole.iter().filter_map(|row| row.hash.clone()).collect::<String>());
        }

        #[test]
        fn a_seal_has_the_hashes_of_its_links_and_bounds_their_times(rows in rows(12), first in 2_i64..5, gap in 1_usize..12) {
            let mut rows = rows;
            for (row, link) in rows.iter_mut().zip(first..) {
                row.link = link + i64::from(link - first >= gap as i64);
            }
            let sealed = gap.min(rows.len());
            let (seals, head) = seal(WORKSPACE, &Head::default(), &rows).unwrap();
            let last = first + sealed as i64 - 1;
            prop_assert_eq!((seals.first, seals.last, head.link), (first, last, last));
            prop_assert_eq!(seals.hashes.len(), HASH * sealed);
            prop_assert_eq!(seals.hash(last), Some(head.hash.as_str()));
            for link in [first - 1, last + 1, i64::MIN, i64::MAX] {
                prop_assert_eq!(seals.hash(link), None);
            }
            for time in rows[..sealed].iter().filter_map(|row| row.column(1)) {
                prop_assert!(*seals.earliest <= *time && *time <= *seals.latest);
            }
            prop_assert_eq!(seal(WORKSPACE, &head, &[]), None);
        }

        #[test]
        fn different_columns_have_different_hashes(one in columns(), other in columns()) {
            prop_assert_eq!(one == other, digest(&one) == digest(&other));
        }

        #[test]
        fn an_anonymous_event_expires_and_no_other_does(rows in rows(12), at in 0_usize..12, cursor in 0_i64..14) {
            let mut rows = rows;
            let at = at % rows.len();
            let (link, is_anonymous) = (at as i64 + 1, at % 2 == 0);
            let Content::Event(columns) = &mut rows[at].content else { unreachable!() };
            columns[2] = Some(if is_anonymous { ANONYMOUS } else { "user" }.to_owned());
            let (mut rows, head) = sealed(rows);
            rows[at].content = Content::Expired(rows[at].digest());
            let problem = match verify_expired(&rows, &head, cursor) {
                Ok(()) => None,
                Err(broken) => {
                    prop_assert_eq!((broken.link, broken.event), (link, None));
                    Some(broken.problem)
                }
            };
            let expected = match (link <= cursor, is_anonymous) {
                (false, _) => Some(Problem::Missing),
                (true, false) => Some(Problem::Altered),
                (true, true) => None,
            };
            prop_assert_eq!(problem, expected);
            // Another digest does not fit.
            rows[at].content = Content::Expired("0".repeat(64));
            prop_assert!(verify_expired(&rows, &head, 100).is_err());
            // Nor does nothing at all.
            rows.remove(at);
            let missing = Broken { link, event: None, problem: Problem::Missing };
            prop_assert_eq!(verify_expired(&rows, &head, 100), Err(missing));
        }

        #[test]
        fn what_was_changed_is_named(rows in rows(12), at in 0_usize..12, column in 0..COLUMNS.len(), text in proptest::option::of("[a-c]{0,2}")) {
            let (mut rows, head) = sealed(rows);
            let at = at % rows.len();
            let Content::Event(columns) = &mut rows[at].content else { unreachable!() };
            prop_assume!(columns[column] != text);
            columns[column] = text;
            let broken = verify(&rows, &head).unwrap_err();
            prop_assert_eq!((broken.link, broken.problem), (at as i64 + 1, Problem::Altered));
        }

        #[test]
        fn what_was_taken_away_is_named(rows in rows(12), at in 0_usize..12) {
            let (mut rows, head) = sealed(rows);
            let at = at % rows.len();
            rows.remove(at);
            let expected = Broken { link: at as i64 + 1, event: None, problem: Problem::Missing };
            prop_assert_eq!(verify(&rows, &head), Err(expected));
        }

        #[test]
        fn what_changed_places_is_found(rows in rows(12), one in 0_usize..12, other in 0_usize..12) {
            let (mut rows, head) = sealed(rows);
            let (one, other) = (one % rows.len(), other % rows.len());
            prop_assume!(rows[one].content != rows[other].content);
            let content = rows[one].content.clone();
            rows[one].content = std::mem::replace(&mut rows[other].content, content);
            let broken = verify(&rows, &head).unwrap_err();
            prop_assert_eq!((broken.link, broken.problem), (one.min(other) as i64 + 1, Problem::Altered));
        }

        #[test]
        fn what_was_put_in_is_found(rows in rows(12), stranger in columns(), at in 1_i64..14, moves_others in proptest::bool::ANY) {
            let (mut rows, head) = sealed(rows);
            let at = at.min(head.link + 1);
            let before = usize::try_from(at - 2).ok().and_then(|place| rows[place].hash.clone()).unwrap_or_default();
            let mut stranger = Row { link: at, hash: None, content: Content::Event(Box::new(stranger)) };
            stranger.hash = Some(stranger.hash(WORKSPACE, &before));
            if moves_others {
                rows.iter_mut().filter(|row| row.link >= at).for_each(|row| row.link += 1);
            }
            prop_assume!(rows.iter().all(|row| row.content != stranger.content));
            rows.push(stranger);
            prop_assert!(verify(&rows, &head).is_err());
        }

        #[test]
        fn a_hash_that_was_changed_or_taken_away_is_named(rows in rows(12), at in 0_usize..12, hash in proptest::option::of("[0-9a-f]{64}")) {
            let (mut rows, head) = sealed(rows);
            let at = at % rows.len();
            prop_assume!(rows[at].hash != hash);
            rows[at].hash = hash;
            let broken = verify(&rows, &head).unwrap_err();
            prop_assert_eq!((broken.link, broken.problem), (at as i64 + 1, Problem::Altered));
        }

        #[test]
        fn what_was_written_anew_is_found(rows in rows(12), at in 0_usize..12) {
            let (whole, head) = sealed(rows.clone());
            let mut rows = rows;
            let at = at % rows.len();
            let Content::Event(columns) = &mut rows[at].content else { unreachable!() };
            columns[0] = Some("another".to_owned());
            let (forged, _) = sealed(rows);
            let broken = verify(&forged, &head).unwrap_err();
            prop_assert_eq!((broken.link, broken.problem), (whole.len() as i64, Problem::Rewritten));
        }
    }

    #[test]
    fn a_hash_is_what_the_documentation_says() {
        let mut columns: Columns = Default::default();
        columns[0] = Some("x".to_owned());
        columns[2] = Some("user".to_owned());
        // Put together by hand: a flag and a length before each text.
        let text = |bytes: &mut Vec<u8>, text: Option<&str>| {
            bytes.push(u8::from(text.is_some()));
            bytes.extend((text.unwrap_or("").len() as u64).to_be_bytes());
            bytes.extend(text.unwrap_or("").bytes());
        };
        let hex = |bytes: &[u8]| {
            Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let mut event = Vec::new();
        text(&mut event, Some("farhand audit event 1"));
        columns.iter().for_each(|column| text(&mut event, column.as_deref()));
        let digest_of_event = digest(&columns);
        assert_eq!(digest_of_event, hex(&event));
        let mut link = Vec::new();
        text(&mut link, Some("farhand audit link 2"));
        text(&mut link, Some("7"));
        text(&mut link, Some("before"));
        link.extend(3_i64.to_be_bytes());
        text(&mut link, Some("user"));
        text(&mut link, Some(&digest_of_event));
        let row = Row { link: 3, hash: None, content: Content::Event(Box::new(columns)) };
        let expected = row.hash(7, "before");
        assert_eq!(expected, hex(&link));
        assert_ne!(row.hash(8, "before"), expected);
        assert_ne!(Row { link: 4, ..row.clone() }.hash(7, "before"), expected);
        assert_ne!(row.hash(7, ""), expected);
    }
}
