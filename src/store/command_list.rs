//! SQL for lists of commands. What each costs is told in `docs/performance.md`, What lists cost.
//!
//! It knows nothing of the platform, so that the end-to-end tests read the very same file and look at the plans of what it
//! makes. Everything of a request's is a parameter, from `?7` on.
//!
//! Longer than 500 lines: the ways to page, to search and to count are made of the same filters.
//!
//! Who calls is known to the statement alone, as `me`. So it holds a way for those who reach all servers and one for those
//! who reach some, and the one that is not the caller's ends before it reads a row.

use farhand_domain::command::Shell;
use farhand_domain::command_list::{CommandList, INDEXED_CHARACTERS, INDEXED_WORDS, Moment, Word, read_characters};
use serde_json::json;

/// SQL for whether the caller reaches all of the workspace's servers.
pub const REACHES_ALL: &str = "((me.is_superuser OR me.is_staff) AND me.acl_servers IS NULL)";

/// A common table that follows `me`: the servers of which a caller sees commands who does not reach all. Of one that is gone
/// it is the caller's own commands only, and `is_whole` is 0; staff with a list of servers see all of what it names.
///
/// Somebody who reaches all servers finds nothing here, and reads nothing for it.
pub const REACHED: &str = "some AS MATERIALIZED (
    SELECT * FROM me WHERE NOT (me.is_superuser OR me.is_staff) OR me.acl_servers IS NOT NULL
), reached AS MATERIALIZED (
    SELECT id, max(is_whole) AS is_whole FROM (
        SELECT o.id, 1 AS is_whole FROM some
        CROSS JOIN servers o ON o.workspace_id = some.workspace_id AND o.owner_id = some.user_id
        WHERE NOT (some.is_superuser OR some.is_staff)
        UNION ALL
        SELECT g.server_id, 1 FROM some
        CROSS JOIN memberships m ON m.workspace_id = some.workspace_id AND m.user_id = some.user_id
        CROSS JOIN server_groups g ON g.workspace_id = m.workspace_id AND g.group_id = m.group_id
        WHERE NOT (some.is_superuser OR some.is_staff)
        UNION ALL
        SELECT q.server_id, 0 FROM some
        CROSS JOIN command_requesters q ON q.workspace_id = some.workspace_id AND q.user_id = some.user_id
        CROSS JOIN gone_servers d ON d.workspace_id = q.workspace_id AND d.id = q.server_id
        WHERE NOT (some.is_superuser OR some.is_staff)
        UNION ALL
        SELECT a.value, 1 FROM some CROSS JOIN json_each(some.acl_servers) a WHERE some.is_superuser OR some.is_staff
    ) WHERE (SELECT acl_servers IS NULL FROM some)
        OR id IN (SELECT a.value FROM some CROSS JOIN json_each(some.acl_servers) a)
    GROUP BY id
)";

/// How many of the workspace's commands are looked at, at least, in the list's order, before those of a filter are all sorted.
const WINDOW: u32 = 1_000;

/// As many found by the words of a search are taken for very many.
const FREQUENT: u32 = 10_000;

/// How many of the workspace's commands are looked at in the list's order, at most, before all that words have found is sorted.
const SEARCH_WINDOW: u32 = 2_000;

/// From which offset on a page that is nearer to the list's end is read from there. Up to it that would gain less than the longer
/// statement costs.
const FAR: u64 = 1_000;

/// From which offset on a page is taken from all that a filter finds, sorted. Up to there the places of what may be on the
/// page are gathered in texts, which D1 bounds.
const DEEP: u64 = 10_000;

/// A parameter of the statements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A text.
    Text(String),
    /// A whole number.
    Integer(i64),
}

/// What a list is read with.
#[derive(Debug)]
pub struct Sql {
    /// Common tables that follow `me`: `total`, with the number of all items, and what that and the items need. (What is in
    /// one does not add to the depth of an expression that reads it, which D1 bounds.)
    pub tables: String,
    /// The statement for a page's items: each as JSON in the column `body`. `?3` is the time, `?5` and `?6` are the page's
    /// size and offset. None stands alone after a LIMIT: SQLite would prepare the statement anew whenever one is bound.
    pub items: String,
    /// The same two for those who reach all servers, where these are much shorter; for others `total` is null.
    pub of_all: Option<(String, String)>,
    /// The values of `?7` and on.
    pub parameters: Vec<Value>,
}

/// Makes the SQL of a list, for a page with that offset. `object` is a row of `commands c` as JSON.
pub fn sql(list: &CommandList, offset: u64, object: &str) -> Sql {
    let builder = Builder { offset, ..Builder::new(list, object) };
    let of_all = builder.words.is_none().then(|| {
        let total = format!("iif({REACHES_ALL}, {}, NULL)", builder.count_of_all());
        (format!(", total AS (SELECT {total} AS total FROM me)"), builder.items_of_all())
    });
    Sql { tables: builder.tables(), items: builder.items(), of_all, parameters: builder.parameters }
}

/// How many commands a list for an API token that reads narrowly looks at, at most: so many that are due, the latest by
/// `scheduled_at`, and so many that are planned, the next ones. Each is compared with the access control list, and no index helps.
pub const NARROW_WINDOW: u32 = 1_000;

/// SQL for what an access control list allows (`within_acl`).
pub struct Within<'a> {
    /// The list's patterns of lines.
    pub patterns: &'a str,
    /// Its lists of words.
    pub lists: &'a str,
    /// What it costs to compare a command with it, as one row, from the tables `patterns` and `lists`.
    pub cost: &'a str,
    /// The same of a row of `commands c`, from the table `cost`.
    pub cost_of_row: &'a str,
    /// As much is spent, and no more than one further command.
    pub most_cost: u32,
    /// The condition that the list allows a row of `commands c`; it may use `me` and the tables `patterns` and `lists`.
    pub is_within: &'a str,
}

