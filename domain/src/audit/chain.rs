//! The audit chain: a chain of hashes that shows whether stored audit events were changed, deleted
//! or inserted (`docs/audit.md`).
//!
//! Each sealed event is a chain entry. The entries of a workspace are numbered from 1, and each has
//! a SHA-256 hash. The hash covers the hash of the previous entry, the number, the type of the
//! actor, and a digest of all columns of the event. To hide a change of one event, an attacker must
//! compute all later hashes again. The last hash is also stored elsewhere, so even that is
//! detected.
//!
//! Retention deletes old anonymous events from the middle of the chain. It keeps their digests, so
//! the chain can still be verified. The hash covers the type of the actor, which proves that a
//! deleted event was anonymous.
//!
//! In column and field names a chain entry is called `link`.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::hash::hex;
use crate::time::Timestamp;

/// A chain entry. D1 returns it as a JSON array with the fields in this order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChainEntry {
    /// The number of the entry. Events are numbered in the order in which D1 stored them.
    pub link: i64,
    /// The hash in hexadecimal; `None`: the event is not sealed yet.
    pub hash: Option<String>,
    /// The event, or its digest.
    pub content: Content,
}

/// An event's columns, as texts.
pub type Columns = [Option<String>; COLUMNS.len()];

/// The content of a chain entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// An event.
    Event(Box<Columns>),
    /// The digest of an anonymous event that retention deleted.
    Expired(String),
}

/// The columns that a digest covers, in this order.
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

/// The stored `actor_type` of an anonymous event.
const ANONYMOUS: &str = "anonymous";

impl ChainEntry {
    /// The column of the event at an index of [`COLUMNS`].
    fn column(&self, index: usize) -> Option<&str> {
        match &self.content {
            Content::Event(columns) => columns.get(index)?.as_deref(),
            Content::Expired(_) => None,
        }
    }

    /// The event's id.
    pub fn id(&self) -> Option<&str> {
        self.column(0)
    }

    /// When the event happened.
    pub fn occurred_at(&self) -> Option<Timestamp> {
        self.column(1).and_then(|time| Timestamp::parse(time).ok())
    }

    /// Whether retention deleted the event.
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

    /// The correct hash of the entry. `before` is the hash of the previous entry.
    fn hash(&self, workspace: i64, before: &str) -> String {
        let actor = if self.is_expired() { Some(ANONYMOUS) } else { self.column(2) };
        hash(workspace, before, self.link, actor, &self.digest())
    }
}

/// The last entry of a chain. An empty chain ends at entry 0, with an empty hash.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ChainEnd {
    /// The number of the entry, which is the number of entries.
    pub link: i64,
    /// The hash of the entry.
    pub hash: String,
}

/// Encodes the input of a hash. Different inputs have different bytes: the length precedes each
/// text, and a flag distinguishes a missing text from an empty text.
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

/// The hash of a chain entry. It covers the workspace, the hash of the previous entry, the number,
/// the type of the actor and the digest of the event.
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

/// The hashes of consecutive chain entries: a row in D1.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seals {
    /// The number of the first entry.
    pub first: i64,
    /// The number of the last entry.
    pub last: i64,
    /// The time of the earliest event.
    pub earliest: String,
    /// The time of the latest event.
    pub latest: String,
    /// The hashes of the entries in order, [`HASH_LENGTH`] characters each.
    pub hashes: String,
}

/// The length of a hash in hexadecimal.
pub const HASH_LENGTH: usize = 64;

impl Seals {
    /// The hash of the entry with this number.
    pub fn hash(&self, link: i64) -> Option<&str> {
        let at = usize::try_from(link.checked_sub(self.first)?).ok()?.checked_mul(HASH_LENGTH)?;
        self.hashes.get(at..at + HASH_LENGTH)
    }
}

/// Appends rows to a chain, in their order, up to the first gap between their numbers. Returns the
/// hashes and the new end of the chain. Returns `None` if there are no rows.
pub fn seal(workspace: i64, head: &ChainEnd, rows: &[ChainEntry]) -> Option<(Seals, ChainEnd)> {
    let (first, mut head, mut hashes) = (rows.first()?.link, head.clone(), String::new());
    let mut times = Vec::new();
    for (row, link) in rows.iter().zip(first..).take_while(|(row, link)| row.link == *link) {
        head = ChainEnd { link, hash: row.hash(workspace, &head.hash) };
        hashes += &head.hash;
        times.extend(row.column(1));
    }
    let time = |time: Option<&&str>| time.copied().unwrap_or_default().to_owned();
    let (earliest, latest) = (time(times.iter().min()), time(times.iter().max()));
    Some((Seals { first, last: head.link, earliest, latest, hashes }, head))
}

