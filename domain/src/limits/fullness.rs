//! How full the D1 database of the cell is, and which requests it still accepts (contract 11.7).

use serde::Serialize;

use crate::error::{Code, Error, ErrorKind};
use crate::http::endpoints::Growth;
use crate::people::user::Rank;

/// The seconds in the header Retry-After. Old data is deleted hourly.
const RETRY_AFTER: u64 = 3_600;

/// How full the database is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fullness {
    /// Less than 80 % is used.
    Ok,
    /// At least 80 % is used.
    Filling,
    /// At least 95 % is used.
    Full,
}

impl Fullness {
    /// Of a database with `size` bytes, of which `max` are allowed.
    pub fn of(size: u64, max: u64) -> Self {
        let percent = u128::from(size) * 100 / u128::from(max.max(1));
        match percent {
            95.. => Self::Full,
            80.. => Self::Filling,
            _ => Self::Ok,
        }
    }

    /// The name in responses and in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Filling => "filling",
            Self::Full => "full",
        }
    }

    /// Checks a request of a caller with this rank.
    ///
    /// # Errors
    /// 503 `CELL_FULL`.
    pub fn require_room(self, growth: Growth, rank: Rank) -> Result<(), Error> {
        let detail = match (self, growth) {
            (Self::Ok, _) | (_, Growth::Allowed) => return Ok(()),
            (Self::Full, Growth::Creates) => {
                "The database of the service is full. Nothing can be created."
            }
            _ if rank.is_superuser => return Ok(()),
            (Self::Full, Growth::Changes) => {
                "The database of the service is full. Only superusers can change something."
            }
            _ if rank.is_staff => return Ok(()),
            _ => {
                "The database of the service is nearly full. Only staff and superusers can create and change something."
            }
        };
        let error = Error::new(ErrorKind::CellFull, detail).with_code(Code::CellFull);
        Err(Error { retry_after: Some(RETRY_AFTER), ..error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_fills_at_80_percent_and_is_full_at_95() {
        for (size, fullness) in [
            (0, Fullness::Ok),
            (7_999_999_999, Fullness::Ok),
            (8_000_000_000, Fullness::Filling),
            (9_499_999_999, Fullness::Filling),
            (9_500_000_000, Fullness::Full),
            (u64::MAX, Fullness::Full),
        ] {
            assert_eq!(Fullness::of(size, 10_000_000_000), fullness, "{size}");
            assert_eq!(serde_json::to_value(fullness).unwrap(), fullness.as_str());
        }
        assert_eq!(Fullness::of(1, 0), Fullness::Full);
    }

    #[test]
    fn staff_create_until_95_percent_and_others_until_80() {
        use Fullness::{Filling, Full, Ok};
        use Growth::{Allowed, Changes, Creates};
        let rank = |number| Rank { is_staff: number > 0, is_superuser: number > 1 };
        let refused = |fullness: Fullness| {
            [0, 1, 2].map(|number| {
                let is_refused =
                    |growth: &Growth| fullness.require_room(*growth, rank(number)).is_err();
                [Allowed, Changes, Creates].into_iter().filter(is_refused).collect::<Vec<_>>()
            })
        };
        let all = vec![Changes, Creates];
        assert_eq!(refused(Ok), [vec![], vec![], vec![]]);
        assert_eq!(refused(Filling), [all.clone(), vec![], vec![]]);
        assert_eq!(refused(Full), [all.clone(), all, vec![Creates]]);
        let error = Full.require_room(Creates, rank(2)).unwrap_err();
        assert_eq!((error.code, error.retry_after), (Some(Code::CellFull), Some(3_600)));
    }
}