/// The same list for an API token that reads only what its access control list allows.
pub fn narrow_sql(list: &CommandList, offset: u64, object: &str, within: &Within<'_>) -> Sql {
    let Within { patterns, lists, cost, cost_of_row, most_cost, is_within } = within;
    let builder = Builder { offset, ..Builder::with(list, object, false) };
    let filters = builder.filters("me.workspace_id", Index::Server);
    let newest = builder.newest();
    // What is due is compared first, then what is planned, the next one first: so no planned command takes a due one's place.
    let tables = format!(
        ", {REACHED}, patterns AS MATERIALIZED ({patterns}), lists AS MATERIALIZED ({lists}), cost AS MATERIALIZED ({cost}),
         newest AS MATERIALIZED ({newest}),
         looked_at AS MATERIALIZED (SELECT c.seq, sum({cost_of_row}) OVER (
                ORDER BY iif(c.scheduled_at > ?3, c.scheduled_at, ''), c.scheduled_at DESC, c.id DESC
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS spent
            FROM me CROSS JOIN newest n CROSS JOIN commands c ON c.seq = n.seq CROSS JOIN cost WHERE {filters}),
         allowed AS MATERIALIZED (SELECT c.seq FROM me CROSS JOIN looked_at n CROSS JOIN commands c ON c.seq = n.seq
            WHERE coalesce(n.spent, 0) < {most_cost} AND {is_within}),
         total AS (SELECT count(*) AS total FROM allowed)"
    );
    let from = "me CROSS JOIN allowed a CROSS JOIN commands c ON c.seq = a.seq";
    let items = builder.chosen(from, &builder.unless_past("true"));
    Sql { tables, items, of_all: None, parameters: builder.parameters }
}

/// SQL for the users of the workspace who are gone while their ids still stand on commands.
const DEPARTED: &str = "SELECT d.user_id FROM me CROSS JOIN departed_users d ON d.workspace_id = me.workspace_id";

/// The condition on the row of `me` that there are any.
const HAS_DEPARTED: &str = "EXISTS (SELECT 1 FROM departed_users d WHERE d.workspace_id = me.workspace_id)";

/// The condition that the page is not past the end: OFFSET would walk over all that comes before it.
const NOT_PAST_THE_END: &str = "?6 < (SELECT total FROM total)";

/// A column of command_texts that holds what stands for a number.
#[derive(Clone, Copy)]
enum Marker {
    Server,
    Requester,
}

impl Marker {
    /// SQL for the phrase that finds a number. (`format` takes less of the depth that D1 grants an expression than `||`.)
    fn phrase(self, number: &str) -> String {
        // See the migration.
        let base = match self {
            Self::Server => 0xF4000,
            Self::Requester => 0xF8000,
        };
        format!(
            "format('\"%s\"', char({base} + ({number} >> 28 & 16383), {base} + ({number} >> 14 & 16383),
                {base} + ({number} & 16383)))"
        )
    }

    /// SQL for the phrases of all rows' numbers, any of which will do. Without a row it is that of 0, which finds nothing.
    fn any(self, number: &str) -> String {
        format!("coalesce(group_concat({}, ' OR '), {})", self.phrase(number), self.phrase("0"))
    }
}

/// The index that a way through the table takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Index {
    Server,
    Shell,
    Requester,
    Requested,
    Planned,
    Moment(Moment),
}

impl Index {
    /// Its name in the migrations.
    fn name(self) -> &'static str {
        match self {
            Self::Server => "commands_by_server",
            Self::Shell => "commands_by_shell",
            Self::Requester => "commands_by_requester",
            Self::Requested => "commands_requested",
            Self::Planned => "commands_planned",
            Self::Moment(Moment::Added) => "commands_by_added",
            Self::Moment(Moment::Scheduled) => "commands_by_schedule",
            Self::Moment(Moment::Delivered) => "commands_by_delivered",
            Self::Moment(Moment::Acked) => "commands_by_acked",
            Self::Moment(Moment::Handled) => "commands_by_handled",
        }
    }

    /// The moment that it is in the order of.
    fn moment(self) -> Moment {
        match self {
            Self::Moment(moment) => moment,
            _ => Moment::Scheduled,
        }
    }
}

/// The parts of a list's statements.
struct Builder<'a> {
    list: &'a CommandList,
    /// The page's.
    offset: u64,
    /// A row of `commands c` as JSON.
    object: &'a str,
    parameters: Vec<Value>,
    /// The parameter of the filter by server.
    server: Option<String>,
    /// The parameter of the filter by requester.
    requester: Option<String>,
    /// The parameter of the words that the index of lines is asked for, if there are any: an array of `query` and `name`.
    words: Option<String>,
    /// The conditions of the words that it does not find exactly.
    inexact_words: Vec<String>,
    /// The condition that a row of `commands c` has all words anywhere in its line, or in a name.
    anywhere: String,
    /// The conditions of filters that have neither an index nor a counter.
    plain_filters: Vec<String>,
}

impl<'a> Builder<'a> {
    fn new(list: &'a CommandList, object: &'a str) -> Self {
        Self::with(list, object, true)
    }

    /// `by_index`: words are looked up in the index of lines, as far as it helps; otherwise in each line.
    fn with(list: &'a CommandList, object: &'a str, by_index: bool) -> Self {
        let mut new = Self {
            list,
            offset: 0,
            object,
            parameters: vec![],
            server: None,
            requester: None,
            words: None,
            inexact_words: vec![],
            anywhere: String::new(),
            plain_filters: vec![],
        };
        new.server = list.server.map(|server| new.bind(Value::Text(server.to_string())));
        new.requester = list.requested_by.map(|requester| new.bind(Value::Integer(requester)));
        new.add_plain_filters();
        let (indexed, others) = list.words.split_at(list.words.len().min(INDEXED_WORDS));
        let asked = |word: &Word| word.query().map(|query| json!({"query": query, "name": word.name()}));
        let words: Vec<serde_json::Value> = indexed.iter().filter_map(asked).collect();
        if by_index && !words.is_empty() {
            new.words = Some(new.bind(Value::Text(json!(words).to_string())));
            let looked_for = |word: &Word| {
                let glob = if word.is_ascii() { None } else { word.glob() };
                json!({"line": word.in_line(), "name": word.name(), "glob": glob})
            };
            let all: Vec<_> = list.words.iter().map(looked_for).collect();
            new.anywhere = all_words(&new.bind(Value::Text(json!(all).to_string())), HAS_WORD);
        }
        let mut looked_for = Vec::new();
        for word in indexed.iter().filter(|word| !(by_index && word.is_exact())) {
            match word.glob() {
                Some(glob) => {
                    let (glob, name) = (new.bind(Value::Text(glob)), new.bind(Value::Text(word.name())));
                    new.inexact_words.push(inexact_word(&glob, &name));
                }
                None => looked_for.push(word),
            }
        }
        looked_for.extend(others);
        if !looked_for.is_empty() {
            let words: Vec<_> =
                looked_for.iter().map(|word| json!({"line": word.in_line(), "name": word.name()})).collect();
            let words = new.bind(Value::Text(json!(words).to_string()));
            new.inexact_words.push(all_words(&words, "instr(lower(c.line), w.value ->> 'line') > 0"));
        }
        new
    }

    fn bind(&mut self, value: Value) -> String {
        self.parameters.push(value);
        format!("?{}", 6 + self.parameters.len())
    }

    /// The commands that a narrow list looks at, of its server and its requester. See [`NARROW_WINDOW`].
    fn newest(&self) -> String {
        let past = self.nearest("c.scheduled_at <= ?3", "DESC");
        let future = self.nearest("c.scheduled_at > ?3", "ASC");
        format!("{past} UNION ALL {future}")
    }