/// The kind of damage in a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Problem {
    /// No event has this number.
    Missing,
    /// The event differs from the event that was sealed.
    Altered,
    /// The event's number belongs to another event, or was never assigned.
    Foreign,
    /// The events up to this entry are consistent, but they are not the events that were sealed.
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

/// The first damaged entry of a chain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChainDamage {
    /// The number of the entry.
    pub link: i64,
    /// The id of the event that is stored with this number, if there is one.
    pub event: Option<String>,
    /// The kind of damage.
    pub problem: Problem,
}

/// Verifies a chain, entry by entry.
#[derive(Clone, Debug)]
pub struct Verifier {
    workspace: i64,
    last: ChainEnd,
    expired: i64,
}

impl Verifier {
    /// Creates a verifier that begins after an entry that is correct.
    pub fn after(workspace: i64, last: ChainEnd) -> Self {
        Self { workspace, last, expired: 0 }
    }

    /// Accepts that retention deleted anonymous events up to this entry.
    pub fn expired_up_to(self, link: i64) -> Self {
        Self { expired: link, ..self }
    }

    /// The last verified entry.
    pub fn last(&self) -> &ChainEnd {
        &self.last
    }

    /// The damage if the next entry is missing.
    pub fn missing(&self) -> ChainDamage {
        ChainDamage { link: self.last.link + 1, event: None, problem: Problem::Missing }
    }

