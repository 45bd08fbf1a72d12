//! Messages of agents: reading a message, writing it and reading it again gives the same message.

use std::fmt::Debug;

use farhand_domain::agent::wire::{Chunk, Fin, MessageFromAgent, HostFacts, MessageToAgent};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    round_trip::<MessageToAgent>(text);
    round_trip::<MessageFromAgent>(text);
    round_trip::<Chunk>(text);
    round_trip::<Fin>(text);
    let facts =
        [HostFacts::read(text).ok(), HostFacts::read_category("info", text), HostFacts::read_category("os", text)];
    for facts in facts.into_iter().flatten() {
        for text in [&facts.version, &facts.platform, &facts.os_name, &facts.os_version].into_iter().flatten() {
            assert!(text.chars().count() <= 200 && !text.contains('\0'), "{text:?}");
        }
        for count in [facts.cpu_logical_cores, facts.physical_memory].into_iter().flatten() {
            assert!((0..=1 << 53).contains(&count), "{count}");
        }
        assert!(facts.load.is_none_or(f64::is_finite));
        round_trip::<HostFacts>(&serde_json::to_string(&facts).expect("facts are JSON"));
    }
    assert_eq!(HostFacts::read_category("other", text), None);
}

fn round_trip<T: DeserializeOwned + Serialize + PartialEq + Debug>(text: &str) {
    let Ok(read) = serde_json::from_str::<T>(text) else { return };
    let written = serde_json::to_value(&read).expect("a message is JSON");
    let again: T = serde_json::from_str(&written.to_string()).expect("a written message can be read");
    let again = serde_json::to_value(&again).expect("a message is JSON");
    assert_eq!(without_fractions(again), without_fractions(written));
}

/// Removes fractions, because their last digit may differ after a round trip.
fn without_fractions(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => Value::Null,
        Value::Array(items) => items.into_iter().map(without_fractions).collect(),
        Value::Object(members) => members.into_iter().map(|(name, value)| (name, without_fractions(value))).collect(),
        other => other,
    }
}