    /// The first [`NARROW_WINDOW`] commands of one `side` of the present, by `scheduled_at` in that direction.
    fn nearest(&self, side: &str, direction: &str) -> String {
        let first = format!("ORDER BY c.scheduled_at {direction}, c.id {direction} LIMIT {NARROW_WINDOW}");
        let of_requester =
            self.requester.as_ref().map_or_else(String::new, |requester| format!("AND c.requested_by = {requester}"));
        let by = |index: Index, who: &str, more: &str| {
            format!(
                "SELECT c.seq FROM commands c INDEXED BY {}
                 WHERE c.workspace_id = (SELECT me.workspace_id FROM me WHERE {who}) AND {side} {of_requester} {more} {first}",
                index.name()
            )
        };
        let of_all = match (&self.server, &self.requester) {
            (Some(server), _) => by(Index::Server, REACHES_ALL, &format!("AND c.server_id = {server}")),
            (None, Some(_)) => by(Index::Requester, REACHES_ALL, ""),
            (None, None) => by(Index::Moment(Moment::Scheduled), REACHES_ALL, ""),
        };
        let of_some = if self.server.is_none() && self.requester.is_some() {
            by(Index::Requester, &format!("NOT {REACHES_ALL}"), &format!("AND {ON_REACHED}"))
        } else {
            format!(
                "SELECT c.seq FROM me CROSS JOIN json_each(iif({REACHES_ALL}, '[]',
                    (SELECT json_group_array(json_array(r.id, r.is_whole)) FROM reached r WHERE true{}))) key
                 CROSS JOIN json_each((SELECT json_group_array(seq) FROM (
                    SELECT c.seq FROM commands c INDEXED BY commands_by_server
                    WHERE c.workspace_id = me.workspace_id AND c.server_id = key.value ->> 0 AND {side} {of_requester}
                        AND (key.value ->> 1 OR c.requested_by = me.user_id) {first}))) first
                 CROSS JOIN commands c ON c.seq = first.value {first}",
                self.of_server()
            )
        };
        format!("SELECT seq FROM ({of_all}) UNION ALL SELECT seq FROM ({of_some})")
    }

    /// Adds the conditions of the filters that no index and no counter serves.
    fn add_plain_filters(&mut self) {
        let list = self.list;
        let mut filters: Vec<String> = list.states.iter().map(|states| of_states(states)).collect();
        filters.extend(list.success.map(|success| format!("c.success = {}", i32::from(success))));
        let bound = [
            ("c.exit_code =", list.exit_code.map(Value::Integer)),
            ("c.username =", list.username.clone().map(Value::Text)),
            ("c.added_at >=", list.added_from.map(|at| Value::Text(at.to_string()))),
            ("c.added_at <", list.added_before.map(|at| Value::Text(at.to_string()))),
        ];
        for (test, value) in bound.into_iter().filter_map(|(test, value)| Some((test, value?))) {
            filters.push(format!("{test} {}", self.bind(value)));
        }
        self.plain_filters = filters;
    }

    fn is_deep(&self) -> bool {
        self.offset >= DEEP
    }

    /// A condition, and that the page is not past the end. The first one never is, and whoever asks for it need not count.
    fn unless_past(&self, condition: &str) -> String {
        if self.offset == 0 { condition.to_owned() } else { format!("{condition} AND {NOT_PAST_THE_END}") }
    }

    /// The condition of all filters on a row of `commands c` of a workspace, by an index.
    fn filters(&self, workspace: &str, index: Index) -> String {
        let mut all = vec![self.more_filters(workspace, index == Index::Requester && self.requester.is_none())];
        all.extend(self.filters_by_id());
        all.join(" AND ")
    }

    /// The condition of what a query on command_texts does not say. `of_nobody`: the way goes through those commands only
    /// that have no requester.
    fn more_filters(&self, workspace: &str, of_nobody: bool) -> String {
        let mut all = self.filters_but_words(workspace, of_nobody);
        if !self.inexact_words.is_empty() {
            all.push(format!("({})", all_of(&self.inexact_words)));
        }
        all.join(" AND ")
    }

    /// The same conditions without those of words.
    fn filters_but_words(&self, workspace: &str, of_nobody: bool) -> Vec<String> {
        let mut all = vec![format!("c.workspace_id = {workspace}")];
        if let Some(shell) = self.list.shell {
            all.push(format!("c.shell = '{}'", shell.as_str()));
        }
        match self.list.requested_by_isnull {
            Some(true) if !of_nobody => all.push(format!("(c.requested_by IS NULL OR c.requested_by IN ({DEPARTED}))")),
            Some(false) => all.push(format!(
                "c.requested_by IS NOT NULL AND (NOT EXISTS ({DEPARTED}) OR c.requested_by NOT IN ({DEPARTED}))"
            )),
            Some(true) | None => {}
        }
        match self.list.is_scheduled {
            Some(true) => all.push(PLANNED.to_owned()),
            Some(false) => all.push("c.scheduled_at <= ?3".to_owned()),
            None => {}
        }
        if !self.plain_filters.is_empty() {
            all.push(format!("({})", all_of(&self.plain_filters)));
        }
        all
    }

    /// The conditions of the filters by server and by requester on a row of `commands c`.
    fn filters_by_id(&self) -> Vec<String> {
        let mut all = Vec::new();
        if let Some(server) = &self.server {
            all.push(format!("c.server_id = {server}"));
        }
        if let Some(requester) = &self.requester {
            // On the commands of one who is gone the id may still stand, where nobody sees it.
            all.push(format!(
                "c.requested_by = {requester}
                 AND EXISTS (SELECT 1 FROM me CROSS JOIN users u ON u.workspace_id = me.workspace_id AND u.id = {requester})"
            ));
        }
        all
    }

    /// The condition that a row of `reached r` is the one that the list is of, to be added to others.
    fn of_server(&self) -> String {
        self.server.as_ref().map_or_else(String::new, |server| format!(" AND r.id = {server}"))
    }

    /// Rows of `reached r` as those of `json_each`, which are not even made for those who reach all servers: the array of a
    /// server's id and whether all of its commands are seen.
    fn each_reached(&self) -> String {
        format!(
            "json_each(iif({REACHES_ALL}, '[]', (SELECT json_group_array(json_array(r.id, r.is_whole)) FROM reached r
                WHERE true{}{}))) key",
            self.of_server(),
            self.has_some()
        )
    }

    /// The condition that a row of `reached r` has commands that may pass a filter, to be added to others: else all of its
    /// commands would be gone through in vain.
    fn has_some(&self) -> String {
        let what = match (self.list.shell, self.list.requested_by_isnull) {
            (Some(Shell::Internal), _) => "n.internal",
            (_, Some(true)) => "n.nobody",
            (_, Some(false)) => "n.total - n.nobody",
            (Some(Shell::System), None) => "n.total - n.internal",
            (None, None) => return String::new(),
        };
        format!(
            " AND ({HAS_DEPARTED} OR EXISTS (SELECT 1 FROM command_servers n
               WHERE n.workspace_id = me.workspace_id AND n.server_id = r.id AND {what} > 0))"
        )
    }

    fn order(&self) -> String {
        self.order_from(false)
    }

    /// The list's order, or the reverse.
    fn order_from(&self, is_end: bool) -> String {
        let direction = |descending| if descending == is_end { "ASC" } else { "DESC" };
        let keys = self.list.order.iter().map(|key| format!("c.{} {}", key.moment.as_str(), direction(key.descending)));
        let first = self.list.order.first().is_none_or(|key| key.descending);
        keys.chain([format!("c.id {}", direction(first))]).collect::<Vec<_>>().join(", ")
    }

    /// The moment that the list is ordered by first.
    fn moment(&self) -> Moment {
        self.list.order.first().map_or(Moment::Scheduled, |key| key.moment)
    }

    /// The index by which those who reach all servers go: one of a filter that finds few, or else one in the list's order.
    fn index(&self) -> Index {
        let CommandList { server, shell, requested_by, requested_by_isnull, is_scheduled, .. } = self.list;
        if server.is_some() {
            Index::Server
        } else if requested_by.is_some() || *requested_by_isnull == Some(true) {
            Index::Requester
        } else if *is_scheduled == Some(true) {
            Index::Planned
        } else if *shell == Some(Shell::Internal) {
            // The built-ins are for staff, and rare.
            Index::Shell
        } else if self.moment() != Moment::Scheduled {
            Index::Moment(self.moment())
        } else if *requested_by_isnull == Some(false) {
            Index::Requested
        } else if shell.is_some() {
            Index::Shell
        } else {
            Index::Moment(Moment::Scheduled)
        }
    }

    /// Tells whether those who reach all servers go through the commands without a requester.
    fn is_of_nobody(&self) -> bool {
        self.index() == Index::Requester && self.requester.is_none()
    }

    fn tables(&self) -> String {
        let total = format!("total AS (SELECT {} AS total FROM me)", self.count());
        match self.words {
            Some(_) => {
                let (query, long) = (self.query(), self.long());
                format!(", {REACHED}, asked AS MATERIALIZED (SELECT {query} AS query FROM me), {long}, {total}")
            }
            None => format!(", {REACHED}, {total}"),
        }
    }

    /// Two common tables for the search in lines whose beginning alone is in the index. `indexed`: the long lines that the
    /// query finds. `long`: those that it does not find, and that have all words anywhere; only the newest are read.
    fn long(&self) -> String {
        let indexed =
            matches("(SELECT format('(%s) AND wide:\"lng\"', query) FROM asked)", "(SELECT workspace_id FROM me)");
        let characters = read_characters(&self.list.words);
        let is_long = format!("length(c.line) > {INDEXED_CHARACTERS}");
        let mut filters = self.filters_but_words("me.workspace_id", false);
        filters.extend(self.filters_by_id());
        format!(
            "indexed AS MATERIALIZED (SELECT t.rowid & (1 << 40) - 1 AS seq FROM command_texts t WHERE {indexed}),
             newest AS MATERIALIZED (SELECT seq FROM (
                SELECT c.seq, sum(length(c.line)) OVER (ORDER BY c.seq DESC ROWS UNBOUNDED PRECEDING) AS characters
                FROM commands c INDEXED BY commands_long
                WHERE c.workspace_id = (SELECT workspace_id FROM me) AND {is_long} ORDER BY c.seq DESC LIMIT {})
                WHERE characters <= {characters}),
             long AS MATERIALIZED (SELECT c.seq FROM me CROSS JOIN newest n CROSS JOIN commands c ON c.seq = n.seq
                WHERE {} AND ({REACHES_ALL} OR {ON_REACHED}) AND {} AND c.seq NOT IN (SELECT seq FROM indexed))",
            characters / INDEXED_CHARACTERS,
            all_of(&filters),
            self.anywhere
        )
    }

    // The page's items.

    fn items(&self) -> String {
        match self.words {
            Some(_) => self.items_found(),
            None => one_of([&self.items_of_all(), &self.items_of_some()]),
        }
    }

    /// The page by the index of lines.
    fn items_found(&self) -> String {
        let workspace = "(SELECT me.workspace_id FROM me)";
        let asked = format!("command_texts t WHERE {}", matches("(SELECT query FROM asked)", workspace));
        // What other conditions leave is not more.
        let is_there = match self.offset {
            0 => "true".to_owned(),
            _ => format!("(SELECT true FROM (SELECT 1 FROM {asked} UNION ALL SELECT 1 FROM long) LIMIT 1 OFFSET ?6)"),
        };
        let filters = format!("(f.is_long OR {})", self.more_filters(workspace, false));
        let found = |query: &str| {
            format!(
                "(SELECT t.rowid & (1 << 40) - 1 AS seq, 0 AS is_long FROM command_texts t WHERE {}
                  UNION ALL SELECT seq, 1 FROM long) f CROSS JOIN commands c ON c.seq = f.seq",
                matches(query, workspace)
            )
        };
        let Some(words) = self.words.as_ref().filter(|_| self.may_look_around()) else {
            let from = found(&format!("(SELECT query FROM asked WHERE {is_there})"));
            return self.chosen(&from, &format!("{is_there} AND {filters}"));
        };
        let far = format!(
            "SELECT c.seq FROM {} WHERE {filters} ORDER BY {} LIMIT ?5 + ?6",
            found("(SELECT query FROM asked)"),
            self.order()
        );
        // A page of 15 takes 15 times as many as there are for each that is found. So where that is no more than half of what is
        // found, these are looked at; if they do not make the page, it takes twice as long.
        let window = format!(
            "(WITH many AS MATERIALIZED (
                SELECT (SELECT count(*) FROM (SELECT 1 FROM {asked} LIMIT {FREQUENT})) AS found, {} AS total FROM me)
              SELECT iif(found = {FREQUENT} OR found * found > 30 * total, min(found, {SEARCH_WINDOW}), 0) FROM many)",
            of_kind("shell", "true")
        );
        // What the index has of a long line is not looked at again.
        let more = format!(
            " AND ({REACHES_ALL} OR {ON_REACHED}) AND iif(length(c.line) > {INDEXED_CHARACTERS},
                c.seq IN (SELECT seq FROM indexed UNION ALL SELECT seq FROM long), {})",
            all_words(words, HAS_ASCII)
        );
        let rows = self.near_or_far(&window, &more, &far);
        let from = format!(
            "me CROSS JOIN json_each((SELECT json_group_array(seq) FROM ({rows}))) place
             CROSS JOIN commands c ON c.seq = place.value"
        );
        self.chosen(&from, &is_there)
    }

    /// Tells whether a command can be looked at by itself for what the index of lines is asked for, and whether the page can be
    /// among the first of the workspace.
    fn may_look_around(&self) -> bool {
        let indexed = self.list.words.iter().take(INDEXED_WORDS);
        self.offset < FAR && self.list.order.len() == 1 && indexed.into_iter().all(Word::is_ascii)
    }

    /// The page for those who reach all servers.
    fn items_of_all(&self) -> String {
        let index = self.index();
        let total = self.tally_of_all().filter(|_| self.offset >= FAR && index.moment() == self.moment());
        let by = |who: &str, more: &str| match &total {
            Some(total) => self.by_either_end(total, index, who, more),
            None => self.by(index, who, more),
        };
        if !self.is_of_nobody() {
            return by(REACHES_ALL, "");
        }
        // Mostly nobody has left lately, and then one walk will do.
        let of_none = by(&format!("{REACHES_ALL} AND NOT {HAS_DEPARTED}"), " AND c.requested_by IS NULL");
        let nobody = format!(
            "json_each((SELECT json_group_array(user_id) FROM (SELECT NULL AS user_id UNION ALL {DEPARTED}))) nobody"
        );
        let of_each = self.first_of_each(&nobody, index, "c.requested_by IS nobody.value");
        let of_each = self.chosen_first(&of_each, &format!("{REACHES_ALL} AND {HAS_DEPARTED}"));
        one_of([&of_none, &of_each])
    }

    /// The page for those who reach some servers.
    fn items_of_some(&self) -> String {
        let reaches_some = format!("NOT {REACHES_ALL}");
        let is_by_server = self.server.is_some();
        if !is_by_server && self.requester.is_some() {
            return self.by(Index::Requester, &reaches_some, &format!(" AND {ON_REACHED}"));
        }
        if !is_by_server && self.list.shell == Some(Shell::Internal) {
            return self.by(Index::Shell, &reaches_some, &format!(" AND {ON_REACHED}"));
        }
        let more = format!(" AND {ON_REACHED}");
        if self.is_deep() {
            return self.sorted(Index::Server, &reaches_some, &more);
        }
        let of_each = self.first_of_each(
            &self.each_reached(),
            Index::Server,
            "c.server_id = key.value ->> 0 AND (key.value ->> 1 OR c.requested_by = me.user_id)",
        );
        if self.moment() == Moment::Scheduled {
            return self.chosen_first(&of_each, &reaches_some);
        }
        let far = format!(
            "SELECT c.seq FROM {of_each} CROSS JOIN commands c ON c.seq = first.value
             ORDER BY {} LIMIT ?5 + ?6",
            self.order()
        );
        let window = window(&tally("n.total", &self.servers_of_some(true)));
        self.placed(&reaches_some, &self.near_or_far(&window, &more, &far))
    }

    /// The condition of the filters, and `more`, for those callers that a condition on `me` lets in. For others the
    /// workspace is null, and then an index is not entered at all.
    fn filters_for(&self, index: Index, who: &str, more: &str) -> String {
        let workspace = format!("(SELECT me.workspace_id FROM me WHERE {})", self.unless_past(who));
        format!("{}{more}", self.filters(&workspace, index))
    }

    /// The objects of a page, of all that an index finds.
    fn sorted(&self, index: Index, who: &str, more: &str) -> String {
        self.chosen(&format!("commands c INDEXED BY {}", index.name()), &self.filters_for(index, who, more))
    }

    /// The objects of a page, by an index, for those callers that a condition on `me` lets in. `more` is added to the filters.
    fn by(&self, index: Index, who: &str, more: &str) -> String {
        let (name, object, order) = (index.name(), self.object, self.order());
        let has_its_order = index.moment() == self.moment();
        if let Some(tally) = self.tally_of(index).filter(|_| !has_its_order && !self.is_deep()) {
            let filters = self.filters("me.workspace_id", index);
            let far = format!(
                "SELECT c.seq FROM commands c INDEXED BY {name} WHERE {filters}{more} ORDER BY {order} LIMIT ?5 + ?6"
            );
            return self.placed(who, &self.near_or_far(&window(&tally), more, &far));
        }
        if !has_its_order || self.list.order.len() > 1 {
            return self.sorted(index, who, more);
        }
        let filters = self.filters_for(index, who, more);
        format!(
            "SELECT {object} AS body FROM commands c INDEXED BY {name} WHERE {filters} ORDER BY {order} LIMIT ?5 + 0 OFFSET ?6"
        )
    }

    /// The objects of a page, by an index in the list's order, from the end that is nearer: `total`, the number of all from the
    /// counters, tells where the page is from the other one.
    fn by_either_end(&self, total: &str, index: Index, who: &str, more: &str) -> String {
        let way = |is_end: bool, nearer: &str, limit: &str| {
            let workspace = format!("(SELECT me.workspace_id FROM me WHERE {who} AND {nearer})");
            format!(
                "SELECT c.seq FROM commands c INDEXED BY {} WHERE {}{more} ORDER BY {} LIMIT {limit}",
                index.name(),
                self.filters(&workspace, index),
                self.order_from(is_end)
            )
        };
        let start = way(false, &format!("?6 <= {total} / 2"), "?5 + 0 OFFSET ?6");
        // Without a caller there is no row of `me`, and no null may be a limit.
        let end = way(
            true,
            &format!("?6 > {total} / 2 AND ?6 < {total}"),
            &format!(
                "coalesce((SELECT min(?5, {total} - ?6) FROM me), 0)
                 OFFSET coalesce((SELECT max({total} - ?6 - ?5, 0) FROM me), 0)"
            ),
        );
        let (object, order) = (self.object, self.order());
        format!(
            "SELECT {object} AS body
             FROM (SELECT seq FROM ({start}) UNION ALL SELECT seq FROM ({end})) page
             CROSS JOIN commands c ON c.seq = page.seq
             ORDER BY {order}"
        )
    }

    /// The objects of a page, whose rows are chosen from what `from` gives.
    fn chosen(&self, from: &str, condition: &str) -> String {
        let (object, order) = (self.object, self.order());
        format!(
            "SELECT {object} AS body
             FROM (SELECT c.seq FROM {from} WHERE {condition} ORDER BY {order} LIMIT ?5 + 0 OFFSET ?6) page
             CROSS JOIN commands c ON c.seq = page.seq
             ORDER BY {order}"
        )
    }

    /// The objects of a page, whose rows are chosen from those that `rows` selects for the row of `me`.
    fn placed(&self, who: &str, rows: &str) -> String {
        let from = format!(
            "me CROSS JOIN json_each((SELECT json_group_array(seq) FROM ({rows}))) place
             CROSS JOIN commands c ON c.seq = place.value"
        );
        self.chosen(&from, &self.unless_past(who))
    }

    /// The `keys` with the first rows of each by an index, as `first`: as many as would make the page alone.
    fn first_of_each(&self, keys: &str, index: Index, key: &str) -> String {
        format!(
            "{keys} CROSS JOIN json_each((SELECT json_group_array(seq) FROM (
                SELECT c.seq FROM commands c INDEXED BY {} WHERE {} AND {key} ORDER BY {} LIMIT ?5 + ?6))) first",
            index.name(),
            self.filters("me.workspace_id", index),
            self.order()
        )
    }

    /// The objects of a page, whose rows are chosen from the `first` ones.
    fn chosen_first(&self, first: &str, condition: &str) -> String {
        let from = format!("me CROSS JOIN {first} CROSS JOIN commands c ON c.seq = first.value");
        self.chosen(&from, &self.unless_past(condition))
    }

    /// Selects the rows of a page in an order that only the whole workspace has an index for: from the first of the workspace, as
    /// many as `window` tells, if these make the page; or else as `far` does.
    fn near_or_far(&self, window: &str, more: &str, far: &str) -> String {
        let (index, order) = (Index::Moment(self.moment()), self.order());
        let (name, filters) = (index.name(), self.filters("me.workspace_id", index));
        format!(
            "WITH near AS MATERIALIZED (SELECT (SELECT json_group_array(seq) FROM (
                SELECT c.seq FROM (SELECT c.* FROM commands c INDEXED BY {name} WHERE c.workspace_id = me.workspace_id
                    ORDER BY {order} LIMIT {window}) c
                WHERE {filters}{more} LIMIT ?5 + ?6)) AS rows)
             SELECT place.value AS seq FROM near CROSS JOIN json_each(iif(json_array_length(near.rows) = ?5 + ?6, near.rows,
                (SELECT json_group_array(seq) FROM ({far})))) place"
        )
    }

    /// SQL for the query on command_texts.
    fn query(&self) -> String {
        let words = self.words.as_deref().unwrap_or("'[]'");
        let (any_server, any_named) = (Marker::Server.any("n.number"), Marker::Server.any("named.number"));
        let any_requester = Marker::Requester.any("u.id");
        let none = || "''".to_owned();
        let of_all = self.server.as_ref().map_or_else(none, |server| {
            format!(
                "(SELECT format(' AND server:(%s)', {any_server}) FROM command_servers n
                  WHERE n.workspace_id = me.workspace_id AND n.server_id = {server})"
            )
        });
        let of_some = format!(
            "format(' AND (server:(%s) OR server:(%s) AND requester:(%s))', (SELECT {any_server} FROM {}),
                (SELECT {any_server} FROM {}), {})",
            self.servers_of_some(true),
            self.servers_of_some(false),
            Marker::Requester.phrase("me.user_id")
        );
        let of_requester = self.requester.as_ref().map_or_else(none, |requester| {
            format!(
                "(SELECT format(' AND requester:(%s)', {any_requester}) FROM users u
                  WHERE u.workspace_id = me.workspace_id AND u.id = {requester})"
            )
        });
        format!(
            "format('%s%s%s',
                (SELECT group_concat(format('(%s OR server:(%s) OR requester:(%s))', w.value ->> 'query',
                    (SELECT {any_named} FROM (
                        SELECT n.number FROM servers s INDEXED BY servers_by_name
                        CROSS JOIN command_servers n ON n.workspace_id = s.workspace_id AND n.server_id = s.id
                        WHERE s.workspace_id = me.workspace_id AND instr(lower(s.name), w.value ->> 'name') > 0
                        UNION ALL
                        SELECT n.number FROM command_servers n INDEXED BY command_servers_by_server
                        WHERE n.workspace_id = me.workspace_id AND instr(lower(n.name), w.value ->> 'name') > 0
                        AND NOT EXISTS (SELECT 1 FROM servers s
                            WHERE s.id = n.server_id AND s.workspace_id = n.workspace_id)) named),
                    (SELECT {any_requester} FROM users u
                     WHERE u.workspace_id = me.workspace_id AND instr(lower(u.username), w.value ->> 'name') > 0)),
                    ' AND ') FROM json_each({words}) w), iif({REACHES_ALL}, {of_all}, {of_some}), {of_requester})"
        )
    }

    // How many items there are.

    fn count(&self) -> String {
        if self.words.is_some() {
            return self.count_found();
        }
        let of_some = if self.requester.is_some() && self.server.is_none() {
            let filters = self.filters("me.workspace_id", Index::Requester);
            format!(
                "(SELECT count(*) FROM commands c INDEXED BY commands_by_requester WHERE {filters} AND {ON_REACHED})"
            )
        } else {
            let rows = "reached r CROSS JOIN commands c INDEXED BY commands_by_server
                 ON c.server_id = r.id AND c.workspace_id = me.workspace_id WHERE";
            let (of_server, filters) = (self.of_server(), self.filters("me.workspace_id", Index::Server));
            let whole = format!("{rows} r.is_whole{of_server}");
            let whole = self.count_by_server(&self.servers_of_some(true), &whole);
            let own = format!("NOT r.is_whole AND c.requested_by = me.user_id{of_server} AND {filters}");
            format!("({whole} + (SELECT count(*) FROM {rows} {own}))")
        };
        format!("iif({REACHES_ALL}, {}, {of_some})", self.count_of_all())
    }

    /// Counts without words, for those who reach all servers.
    fn count_of_all(&self) -> String {
        match &self.server {
            Some(server) => self.count_by_server(
                &self.servers_of_all(server),
                &format!(
                    "commands c INDEXED BY commands_by_server
                     WHERE c.workspace_id = me.workspace_id AND c.server_id = {server}"
                ),
            ),
            None => self.tallied_of_all().unwrap_or_else(|| self.counted_of_all()),
        }
    }

    /// Counts by the index of lines.
    fn count_found(&self) -> String {
        let CommandList { shell, requested_by_isnull, is_scheduled, .. } = self.list;
        let is_all = self.inexact_words.is_empty()
            && self.plain_filters.is_empty()
            && shell.is_none()
            && requested_by_isnull.is_none()
            && is_scheduled.is_none();
        let (rows, filters) = if is_all {
            (String::new(), String::new())
        } else {
            let filters = self.more_filters("me.workspace_id", false);
            (format!(" CROSS JOIN commands c ON {IS_OF_TEXT}"), format!(" AND {filters}"))
        };
        format!(
            "((SELECT count(*) FROM command_texts t{rows} WHERE {}{filters}) + (SELECT count(*) FROM long))",
            matches("(SELECT query FROM asked)", "me.workspace_id")
        )
    }

    /// The rows of `command_servers n` of one server, for those who reach all.
    fn servers_of_all(&self, server: &str) -> String {
        format!("command_servers n WHERE n.workspace_id = me.workspace_id AND n.server_id = {server}")
    }

    /// The rows of `command_servers n` of the servers that the caller reaches, or of the one of the list: of those of which all
    /// commands are seen, or of the others.
    fn servers_of_some(&self, are_whole: bool) -> String {
        let are_whole = if are_whole { "r.is_whole" } else { "NOT r.is_whole" };
        format!(
            "reached r CROSS JOIN command_servers n ON n.workspace_id = me.workspace_id AND n.server_id = r.id
             WHERE {are_whole}{}",
            self.of_server()
        )
    }

    /// Counts by server: from the counters where there is one, or else one by one. `servers` gives rows of
    /// `command_servers n`, `rows` those of `commands c`; both end with a condition.
    fn count_by_server(&self, servers: &str, rows: &str) -> String {
        let tally = |what: &str| tally(what, servers);
        let CommandList { shell, requested_by, requested_by_isnull, is_scheduled, words, .. } = self.list;
        let departed =
            format!("iif(EXISTS ({DEPARTED}), (SELECT count(*) FROM {rows} AND c.requested_by IN ({DEPARTED})), 0)");
        match (shell, requested_by_isnull, is_scheduled) {
            _ if requested_by.is_some() || !words.is_empty() || !self.plain_filters.is_empty() => None,
            (None, None, None) => Some(tally("n.total")),
            (Some(Shell::Internal), None, None) => Some(tally("n.internal")),
            (Some(Shell::System), None, None) => Some(tally("n.total - n.internal")),
            (None, Some(true), None) => Some(format!("({} + {departed})", tally("n.nobody"))),
            (None, Some(false), None) => Some(format!("({} - {departed})", tally("n.total - n.nobody"))),
            (None, None, Some(false)) => {
                Some(format!("({} - (SELECT count(*) FROM {rows} AND {PLANNED}))", tally("n.total")))
            }
            _ => None,
        }
        .unwrap_or_else(|| {
            let filters = self.filters("me.workspace_id", Index::Server);
            format!("(SELECT count(*) FROM {rows} AND {filters})")
        })
    }

    /// Counts one by one, for those who reach all servers.
    fn counted_of_all(&self) -> String {
        // In whichever order: the way by a filter.
        let index = match self.index() {
            Index::Moment(_) if self.list.requested_by_isnull == Some(false) => Index::Requested,
            Index::Moment(_) if self.list.shell.is_some() => Index::Shell,
            Index::Moment(_) => Index::Moment(Moment::Scheduled),
            index => index,
        };
        let (name, filters) = (index.name(), self.filters("me.workspace_id", index));
        if self.is_of_nobody() {
            return format!(
                "(SELECT count(*) FROM (SELECT NULL AS user_id UNION ALL {DEPARTED}) nobody
                 CROSS JOIN commands c INDEXED BY {name} ON c.requested_by IS nobody.user_id WHERE {filters})"
            );
        }
        format!("(SELECT count(*) FROM commands c INDEXED BY {name} WHERE {filters})")
    }

    /// The number from the counters, for those who reach all servers; `None` where there is no counter of it.
    fn tally_of_all(&self) -> Option<String> {
        let CommandList { shell, requested_by, requested_by_isnull, is_scheduled, .. } = self.list;
        match self.server {
            _ if !self.plain_filters.is_empty() => None,
            None => self.tallied_of_all(),
            Some(_) if shell.is_some() || requested_by.is_some() => None,
            Some(_) if requested_by_isnull.is_some() || is_scheduled.is_some() => None,
            Some(_) => self.tally_of(Index::Server),
        }
    }

    /// The same where the list is not of a server.
    fn tallied_of_all(&self) -> Option<String> {
        let CommandList { shell, requested_by_isnull, is_scheduled, words, .. } = self.list;
        let all = of_kind("shell", "true");
        // The empty key is nobody's; those who are gone count as nobody.
        let nobody = of_kind(
            "requester",
            "n.key IN (SELECT '' UNION ALL
             SELECT CAST(d.user_id AS TEXT) FROM departed_users d WHERE d.workspace_id = me.workspace_id)",
        );
        match (shell, self.requester.is_some(), requested_by_isnull, is_scheduled) {
            _ if !words.is_empty() || !self.plain_filters.is_empty() => None,
            (None, false, None, None) => Some(all),
            (Some(shell), false, None, None) => Some(of_kind("shell", &format!("n.key = '{}'", shell.as_str()))),
            (None, true, None | Some(false), None) => self.tally_of(Index::Requester),
            (None, false, Some(true), None) => Some(nobody),
            (None, false, Some(false), None) => Some(format!("({all} - {nobody})")),
            (None, false, None, Some(true)) => Some(ALL_PLANNED.to_owned()),
            (None, false, None, Some(false)) => Some(format!("({all} - {ALL_PLANNED})")),
            _ => None,
        }
    }

    /// The number of commands, from the counters, of the server or of the requester that an index is gone through for.
    fn tally_of(&self, index: Index) -> Option<String> {
        match index {
            Index::Server => self.server.as_ref().map(|server| tally("n.total", &self.servers_of_all(server))),
            Index::Requester => self.requester.as_ref().map(|requester| {
                let key = format!(
                    "n.key = (SELECT CAST(u.id AS TEXT) FROM users u
                     WHERE u.workspace_id = me.workspace_id AND u.id = {requester})"
                );
                of_kind("requester", &key)
            }),
            _ => None,
        }
    }
}

