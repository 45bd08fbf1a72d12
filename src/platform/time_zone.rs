//! Time zones, from the runtime (`Intl.DateTimeFormat`). So the bundle contains no time zone data.

use farhand_domain::schedule::cron::Expression;
use farhand_domain::schedule::next::next_due;
use farhand_domain::schedule::zone::{self, Zone};
use farhand_domain::time::Timestamp;
use wasm_bindgen::prelude::wasm_bindgen;

#[wasm_bindgen(module = "/src/platform/time_zone.js")]
extern "C" {
    #[wasm_bindgen(js_name = isTimeZone)]
    fn is_time_zone(zone: &str) -> bool;

    #[wasm_bindgen(js_name = offsetAt)]
    fn offset_at(zone: &str, moment: f64) -> f64;
}

/// A time zone that the runtime knows.
#[derive(Clone, Debug)]
pub struct TimeZone(String);

impl TimeZone {
    /// The zone with an IANA name, if it exists.
    pub fn find(name: &str) -> Option<Self> {
        (zone::is_name(name) && is_time_zone(name)).then(|| Self(name.to_owned()))
    }
}

impl Zone for TimeZone {
    fn offset_at(&self, moment: i64) -> i64 {
        offset_at(&self.0, moment as f64) as i64
    }
}

/// A function that returns the first due time of a cron expression after a moment. Returns `None`
/// if the expression or the time zone is invalid.
pub fn due_times(
    cron: &str,
    timezone: &str,
) -> Option<impl Fn(Timestamp) -> Option<Timestamp> + use<>> {
    let (expression, zone) = (Expression::parse(cron).ok()?, TimeZone::find(timezone)?);
    Some(move |after| next_due(&expression, &zone, after))
}
