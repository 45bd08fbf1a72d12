//! The operations of a random sequence.

/// An operation. Its numbers choose the schedule, message or batch.
#[derive(Clone, Debug)]
pub enum Op {
    /// Time passes, and the alarm goes off when it is due.
    Wait {
        seconds: i64,
    },
    /// Time passes, and the service is down.
    Down {
        seconds: i64,
    },
    Alarm,
    Put {
        schedule: u64,
        variant: u64,
    },
    Delete {
        schedule: u64,
    },
    /// A message arrives, and the machine gets the answer.
    Deliver {
        place: u64,
        is_refused: bool,
    },
    /// A message arrives, and its answer is lost.
    DeliverInVain {
        place: u64,
    },
    /// A message is lost, and the sender gets an error.
    Lose {
        place: u64,
    },
    EndBatch {
        place: u64,
    },
    /// The object loses its memory.
    Crash,
    /// In the next step, the object crashes after this number of effects.
    CrashIn {
        effects: usize,
    },
}

impl Op {
    pub fn decode(number: u64) -> Self {
        let (kind, place) = (number % 32, number / 32 % 64);
        let big = i64::try_from(number / 2048 % 100_000).unwrap();
        match kind {
            0..=4 => Self::Wait { seconds: 1 + big % 90 },
            5 => Self::Wait { seconds: big % 1000 },
            6 => Self::Down { seconds: big % 200 },
            7 => Self::Down { seconds: big / 4 },
            8 => Self::Alarm,
            9..=13 => Self::Put { schedule: place, variant: number / 2048 },
            14 => Self::Delete { schedule: place },
            15..=22 => Self::Deliver { place, is_refused: big % 8 == 0 },
            23 => Self::DeliverInVain { place },
            24 => Self::Lose { place },
            25..=27 => Self::EndBatch { place },
            28 | 29 => Self::Crash,
            _ => Self::CrashIn { effects: (place % 4) as usize },
        }
    }
}