/// The condition that a row of `commands c` is one that a caller sees who does not reach all servers.
const ON_REACHED: &str = "c.server_id IN (SELECT id FROM reached) AND (c.requested_by = (SELECT user_id FROM me)
    OR c.server_id NOT IN (SELECT id FROM reached WHERE NOT is_whole))";

/// The condition that a row of `commands c` is scheduled for later than now.
const PLANNED: &str = "c.scheduled_at > ?3 AND c.scheduled_at > c.added_at";

/// The condition that a row of `commands c` is in one of the states that command objects show.
fn of_states(states: &[&str]) -> String {
    let names: Vec<String> = states.iter().map(|state| format!("'{state}'")).collect();
    format!("{} IN ({})", farhand_domain::command_object::state_sql("?3"), names.join(", "))
}

/// How many of a workspace's commands are that. What came due since the horizon was moved is not later than now any more;
/// a clock may also be behind it.
const ALL_PLANNED: &str = "coalesce((SELECT h.total
    - (SELECT count(*) FROM commands c INDEXED BY commands_planned WHERE c.workspace_id = h.workspace_id
       AND c.scheduled_at > c.added_at AND c.scheduled_at > h.moment AND c.scheduled_at <= ?3)
    + (SELECT count(*) FROM commands c INDEXED BY commands_planned WHERE c.workspace_id = h.workspace_id
       AND c.scheduled_at > c.added_at AND c.scheduled_at > ?3 AND c.scheduled_at <= h.moment)
    FROM command_horizons h WHERE h.workspace_id = me.workspace_id), 0)";

