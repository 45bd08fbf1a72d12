//! Reads the output of a command from its pipe, and queues it in chunks.

use std::time::Duration;

use farhand_domain::agent::wire::Chunk;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::reports::Report;
use crate::runner::output::{CHUNK_BYTES, Chunker, Decoder, FinOutput, LARGE_CHUNK_BYTES};

/// How long an incomplete chunk waits before it is sent.
const FLUSH_DELAY: Duration = Duration::from_millis(100);
/// The maximum silence on the pipe after the process has exited. After this silence, reading stops.
const MAX_SILENCE: Duration = Duration::from_secs(2);
/// The maximum time that the pipe is read after the process has exited. [`MIN_READ_AFTER_EXIT`] can
/// extend it.
const MAX_READ_AFTER_EXIT: Duration = Duration::from_secs(10);
/// The number of bytes that are read after the exit even beyond [`MAX_READ_AFTER_EXIT`]. It is more
/// than a pipe holds, so that the process's own output is complete even if background processes
/// keep writing.
const MIN_READ_AFTER_EXIT: u64 = 1024 * 1024;
/// The maximum size of a read, in bytes. It is the size of a pipe.
const READ_BYTES: usize = 64 * 1024;

/// Signals between the pump and its caller.
pub struct PumpControl {
    /// Cancelled when the process has exited.
    pub exited: CancellationToken,
    /// After it is cancelled, reading stops after the available output, without waiting for
    /// background processes.
    pub no_linger: CancellationToken,
    /// After it is cancelled, output that does not fit into the queue is dropped.
    pub dropping: CancellationToken,
    /// Cancelled when the pump has finished.
    pub finished: CancellationToken,
}

/// Reads the output to its end and queues it in chunks. Returns the output for the fin, and the
/// number of chunks.
pub async fn pump(
    mut output: pipe::Receiver,
    chunks: &mpsc::Sender<Report>,
    control: &PumpControl,
) -> (FinOutput, u32) {
    let mut bytes = vec![0; READ_BYTES];
    let mut text = String::new();
    let (mut decoder, mut chunker, mut kept) =
        (Decoder::default(), Chunker::default(), FinOutput::default());
    let mut count = 0;
    // The time at which waiting text is sent even if it does not fill a chunk.
    let mut flush_at = Instant::now();
    // After the exit: the deadline for reading, the deadline if no output arrives, and the number
    // of bytes read.
    let mut deadline: Option<Instant> = None;
    let mut silent_at = Instant::now();
    let mut read_after_exit: u64 = 0;
    loop {
        let is_flush_due = chunker.is_waiting() && flush_at <= Instant::now();
        let must_send_all = chunker.is_waiting() && control.dropping.is_cancelled();
        tokio::select! {
            // Sending comes first, because endless output would otherwise never be sent. Reading
            // comes before the timers, so that a timer never cuts off available output.
            biased;
            room = chunks.reserve(), if is_flush_due || chunker.has_chunk() || must_send_all => {
                send(room, chunks, &mut chunker, &mut count);
                flush_at = Instant::now() + FLUSH_DELAY;
            }
            () = control.dropping.cancelled(), if chunker.is_waiting() => chunker.close(),
            read = output.read(&mut bytes), if chunker.has_room() => {
                // A read error is treated as the end of the pipe.
                let Ok(count @ 1..) = read else { break };
                let now = Instant::now();
                if !chunker.is_waiting() {
                    flush_at = now + FLUSH_DELAY;
                }
                decoder.push(&bytes[..count], &mut text);
                chunker.push(&text);
                kept.push(&text);
                text.clear();
                if let Some(deadline) = deadline {
                    read_after_exit += count as u64;
                    silent_at = (now + MAX_SILENCE).min(deadline.max(now));
                    if now > deadline && read_after_exit > MIN_READ_AFTER_EXIT {
                        break;
                    }
                } else if control.exited.is_cancelled() {
                    deadline = Some(now + MAX_READ_AFTER_EXIT);
                    silent_at = now + MAX_SILENCE;
                }
            }
            () = control.exited.cancelled(), if deadline.is_none() => {
                let now = Instant::now();
                (deadline, silent_at) = (Some(now + MAX_READ_AFTER_EXIT), now + MAX_SILENCE);
            }
            // Disabled while the buffer is full, because the pipe may then have unread output.
            () = sleep_until(silent_at), if deadline.is_some() && chunker.has_room() => break,
            () = control.no_linger.cancelled(), if deadline.is_some_and(|deadline| deadline > Instant::now()) => {
                // Reads the available output, without waiting for background processes.
                let now = Instant::now();
                (deadline, silent_at) = (Some(now), now + FLUSH_DELAY);
            }
            () = sleep_until(flush_at), if chunker.is_waiting() && !is_flush_due => {}
        }
    }
    decoder.finish(&mut text);
    chunker.push(&text);
    kept.push(&text);
    while chunker.is_waiting() {
        tokio::select! {
            biased;
            room = chunks.reserve() => send(room, chunks, &mut chunker, &mut count),
            () = control.dropping.cancelled() => chunker.close(),
        }
    }
    control.finished.cancel();
    (kept, count)
}

