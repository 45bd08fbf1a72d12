//! A slow and simple reference: finds due times by a walk, minute by minute.

use std::collections::BTreeSet;

use farhand_domain::schedule::zone::Zone;

const DAY: i64 = 24 * 3600;

#[derive(Clone, Debug)]
pub enum Hours {
    Every,
    /// `*/n`
    Step(u32),
    Some(BTreeSet<u32>),
}

#[derive(Clone, Debug)]
pub enum DaysOfMonth {
    Any,
    Step(u32),
    Some(BTreeSet<u32>),
    Last,
}

#[derive(Clone, Debug)]
pub enum DaysOfWeek {
    Any,
    Some(BTreeSet<u32>),
    /// The nth of this weekday in the month.
    Nth(u32, u32),
    Last(u32),
}

/// The meaning of an expression, in a form that needs no parser.
#[derive(Clone, Debug)]
pub struct Meaning {
    pub minutes: BTreeSet<u32>,
    pub hours: Hours,
    pub days: DaysOfMonth,
    pub months: Option<BTreeSet<u32>>,
    pub weekdays: DaysOfWeek,
}

fn list(values: &BTreeSet<u32>) -> String {
    values.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

impl Meaning {
    pub fn text(&self) -> String {
        let hours = match &self.hours {
            Hours::Every => "*".to_owned(),
            Hours::Step(step) => format!("*/{step}"),
            Hours::Some(hours) => list(hours),
        };
        let days = match &self.days {
            DaysOfMonth::Any => "*".to_owned(),
            DaysOfMonth::Step(step) => format!("*/{step}"),
            DaysOfMonth::Some(days) => list(days),
            DaysOfMonth::Last => "L".to_owned(),
        };
        let months = self.months.as_ref().map_or("*".to_owned(), list);
        let weekdays = match &self.weekdays {
            DaysOfWeek::Any => "*".to_owned(),
            DaysOfWeek::Some(days) => list(days),
            DaysOfWeek::Nth(day, nth) => format!("{day}#{nth}"),
            DaysOfWeek::Last(day) => format!("{day}L"),
        };
        format!("{} {hours} {days} {months} {weekdays}", list(&self.minutes))
    }

    fn is_elapsed(&self) -> bool {
        !matches!(self.hours, Hours::Some(_))
    }

    fn matches_day(&self, days_since_1970: i64) -> bool {
        let (year, month, day) = civil(days_since_1970);
        if self.months.as_ref().is_some_and(|months| !months.contains(&month)) {
            return false;
        }
        let next_month = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
        let is_within = |ahead: i64| {
            let (year, month, _) = civil(days_since_1970 + ahead);
            (year, month) != next_month
        };
        // 1970-01-01 was a Thursday.
        let weekday = (days_since_1970 + 4).rem_euclid(7) as u32;
        let by_month = match &self.days {
            DaysOfMonth::Any => None,
            DaysOfMonth::Step(step) => Some((day - 1).is_multiple_of(*step)),
            DaysOfMonth::Some(days) => Some(days.contains(&day)),
            DaysOfMonth::Last => Some(!is_within(1)),
        };
        let by_week = match &self.weekdays {
            DaysOfWeek::Any => None,
            DaysOfWeek::Some(days) => Some(days.contains(&weekday)),
            DaysOfWeek::Nth(of, nth) => Some(weekday == *of && day.div_ceil(7) == *nth),
            DaysOfWeek::Last(of) => Some(weekday == *of && !is_within(7)),
        };
        match (by_month, by_week) {
            (Some(by_month), Some(by_week)) => by_month || by_week,
            (by_month, by_week) => by_month.or(by_week).unwrap_or(true),
        }
    }

    fn matches_time(&self, minute_of_day: i64) -> bool {
        let (hour, minute) = (minute_of_day as u32 / 60, minute_of_day as u32 % 60);
        let is_hour = match &self.hours {
            Hours::Every => true,
            Hours::Step(step) => hour.is_multiple_of(*step),
            Hours::Some(hours) => hours.contains(&hour),
        };
        is_hour && self.minutes.contains(&minute)
    }

    /// The due times from one moment to another. Both are whole minutes.
    pub fn walk(&self, zone: &impl Zone, from: i64, until: i64) -> Vec<i64> {
        let times: Vec<bool> = (0..24 * 60).map(|minute| self.matches_time(minute)).collect();
        let mut day = (i64::MIN, false);
        let mut matches = |reading: i64| {
            if !times[(reading.rem_euclid(DAY) / 60) as usize] {
                return false;
            }
            let today = reading.div_euclid(DAY);
            if day.0 != today {
                day = (today, self.matches_day(today));
            }
            day.1
        };
        let mut due = vec![];
        // Local times that were reached before `from` are not due again.
        let mut highest = (from - 2 * DAY..from)
            .step_by(60)
            .map(|moment| moment + zone.offset_at(moment))
            .max()
            .unwrap();
        for moment in (from..=until).step_by(60) {
            let reading = moment + zone.offset_at(moment);
            let is_due = if self.is_elapsed() {
                matches(reading)
            } else {
                // The present local time, and local times that the clock has just skipped.
                (highest + 60..=reading).step_by(60).any(&mut matches)
            };
            highest = highest.max(reading);
            if is_due {
                due.push(moment);
            }
        }
        due
    }
}

/// Year, month and day of a number of days since 1970 (Howard Hinnant's `civil_from_days`).
fn civil(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year + era * 400 + i64::from(month <= 2), month as u32, day as u32)
}