/// SQL for how many of the workspace's commands are looked at in the list's order, where a filter finds as many as `tally`
/// tells. These are mostly spread among the others; to look at half as many costs half as much as to sort them.
fn window(tally: &str) -> String {
    format!("(SELECT iif({tally} > {WINDOW}, max({WINDOW}, {tally} / 2), 0) FROM me)")
}

/// SQL for a sum over rows of `command_servers n`.
fn tally(what: &str, servers: &str) -> String {
    format!("coalesce((SELECT sum({what}) FROM {servers}), 0)")
}

/// SQL for a sum over the rows of `command_counts n` of a kind.
fn of_kind(kind: &str, keys: &str) -> String {
    format!(
        "coalesce((SELECT sum(n.total) FROM command_counts n
         WHERE n.workspace_id = me.workspace_id AND n.kind = '{kind}' AND {keys}), 0)"
    )
}

/// The condition that a row of `command_texts t` is one that a query finds, of a workspace.
fn matches(query: &str, workspace: &str) -> String {
    // No query at all would be an error. This one finds nothing, and reads nothing.
    format!(
        "t.command_texts MATCH coalesce({query}, 'wide:\"none\"')
         AND t.rowid BETWEEN {workspace} << 40 AND ({workspace} + 1 << 40) - 1"
    )
}

