//! The fields of the API that tables and exit codes need. A test compares them with
//! `docs/openapi.yaml`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Defines structs whose fields the test can compare with the document.
macro_rules! api_types {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Deserialize)]
        pub struct $name { $(pub $field: $type),* }

        #[cfg(test)]
        impl documented::Documented for $name {
            fn check(schema: &documented::Schema<'_>) {
                $(<$type>::check(&schema.field(stringify!($field).trim_start_matches("r#")));)*
            }
        }
    )*};
}

api_types! {
    /// A page of a list. Items are kept as JSON, so that `--output json` shows all fields.
    Page { count: i64, next: Option<String>, results: Vec<Value> }

    LoginToken { token: String }

    User {
        id: i64,
        username: String,
        email: String,
        is_active: bool,
        is_staff: bool,
        is_superuser: bool,
        last_login: Option<String>,
    }

    UserSummary { username: String }

    Group { id: i64, name: String, display_name: String, num_members: i64, servers: Vec<String> }

    Server {
        id: String,
        name: String,
        is_connected: bool,
        registration: String,
        remote_ip: Option<String>,
        os_name: Option<String>,
        os_version: Option<String>,
        agent_version: Option<String>,
        policy: Option<HostPolicy>,
        load: Option<f64>,
        last_seen_at: Option<String>,
        labels: BTreeMap<String, String>,
    }

    HostPolicy { mode: String }

    Status { message: String }

    Command {
        id: String,
        line: String,
        username: String,
        server_name: String,
        requested_by: Option<UserSummary>,
        state: String,
        status: Status,
        success: Option<bool>,
        exit_code: Option<i64>,
        elapsed_time: Option<f64>,
        scheduled_at: String,
    }

    Chunk { content: String }

    /// The field of a stream's `end` event that a command does not have.
    CommandEnd { output_truncated: bool }

    /// The number of targets by state.
    BatchCounts {
        total: i64,
        pending: i64,
        queued: i64,
        sent: i64,
        running: i64,
        success: i64,
        failed: i64,
        cancelled: i64,
        expired: i64,
        stuck: i64,
        skipped: i64,
    }

    Batch {
        id: String,
        name: String,
        state: String,
        line: String,
        username: Option<String>,
        max_concurrency: i64,
        max_errors: Option<i64>,
        requested_by: Option<UserSummary>,
        scheduled_at: String,
        finished_at: Option<String>,
        counts: BatchCounts,
        stopped_by: Option<String>,
    }

    BatchTarget {
        server: String,
        server_name: String,
        command: Option<String>,
        state: String,
        exit_code: Option<i64>,
        elapsed_time: Option<f64>,
        reason: Option<String>,
    }

    /// An event of a batch's stream.
    BatchChange { server: String, command: Option<String>, state: String, exit_code: Option<i64> }

    TargetSummary { server_name: String }

    BatchOutput {
        count: i64,
        state: String,
        exit_code: Option<i64>,
        result: Option<String>,
        result_truncated: bool,
        targets: Vec<TargetSummary>,
    }

    PlannedTarget { server_name: String, username: String, is_connected: bool }

    BatchDryRun { total: i64, targets: Vec<Value> }

    ScheduleRun {
        due_at: String,
        started_at: Option<String>,
        batch: Option<String>,
        outcome: String,
        reason: Option<String>,
    }

    Schedule {
        id: String,
        name: String,
        cron: String,
        timezone: String,
        targets: Value,
        line: Option<String>,
        argv: Option<Vec<String>>,
        enabled: bool,
        misfire: String,
        overlap: String,
        owner: Option<UserSummary>,
        next_runs: Vec<String>,
        last_run: Option<ScheduleRun>,
    }

    ScriptParameter { name: String, r#type: String, required: bool }

    Script {
        id: String,
        name: String,
        description: String,
        interpreter: String,
        body_bytes: i64,
        params: Vec<ScriptParameter>,
        version: i64,
        owner: Option<UserSummary>,
        updated_at: String,
    }

    /// The parameters of a version of a script.
    ScriptVersion { params: Vec<ScriptParameter> }

    ApiToken {
        id: String,
        name: String,
        enabled: bool,
        acl: Option<Value>,
        expires_at: Option<String>,
        last_used_at: Option<String>,
    }

    NewToken { id: String, name: String, key: Option<String>, expires_at: Option<String> }

    AclVerdict { allowed: bool, reason: Option<String> }

    Actor { name: Option<String> }

    /// The resource that an audit event is about.
    Object { id: Option<String>, name: Option<String> }

    AuditEvent {
        occurred_at: String,
        actor: Actor,
        action: String,
        object: Option<Object>,
        outcome: String,
        remote_ip: Option<String>,
    }

    BrokenEntry { link: i64, problem: String }

    AuditVerified {
        valid: bool,
        links: i64,
        unsealed: i64,
        first_broken: Option<BrokenEntry>,
        next_link: Option<i64>,
    }
}

#[cfg(test)]
mod documented {
    //! Compares types with schemas.

    use std::collections::BTreeMap;

    use serde_json::Value;

    /// A schema in the OpenAPI document.
    pub struct Schema<'a> {
        document: &'a Value,
        value: &'a Value,
        /// The name of the schema and of the field, for messages.
        path: String,
    }

    /// A type that reads values of a schema.
    pub trait Documented {
        /// # Panics
        /// If the schema allows values that the type cannot read.
        fn check(schema: &Schema<'_>);
    }

    impl<'a> Schema<'a> {
        pub fn named(document: &'a Value, name: &str) -> Self {
            let value = &document["components"]["schemas"][name];
            assert!(value.is_object(), "no schema {name}");
            Self { document, value, path: name.to_owned() }
        }

        fn at(&self, value: &'a Value, path: String) -> Self {
            let value = match value["$ref"].as_str() {
                Some(reference) => {
                    self.document.pointer(reference.trim_start_matches('#')).unwrap()
                }
                None => value,
            };
            Self { document: self.document, value, path }
        }

        pub fn field(&self, name: &str) -> Self {
            let path = format!("{}.{name}", self.path);
            let is_required =
                self.value["required"].as_array().unwrap().iter().any(|field| field == name);
            assert!(is_required, "{path} is not required");
            self.at(&self.value["properties"][name], path)
        }

        fn items(&self) -> Self {
            self.at(&self.value["items"], format!("{}[]", self.path))
        }

        /// The types that the schema allows, and the schema without null.
        fn types(&self) -> (Vec<&'a str>, Self) {
            let value: &'a Value = self.value;
            if let Some(choices) = value["anyOf"].as_array() {
                let (nulls, others): (Vec<_>, Vec<_>) =
                    choices.iter().partition(|choice| choice["type"] == "null");
                assert_eq!(others.len(), 1, "{}", self.path);
                let inner = self.at(others[0], self.path.clone());
                let (mut types, _) = inner.types();
                types.extend(nulls.iter().map(|_| "null"));
                return (types, inner);
            }
            let types = match &value["type"] {
                Value::String(name) => vec![name.as_str()],
                Value::Array(names) => names.iter().map(|name| name.as_str().unwrap()).collect(),
                _ if value["enum"].is_array() => {
                    let choices = value["enum"].as_array().unwrap().iter();
                    choices.map(|choice| if choice.is_null() { "null" } else { "string" }).collect()
                }
                other => panic!("{} has the type {other}", self.path),
            };
            (types, self.at(value, self.path.clone()))
        }

        fn expect(&self, allowed: &[&str]) {
            let (types, _) = self.types();
            for found in &types {
                assert!(allowed.contains(found), "{} has the types {types:?}", self.path);
            }
        }
    }

    macro_rules! scalars {
        ($($type:ty: $allowed:expr),*) => {$(
            impl Documented for $type {
                fn check(schema: &Schema<'_>) {
                    schema.expect(&$allowed);
                }
            }
        )*};
    }
    scalars!(String: ["string"], bool: ["boolean"], i64: ["integer"], f64: ["number", "integer"]);

    impl Documented for Value {
        fn check(_: &Schema<'_>) {}
    }

    impl<T: Documented> Documented for Vec<T> {
        fn check(schema: &Schema<'_>) {
            schema.expect(&["array"]);
            T::check(&schema.items());
        }
    }

    impl<T: Documented> Documented for BTreeMap<String, T> {
        fn check(schema: &Schema<'_>) {
            schema.expect(&["object"]);
            let values = &schema.value["additionalProperties"];
            T::check(&schema.at(values, format!("{}.*", schema.path)));
        }
    }

    impl<T: Documented> Documented for Option<T> {
        fn check(schema: &Schema<'_>) {
            let (types, inner) = schema.types();
            assert!(types.contains(&"null"), "{} is never null", schema.path);
            // If the schema has a list of types or of values, remove null from that list.
            let mut value = inner.value.clone();
            if let Some(Value::Array(types)) = value.get_mut("type") {
                types.retain(|name| name != "null");
            }
            if let Some(Value::Array(choices)) = value.get_mut("enum") {
                choices.retain(|choice| !choice.is_null());
            }
            let bare = Schema { document: schema.document, value: &value, path: inner.path };
            T::check(&bare);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::documented::{Documented, Schema};
    use super::*;

    fn document() -> Value {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.yaml");
        serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn all_fields_are_in_the_openapi_document_with_their_types() {
        let document = document();
        fn check<T: Documented>(document: &Value, names: &[&str]) {
            for name in names {
                T::check(&Schema::named(document, name));
            }
        }
        let pages = [
            "UserPage",
            "GroupPage",
            "ServerPage",
            "CommandPage",
            "ApiTokenPage",
            "AuditEventPage",
            "BatchPage",
            "BatchTargetPage",
            "BatchOutputPage",
            "SchedulePage",
            "ScheduleRunPage",
            "ScriptPage",
        ];
        check::<Page>(&document, &pages);
        check::<LoginToken>(&document, &["LoginToken"]);
        check::<User>(&document, &["User"]);
        check::<Group>(&document, &["Group"]);
        check::<Server>(&document, &["Server"]);
        check::<Command>(&document, &["Command", "CommandEnd"]);
        check::<Chunk>(&document, &["Chunk"]);
        check::<CommandEnd>(&document, &["CommandEnd"]);
        check::<Batch>(&document, &["Batch"]);
        check::<BatchTarget>(&document, &["BatchTarget"]);
        check::<BatchChange>(&document, &["BatchChange"]);
        check::<BatchOutput>(&document, &["BatchOutput"]);
        check::<BatchDryRun>(&document, &["BatchDryRun"]);
        check::<PlannedTarget>(&document, &["PlannedTarget"]);
        check::<Schedule>(&document, &["Schedule"]);
        check::<ScheduleRun>(&document, &["ScheduleRun"]);
        check::<Script>(&document, &["Script", "ScriptSummary"]);
        check::<ScriptVersion>(&document, &["ScriptVersion"]);
        check::<ApiToken>(&document, &["ApiToken"]);
        check::<NewToken>(&document, &["ApiTokenWithKey"]);
        check::<AclVerdict>(&document, &["AclVerdict"]);
        check::<AuditEvent>(&document, &["AuditEvent"]);
        check::<AuditVerified>(&document, &["AuditVerified"]);
    }

    #[test]
    #[should_panic(expected = "Server.remote_ip has the types")]
    fn a_type_that_may_be_null_must_be_optional() {
        let document = document();
        String::check(&Schema::named(&document, "Server").field("remote_ip"));
    }
}
