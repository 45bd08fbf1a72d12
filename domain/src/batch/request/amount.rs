//! Numbers of targets, as a request gives them.

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::http::fields::{Fields, as_integer};

/// A number of targets, or a percentage of all targets. In JSON: `5` or `"10%"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// A number of targets.
    Targets(u32),
    /// A percentage of all targets, at most 100.
    Percent(u32),
}

/// Reads a percentage such as `25%`: digits without a sign.
fn percent(text: &str) -> Option<u32> {
    let digits = text.strip_suffix('%')?;
    let is_number = (1..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten().filter(|percent| *percent <= 100)
}

impl Amount {
    /// Reads a field that may be missing or null: a number in `range`, or a percentage from
    /// `min_percent` to 100.
    pub(super) fn read(
        fields: &mut Fields,
        name: &'static str,
        range: RangeInclusive<u32>,
        min_percent: u32,
    ) -> Option<Self> {
        let amount = match fields.value(name)? {
            Value::String(text) => {
                percent(text).filter(|percent| *percent >= min_percent).map(Self::Percent)
            }
            value => as_integer(value)
                .and_then(|number| u32::try_from(number).ok())
                .filter(|number| range.contains(number))
                .map(Self::Targets),
        };
        if amount.is_none() {
            let (min, max) = range.into_inner();
            let message = format!(
                "Enter a whole number from {min} to {max}, or a percentage from \"{min_percent}%\" to \"100%\"."
            );
            fields.reject(name, message);
        }
        amount
    }

    /// The number of targets, of `total`. Percentages are rounded up.
    pub fn rounded_up(self, total: usize) -> u32 {
        match self {
            Self::Targets(number) => number,
            Self::Percent(percent) => share(percent, total, 99),
        }
    }

    /// The number of targets, of `total`. Percentages are rounded down.
    pub fn rounded_down(self, total: usize) -> u32 {
        match self {
            Self::Targets(number) => number,
            Self::Percent(percent) => share(percent, total, 0),
        }
    }
}

/// A percentage of `total`, with `rounding` hundredths added before the division.
fn share(percent: u32, total: usize, rounding: u64) -> u32 {
    let share = (total as u64 * u64::from(percent) + rounding) / 100;
    u32::try_from(share).unwrap_or(u32::MAX)
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Targets(number) => write!(f, "{number}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Targets(number) => serializer.serialize_u32(*number),
            Self::Percent(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => percent(&text)
                .map(Self::Percent)
                .ok_or_else(|| D::Error::custom("not a percentage")),
            value => u32::deserialize(value).map(Self::Targets).map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_amount_is_a_number_or_a_percentage() {
        let read = |value: Value| {
            let mut fields = Fields::from_json(json!({"x": value}).to_string().as_bytes()).unwrap();
            let amount = Amount::read(&mut fields, "x", 1..=5_000, 1);
            (amount, fields.finish().is_ok())
        };
        for (value, amount) in [
            (json!(1), Amount::Targets(1)),
            (json!(5_000), Amount::Targets(5_000)),
            (json!(7.0), Amount::Targets(7)),
            (json!("1%"), Amount::Percent(1)),
            (json!("100%"), Amount::Percent(100)),
        ] {
            assert_eq!(read(value.clone()), (Some(amount), true), "{value}");
            let stored: Amount = serde_json::from_value(json!(amount)).unwrap();
            assert_eq!(stored, amount);
        }
        assert_eq!(read(json!(null)), (None, true));
        for bad in [
            json!(0),
            json!(5_001),
            json!(-1),
            json!(1.5),
            json!("0%"),
            json!("101%"),
            json!("50"),
            json!("%"),
            json!("+5%"),
            json!("5 %"),
            json!("0x5%"),
            json!([]),
            json!(true),
        ] {
            assert_eq!(read(bad.clone()), (None, false), "{bad}");
        }
    }

    #[test]
    fn percentages_are_rounded() {
        assert_eq!((Amount::Percent(1).rounded_up(1), Amount::Percent(1).rounded_down(1)), (1, 0));
        assert_eq!(
            (Amount::Percent(10).rounded_up(25), Amount::Percent(10).rounded_down(25)),
            (3, 2)
        );
        assert_eq!(
            (Amount::Percent(50).rounded_up(4), Amount::Percent(50).rounded_down(4)),
            (2, 2)
        );
        assert_eq!((Amount::Targets(7).rounded_up(3), Amount::Targets(7).rounded_down(3)), (7, 7));
    }

    proptest! {
        #[test]
        fn a_rounded_percentage_is_next_to_the_exact_share(percent in 1..=100_u32, total in 1..=5_000_usize) {
            let (up, down) = (Amount::Percent(percent).rounded_up(total), Amount::Percent(percent).rounded_down(total));
            let exact = f64::from(percent) * total as f64 / 100.0;
            prop_assert!(up >= 1 && up <= total as u32 && down <= up && up - down <= 1);
            prop_assert!(f64::from(down) <= exact + 1e-9 && exact <= f64::from(up) + 1e-9);
        }
    }
}