/// The condition that a row of `commands c` is the one of a row of `command_texts t`. See the migration.
const IS_OF_TEXT: &str = "c.seq = (t.rowid & (1 << 40) - 1)";

/// All conditions together; not one after the other, which is as deep as they are many.
fn all_of(conditions: &[String]) -> String {
    if conditions.len() <= 2 {
        return conditions.join(" AND ");
    }
    let (left, right) = conditions.split_at(conditions.len() / 2);
    format!("({}) AND ({})", all_of(left), all_of(right))
}

/// The items of two ways, of which one gives none.
fn one_of(ways: [&str; 2]) -> String {
    format!("SELECT body FROM ({}) UNION ALL SELECT body FROM ({})", ways[0], ways[1])
}

/// The condition that a row of `commands c` has a word that the index of lines does not find exactly: by its pattern in the
/// line, and as it stands in names.
fn inexact_word(glob: &str, name: &str) -> String {
    format!(
        "(c.line GLOB {glob}
          OR c.server_id || c.server_name IN (SELECT n.server_id || n.name FROM me
            CROSS JOIN command_servers n ON n.workspace_id = me.workspace_id
            LEFT JOIN servers s ON s.id = n.server_id AND s.workspace_id = n.workspace_id
            WHERE instr(lower(coalesce(s.name, n.name)), {name}) > 0)
          OR c.requested_by IN (SELECT u.id FROM me CROSS JOIN users u ON u.workspace_id = me.workspace_id
            WHERE instr(lower(u.username), {name}) > 0))"
    )
}

