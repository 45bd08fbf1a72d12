//! The operations of a random sequence.

/// An operation. `place` chooses a target, a request, a call or a report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Time passes. The alarm goes off when it is due.
    Pass {
        millis: i64,
    },
    Reload,
    Kill,
    /// A user cancels the batch. The call to the object may be lost.
    Cancel {
        is_lost: bool,
    },
    /// D1 carries out a request. The answer does not arrive yet.
    Apply(usize),
    /// D1 answers a request.
    Answer(usize),
    /// A request fails. D1 may carry it out later.
    Fail(usize),
    /// A late request, or a late call, is carried out.
    Late(usize),
    /// A server's object carries out a call, and its answer arrives.
    Call(usize),
    /// A call fails. The object may carry it out later.
    FailCall(usize),
    Connect(usize),
    Disconnect(usize),
    Ack(usize),
    End {
        place: usize,
        is_success: bool,
    },
    Stuck(usize),
    /// A server's object writes to D1, and reports that to the batch.
    Flush(usize),
    /// A report arrives.
    Report {
        place: usize,
        is_repeated: bool,
    },
    LoseReport(usize),
    Deny(usize),
    /// The requester's credential is revoked.
    Revoke,
    /// A server is deleted.
    Delete(usize),
    /// The batch's object loses its memory.
    Crash,
    /// In the next step, the object crashes after this number of effects.
    CrashIn(usize),
    Suspend(bool),
    /// D1 is saved, or restored to the saved state. Then the servers' objects write everything
    /// again.
    Snapshot,
    Restore,
    /// The workspace is purged.
    Purge,
}

impl Op {
    /// Turns 64 random bits into an operation.
    pub fn decode(bits: u64) -> Self {
        let (kind, place, big) = (bits % 256, (bits >> 8 & 0xff) as usize, bits >> 16);
        match kind {
            0..30 => Self::Pass {
                millis: [0, 10, 200, 1_000, 1_500, 5_000, 12_000, 31_000, 70_000]
                    [(big % 9) as usize],
            },
            30 => Self::Pass { millis: 3_000_000 },
            31..34 => Self::Reload,
            34 => Self::Kill,
            35 | 36 => Self::Cancel { is_lost: big % 2 == 0 },
            37..42 => Self::Apply(place),
            42..90 => Self::Answer(place),
            90..94 => Self::Fail(place),
            94..98 => Self::Late(place),
            98..130 => Self::Call(place),
            130..134 => Self::FailCall(place),
            134..140 => Self::Connect(place),
            140..143 => Self::Disconnect(place),
            143..150 => Self::Ack(place),
            150..170 => Self::End { place, is_success: big % 4 != 0 },
            170..172 => Self::Stuck(place),
            172..205 => Self::Flush(place),
            205..228 => Self::Report { place, is_repeated: big % 5 == 0 },
            228..232 => Self::LoseReport(place),
            232..234 => Self::Deny(place),
            234 => Self::Delete(place),
            235..240 => Self::Crash,
            240..248 => Self::CrashIn((big % 5) as usize),
            248 => Self::Suspend(big % 2 == 0),
            249..251 => Self::Snapshot,
            251 => Self::Restore,
            252 if big % 8 == 0 => Self::Purge,
            253 if big % 8 == 0 => Self::Revoke,
            _ => Self::Answer(0),
        }
    }
}