/// Queues the next chunk: a large one if the queue is not empty.
fn send(
    room: Result<mpsc::Permit<'_, Report>, mpsc::error::SendError<()>>,
    chunks: &mpsc::Sender<Report>,
    chunker: &mut Chunker,
    count: &mut u32,
) {
    // Without a receiver, output cannot be sent.
    let Ok(room) = room else { return chunker.close() };
    // The permit `room` itself uses one place in the queue.
    let limit =
        if chunks.capacity() + 1 < chunks.max_capacity() { LARGE_CHUNK_BYTES } else { CHUNK_BYTES };
    if let Some(content) = chunker.next(limit) {
        room.send(Report::Chunk(Chunk { seq: *count, content }));
        *count += 1;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nix::sys::signal::Signal;
    use nix::unistd::Pid;
    use tokio::time::sleep;

    use super::*;
    use crate::journal::writer::JournalWriter;
    use crate::runner::execute::execute;
    use crate::runner::group::Groups;
    use crate::runner::testing::*;

    #[tokio::test]
    async fn a_slow_service_gets_large_chunks_and_delays_nothing() {
        // The service takes 100 ms per call. With chunks of 4 KiB, the output would take about 100
        // s.
        let (queue, mut reports) = mpsc::channel(crate::reports::MAX_QUEUED_CHUNKS);
        let order = order("head -c 4000000 /dev/zero | tr '\\0' a");
        let (groups, never, journal) = (Groups::default(), never(), JournalWriter::default());
        let execute = async {
            let queue = queue;
            execute(&order, &HOST, &groups, &never, &journal, &queue).await
        };
        let service = async {
            let mut calls: u32 = 0;
            while let Some(Report::Chunk(chunk)) = reports.recv().await {
                assert!(chunk.seq == calls && chunk.content.len() <= LARGE_CHUNK_BYTES);
                calls += 1;
                sleep(Duration::from_millis(100)).await;
            }
            calls
        };
        let (fin, calls) =
            tokio::time::timeout(PATIENCE, async { tokio::join!(execute, service) }).await.unwrap();
        assert_eq!((fin.chunks, fin.output_bytes), (Some(calls), Some(4_000_000)));
        assert!(calls <= 120, "{calls}");
        // The fin's time does not include the calls, which took more than six seconds.
        assert!(fin.elapsed_time.unwrap() < 1.5, "{fin:?}");
    }

    #[tokio::test]
    async fn both_outputs_keep_their_order() {
        let line = "i=0; while [ $i -lt 200 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
        let expected: String = (0..200).map(|i| format!("out {i}\nerr {i}\n")).collect();
        assert_eq!(result(line).await, (0, expected));
    }

    #[tokio::test]
    async fn a_background_process_does_not_delay_the_fin() {
        let (fin, _) = run(&order("sleep 60 & echo $!")).await;
        let pid = fin.result.unwrap().trim().to_owned();
        assert_eq!(fin.exit_code, Some(0));
        assert!(fin.elapsed_time.unwrap() < 5.0);
        assert!(is_running(&pid), "it was killed");
        nix::sys::signal::kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
    }

    #[tokio::test]
    async fn output_just_after_the_exit_is_read() {
        assert_eq!(result("(sleep 0.3; echo late) & echo early").await.1, "early\nlate\n");
    }

    #[tokio::test]
    async fn chunks_are_complete_and_the_result_is_cut() {
        let line = "yes 0123456789abcde | head -n 65536";
        let (fin, chunks) = run(&order(line)).await;
        let whole = "0123456789abcde\n".repeat(65536);
        assert_eq!(whole.len(), 1024 * 1024);
        assert!(chunks.concat() == whole);
        assert!(chunks.iter().all(|chunk| chunk.len() <= LARGE_CHUNK_BYTES));
        assert_eq!(fin.chunks, Some(chunks.len() as u32));
        assert!(fin.result.unwrap() == farhand_domain::command::output::result(&whole).0);
    }

    #[tokio::test]
    async fn output_is_sent_while_the_command_runs() {
        let directory = tempfile::tempdir().unwrap();
        let go = directory.path().join("go");
        let (queue, mut reports) = mpsc::channel(2);
        let order = order(&format!(
            "printf a; until [ -e {} ]; do sleep 0.02; done; printf b",
            go.display()
        ));
        let (groups, never, journal) = (Groups::default(), never(), JournalWriter::default());
        let execute = execute(&order, &HOST, &groups, &never, &journal, &queue);
        let watch = async {
            let Some(Report::Chunk(chunk)) = reports.recv().await else { panic!("no chunk") };
            assert_eq!((chunk.seq, chunk.content.as_str()), (0, "a"));
            std::fs::write(&go, "").unwrap();
            let Some(Report::Chunk(chunk)) = reports.recv().await else { panic!("no chunk") };
            assert_eq!((chunk.seq, chunk.content.as_str()), (1, "b"));
        };
        let (fin, ()) =
            tokio::time::timeout(PATIENCE, async { tokio::join!(execute, watch) }).await.unwrap();
        assert_eq!(fin.result.unwrap(), "ab");
    }

    #[tokio::test]
    async fn a_slow_service_makes_the_command_wait() {
        let directory = tempfile::tempdir().unwrap();
        let done = directory.path().join("done");
        let (queue, mut reports) = mpsc::channel(2);
        let order = order(&format!("head -c 8000000 /dev/zero; touch {}", done.display()));
        let (groups, never, journal) = (Groups::default(), never(), JournalWriter::default());
        let mut execute = Box::pin(execute(&order, &HOST, &groups, &never, &journal, &queue));
        // The queue, the buffer and the pipe are full, so the command waits.
        assert!(tokio::time::timeout(Duration::from_millis(500), &mut execute).await.is_err());
        assert!(!done.exists());
        let drain = async { while !done.exists() && reports.recv().await.is_some() {} };
        tokio::time::timeout(PATIENCE, async {
            tokio::select! { _ = &mut execute => {}, () = drain => {} }
        })
        .await
        .unwrap();
        assert!(done.exists());
    }

    #[tokio::test]
    async fn a_command_with_endless_output_can_be_stopped() {
        let stops = never();
        let endless = order("yes");
        let (queue, mut reports) = mpsc::channel(crate::reports::MAX_QUEUED_CHUNKS);
        let groups = Groups::default();
        let execute = async {
            let queue = queue;
            execute(&endless, &HOST, &groups, &stops, &JournalWriter::default(), &queue).await
        };
        let most = farhand_domain::command::output::MAX_KEPT as usize;
        let sent = async {
            let mut sent = 0;
            while let Some(Report::Chunk(chunk)) = reports.recv().await {
                sent += chunk.content.len();
                if sent > most {
                    // From here on, further output is read and dropped.
                    stops.stopping.cancel();
                }
            }
            sent
        };
        let (fin, sent) =
            tokio::time::timeout(PATIENCE, async { tokio::join!(execute, sent) }).await.unwrap();
        assert!(sent > most && sent <= most + 4, "{sent}");
        assert_eq!((fin.success, fin.exit_code), (false, Some(143)));
        let result = fin.result.unwrap();
        assert!(result.len() <= farhand_domain::command::output::MAX_RESULT);
        assert!(result.starts_with("y\ny\n") && result.ends_with("\nThe agent was stopped.\n"));
    }

    #[tokio::test]
    async fn chunks_are_counted() {
        for (line, chunks) in
            [("true", 0..=0), ("echo x", 1..=1), ("head -c 10000 /dev/zero", 2..=3)]
        {
            let (fin, sent) = run(&order(line)).await;
            assert_eq!(fin.chunks, Some(sent.len() as u32), "{line}");
            assert!(chunks.contains(&sent.len()), "{line}: {}", sent.len());
        }
    }
}