/// The condition that a row of `commands c` has each of an array's words, which have a `name`; `in_line` is the condition that
/// the line has the word `w`. It looks at one row after the other.
fn all_words(words: &str, in_line: &str) -> String {
    format!(
        "NOT EXISTS (SELECT 1 FROM json_each({words}) w
          WHERE NOT {in_line}
          AND NOT EXISTS (SELECT 1 FROM command_servers n
            LEFT JOIN servers s ON s.id = n.server_id AND s.workspace_id = n.workspace_id
            WHERE n.workspace_id = c.workspace_id AND n.server_id = c.server_id AND n.name = c.server_name
            AND instr(lower(coalesce(s.name, n.name)), w.value ->> 'name') > 0)
          AND NOT EXISTS (SELECT 1 FROM users u WHERE u.id = c.requested_by AND u.workspace_id = c.workspace_id
            AND instr(lower(u.username), w.value ->> 'name') > 0))"
    )
}

/// The condition that a line has a word of ASCII as the index of lines has it: two letters outside of ASCII are one of ASCII
/// there, the sign for kelvin and the long s.
const HAS_ASCII: &str =
    "instr(lower(replace(replace(c.line, char(8490), 'k'), char(383), 's')), w.value ->> 'name') > 0";

/// The condition that a line has the word `w`, whose pattern is there for a word that is not all ASCII.
const HAS_WORD: &str = "iif(w.value ->> 'glob' IS NULL, instr(lower(c.line), w.value ->> 'line') > 0,
    c.line GLOB (w.value ->> 'glob'))";

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Sql {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        let query: Vec<_> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        sql(&CommandList::of(&query).unwrap(), 0, "c.id")
    }

    #[test]
    fn nothing_of_a_request_is_in_the_statement() {
        let odd = "search=Robert');-- \"%_* x' q&server=01936d3e-7a00-7000-8000-000000000000&requested_by=77";
        let Sql { tables, items, parameters, .. } = of(odd);
        for secret in ["Robert", "%_*", "x'", "01936d3e", "77"] {
            assert!(!items.contains(secret) && !tables.contains(secret), "{secret}");
        }
        // Server, requester, the words for the index and for long lines, and two for each of the two that it does not find exactly.
        assert_eq!(parameters.len(), 8);
    }

    #[test]
    fn sqlite_keeps_the_prepared_statement() {
        for text in ["", "search=deploy", "search=a", "requested_by_isnull=true", "ordering=acked_at&requested_by=1"] {
            for offset in [0, 15, FAR, DEEP] {
                let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
                let query: Vec<_> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                let Sql { tables, items, .. } = sql(&CommandList::of(&query).unwrap(), offset, "c.id");
                for limit in format!("{tables} {items}").split("LIMIT ").skip(1) {
                    let is_bare = limit.starts_with('?') && limit.split_whitespace().nth(1) != Some("+");
                    assert!(!is_bare, "{text} from {offset}: LIMIT {limit}");
                }
            }
        }
    }

    #[test]
    fn the_largest_statement_is_within_the_platforms_limits() {
        let short: Vec<String> = ('a'..='z').map(String::from).collect();
        let everything = format!(
            "search={}&server=01936d3e-7a00-7000-8000-000000000000&requested_by=77&shell=internal&\
             requested_by_isnull=true&is_scheduled=true&ordering=-acked_at,added_at,scheduled_at,handled_at,delivered_at",
            short.join(" ")
        );
        let without_server = everything.replace("server=", "other=");
        let without_requester = without_server.replace("requested_by=", "other=");
        for text in [everything, without_server, without_requester] {
            let Sql { tables, items, parameters, .. } = of(&text);
            // What stands around them is some 5,000 bytes, and six parameters.
            assert!(tables.len() + items.len() < 90_000, "{} {}", tables.len(), items.len());
            assert!((32..=94).contains(&parameters.len()), "{}", parameters.len());
        }
    }
}