    /// Verifies the next row, ordered by number. `anchor`: the copy of this entry's hash that is
    /// stored elsewhere, if there is one.
    ///
    /// # Errors
    /// The row is not the next entry of the chain.
    pub fn take(&mut self, row: &ChainEntry, anchor: Option<&str>) -> Result<(), ChainDamage> {
        let (expected, link) = (self.last.link + 1, row.link);
        let event = row.id().map(str::to_owned);
        let broken = |problem| Err(ChainDamage { link, event, problem });
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
        self.last = ChainEnd { link, hash };
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

    fn rows(max: usize) -> impl Strategy<Value = Vec<ChainEntry>> {
        proptest::collection::vec(columns(), 1..=max).prop_map(|all| {
            let row = |(link, columns)| ChainEntry {
                link,
                hash: None,
                content: Content::Event(Box::new(columns)),
            };
            (1..).zip(all).map(row).collect()
        })
    }

    /// Seals rows, and returns them as they are stored.
    fn sealed(rows: Vec<ChainEntry>) -> (Vec<ChainEntry>, ChainEnd) {
        let (seals, head) = seal(WORKSPACE, &ChainEnd::default(), &rows).unwrap();
        (with_hashes(rows, &seals), head)
    }

    fn with_hashes(mut rows: Vec<ChainEntry>, seals: &Seals) -> Vec<ChainEntry> {
        for row in &mut rows {
            row.hash = seals.hash(row.link).map(str::to_owned);
        }
        rows
    }

    /// Verifies rows in the order of their numbers.
    fn verify(rows: &[ChainEntry], head: &ChainEnd) -> Result<(), ChainDamage> {
        verify_expired(rows, head, 0)
    }

    /// Like [`verify`], if anonymous events up to an entry may have expired.
    fn verify_expired(
        rows: &[ChainEntry],
        head: &ChainEnd,
        expired: i64,
    ) -> Result<(), ChainDamage> {
        let mut rows = rows.to_vec();
        rows.sort_by_key(|row| row.link);
        let mut verifier = Verifier::after(WORKSPACE, ChainEnd::default()).expired_up_to(expired);
        for row in &rows {
            let anchor = (row.link == head.link).then_some(head.hash.as_str());
            if verifier.last().link == head.link {
                return Err(ChainDamage { link: row.link, event: None, problem: Problem::Foreign });
            }
            verifier.take(row, anchor)?;
        }
        if verifier.last().link < head.link { Err(verifier.missing()) } else { Ok(()) }
    }

    proptest! {
        #[test]
        fn a_sealed_chain_is_valid_with_any_content(rows in rows(12), cut in 0_usize..12) {
            let (whole, head) = sealed(rows.clone());
            prop_assert_eq!(verify(&whole, &head), Ok(()));
            // Sealing in two steps has the same result.
            let (first, rest) = rows.split_at(cut.min(rows.len()));
            let (mut hashes, mut end) = (String::new(), ChainEnd::default());
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
        fn a_seal_has_the_hashes_and_times_of_its_entries(rows in rows(12), first in 2_i64..5, gap in 1_usize..12) {
            let mut rows = rows;
            for (row, link) in rows.iter_mut().zip(first..) {
                row.link = link + i64::from(link - first >= gap as i64);
            }
            let sealed = gap.min(rows.len());
            let (seals, head) = seal(WORKSPACE, &ChainEnd::default(), &rows).unwrap();
            let last = first + sealed as i64 - 1;
            prop_assert_eq!((seals.first, seals.last, head.link), (first, last, last));
            prop_assert_eq!(seals.hashes.len(), HASH_LENGTH * sealed);
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
        fn only_an_anonymous_event_may_expire(rows in rows(12), at in 0_usize..12, cursor in 0_i64..14) {
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
            // Another digest is refused.
            rows[at].content = Content::Expired("0".repeat(64));
            prop_assert!(verify_expired(&rows, &head, 100).is_err());
            // A missing entry is refused too.
            rows.remove(at);
            let missing = ChainDamage { link, event: None, problem: Problem::Missing };
            prop_assert_eq!(verify_expired(&rows, &head, 100), Err(missing));
        }

        #[test]
        fn a_changed_event_is_found(rows in rows(12), at in 0_usize..12, column in 0..COLUMNS.len(), text in proptest::option::of("[a-c]{0,2}")) {
            let (mut rows, head) = sealed(rows);
            let at = at % rows.len();
            let Content::Event(columns) = &mut rows[at].content else { unreachable!() };
            prop_assume!(columns[column] != text);
            columns[column] = text;
            let broken = verify(&rows, &head).unwrap_err();
            prop_assert_eq!((broken.link, broken.problem), (at as i64 + 1, Problem::Altered));
        }

        #[test]
        fn a_deleted_event_is_found(rows in rows(12), at in 0_usize..12) {
            let (mut rows, head) = sealed(rows);
            let at = at % rows.len();
            rows.remove(at);
            let expected = ChainDamage { link: at as i64 + 1, event: None, problem: Problem::Missing };
            prop_assert_eq!(verify(&rows, &head), Err(expected));
        }

        #[test]
        fn swapped_events_are_found(rows in rows(12), one in 0_usize..12, other in 0_usize..12) {
            let (mut rows, head) = sealed(rows);
            let (one, other) = (one % rows.len(), other % rows.len());
            prop_assume!(rows[one].content != rows[other].content);
            let content = rows[one].content.clone();
            rows[one].content = std::mem::replace(&mut rows[other].content, content);
            let broken = verify(&rows, &head).unwrap_err();
            prop_assert_eq!((broken.link, broken.problem), (one.min(other) as i64 + 1, Problem::Altered));
        }

        #[test]
        fn an_inserted_event_is_found(rows in rows(12), stranger in columns(), at in 1_i64..14, moves_others in proptest::bool::ANY) {
            let (mut rows, head) = sealed(rows);
            let at = at.min(head.link + 1);
            let before = usize::try_from(at - 2).ok().and_then(|place| rows[place].hash.clone()).unwrap_or_default();
            let mut stranger = ChainEntry { link: at, hash: None, content: Content::Event(Box::new(stranger)) };
            stranger.hash = Some(stranger.hash(WORKSPACE, &before));
            if moves_others {
                rows.iter_mut().filter(|row| row.link >= at).for_each(|row| row.link += 1);
            }
            prop_assume!(rows.iter().all(|row| row.content != stranger.content));
            rows.push(stranger);
            prop_assert!(verify(&rows, &head).is_err());
        }

        #[test]
        fn a_changed_or_deleted_hash_is_found(rows in rows(12), at in 0_usize..12, hash in proptest::option::of("[0-9a-f]{64}")) {
            let (mut rows, head) = sealed(rows);
            let at = at % rows.len();
            prop_assume!(rows[at].hash != hash);
            rows[at].hash = hash;
            let broken = verify(&rows, &head).unwrap_err();
            prop_assert_eq!((broken.link, broken.problem), (at as i64 + 1, Problem::Altered));
        }

        #[test]
        fn a_rewritten_chain_is_found(rows in rows(12), at in 0_usize..12) {
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
    fn a_hash_has_the_documented_form() {
        let mut columns: Columns = Default::default();
        columns[0] = Some("x".to_owned());
        columns[2] = Some("user".to_owned());
        // Encoded by hand: a flag and a length before each text.
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
        let row = ChainEntry { link: 3, hash: None, content: Content::Event(Box::new(columns)) };
        let expected = row.hash(7, "before");
        assert_eq!(expected, hex(&link));
        assert_ne!(row.hash(8, "before"), expected);
        assert_ne!(ChainEntry { link: 4, ..row.clone() }.hash(7, "before"), expected);
        assert_ne!(row.hash(7, ""), expected);
    }
}
