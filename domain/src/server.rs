//! What a server must look like (contract 6).

use uuid::Uuid;

use crate::error::{Error, both};
use crate::fields::Fields;
use crate::id;
use crate::page::{Query, boolean_parameter, ordering, parameter, words};
use crate::secret::Secret;

/// The shell commands that start an agent for a server on the host where they are pasted (contract 6).
///
/// They put the key into a file that only its owner can read, as an argument would be seen by everyone on the host.
pub fn install_commands(base_url: &str, server: Uuid, key: &Secret) -> String {
    let key = key.expose();
    format!(
        "umask 077 && cat > farhand-agent.toml <<'END'
url = \"{base_url}\"
id = \"{server}\"
key = \"{key}\"
END
farhand-agent run --config farhand-agent.toml"
    )
}

/// The longest name of a server or a group, in characters.
const MAX_NAME: usize = 64;

/// Reads and checks the name of a server or a group: 1 to 64 of `[a-z0-9-_.]`. What is wrong is noted in `fields`.
///
/// A name of the form of a UUID is refused as well: a command names its server by either, and could not tell them apart.
pub fn read_name(fields: &mut Fields) -> Option<String> {
    let name = fields.text("name", 1..=MAX_NAME)?;
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    if !name.bytes().all(allowed) {
        fields.reject("name", "Use lower-case letters, digits, hyphens, underscores and dots only.");
    } else if id::parse(&name).is_some() {
        fields.reject("name", "A name may not have the form of a UUID.");
    } else {
        return Some(name);
    }
    None
}

/// SQL for a name with a number at its end, for those after the first, and no longer than a name may be: of SQL for the name,
/// which is ASCII, and for the number.
pub fn numbered_sql(name: &str, number: &str) -> String {
    format!("iif({number} < 2, {name}, substr({name}, 1, {MAX_NAME} - length('-' || {number})) || '-' || {number})")
}

/// A request for a server or for changes of one, checked. What is `None` stays as it is.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ServerChanges {
    /// Its name.
    pub name: Option<String>,
    /// The groups that it is in, each once, sorted.
    pub groups: Option<Vec<i64>>,
}

impl ServerChanges {
    /// Reads the given fields (PATCH).
    ///
    /// # Errors
    /// All bad fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        let name = fields.has("name").then(|| read_name(&mut fields)).flatten();
        let groups = fields.optional_groups();
        fields.finish()?;
        Ok(Self { name, groups })
    }

    /// Reads all fields (POST, PUT): the name must be there. Groups that are left out are for the caller's right to tell.
    ///
    /// # Errors
    /// All bad fields together.
    pub fn read_all(mut fields: Fields) -> Result<Self, Error> {
        let name = read_name(&mut fields);
        let groups = fields.optional_groups();
        let name = fields.finish_with(name)?;
        Ok(Self { name: Some(name), groups })
    }
}

/// A field that a list of servers is ordered by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// `name`.
    Name,
    /// `added_at`.
    Added,
    /// `updated_at`.
    Updated,
    /// `connected_at`.
    Connected,
    /// `last_seen_at`.
    Seen,
    /// `is_connected`.
    IsConnected,
}

impl Key {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Name, Self::Added, Self::Updated, Self::Connected, Self::Seen, Self::IsConnected];

    /// The name in requests, answers and D1.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Added => "added_at",
            Self::Updated => "updated_at",
            Self::Connected => "connected_at",
            Self::Seen => "last_seen_at",
            Self::IsConnected => "is_connected",
        }
    }
}

/// Which servers a list shows, and in which order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerList {
    /// With this name.
    pub name: Option<String>,
    /// With an agent connected, or without.
    pub is_connected: Option<bool>,
    /// With each of these words, in lower case, somewhere in what is known of it.
    pub words: Vec<String>,
    /// The fields of its order, and whether each is descending. Never empty; ties are broken by id, in the direction of the
    /// first one.
    pub order: Vec<(Key, bool)>,
}

impl ServerList {
    /// Reads `name`, `is_connected`, `search` and `ordering`. Without the last one the newest is first.
    ///
    /// # Errors
    /// All bad parameters together.
    pub fn of(query: &Query) -> Result<Self, Error> {
        let order = ordering(query, &Key::ALL, Key::as_str);
        let texts = both(boolean_parameter(query, "is_connected"), words(query));
        let ((is_connected, words), order) = both(texts, order)?;
        let order = order.unwrap_or_else(|| vec![(Key::Added, true)]);
        Ok(Self { name: parameter(query, "name").map(ToOwned::to_owned), is_connected, words, order })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let read = |name: &str| {
            let mut fields = Fields::from_form([("name".to_owned(), name.to_owned())]);
            (read_name(&mut fields).is_some(), fields.finish().is_ok())
        };
        let longest = "a".repeat(64);
        for good in ["a", "web-1", "db_2.example", "1", "-", &longest] {
            assert_eq!(read(good), (true, true), "{good}");
        }
        let too_long = "a".repeat(65);
        for bad in ["", " ", "Web", "a b", "ä", "a/b", "01936d3e-7a00-7000-8000-000000000000", &too_long] {
            assert_eq!(read(bad), (false, false), "{bad}");
        }
    }

    #[test]
    fn lists() {
        let of = |pairs: &[(&str, &str)]| {
            let query: Query = pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            ServerList::of(&query)
        };
        assert_eq!(of(&[]).unwrap().order, [(Key::Added, true)]);
        let list = of(&[("search", " Web\tUBUNTU "), ("ordering", "-last_seen_at,name,last_seen_at")]).unwrap();
        assert_eq!(
            (list.words, list.order),
            (vec!["web".into(), "ubuntu".into()], vec![(Key::Seen, true), (Key::Name, false)])
        );
        let wrong = of(&[("is_connected", "x"), ("search", "\0"), ("ordering", "load")]).unwrap_err();
        assert_eq!(wrong.fields.keys().collect::<Vec<_>>(), ["is_connected", "ordering", "search"]);
    }
}
