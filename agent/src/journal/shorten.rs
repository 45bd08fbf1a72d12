//! Shortens the output in fins if the kept fins are too large in total.

use farhand_domain::agent::wire::Fin;

/// The size of the output that a shortened fin keeps, in bytes.
pub const SHORT_RESULT: usize = 4 * 1024;

/// Cuts the output in a fin to about [`SHORT_RESULT`] bytes, in the form of
/// [`farhand_domain::command::output::result`].
pub fn shorten_result(fin: &mut Fin) {
    fin.result = fin.result.take().map(|result| shorten(&result, SHORT_RESULT));
}

/// Shortens a result to about `bytes` bytes. Keeps its beginning and its end, around a line that
/// marks the cut.
fn shorten(result: &str, bytes: usize) -> String {
    if result.len() <= bytes {
        return result.to_owned();
    }
    let half = bytes / 2;
    let head = &result[..result.floor_char_boundary(half)];
    let tail = &result[result.ceil_char_boundary(result.len() - half)..];
    format!("{head}\n[... {} bytes cut ...]\n{tail}", result.len() - head.len() - tail.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_result_keeps_its_beginning_and_end() {
        assert_eq!(shorten("abc", 10), "abc");
        let short = shorten(&"€".repeat(10_000), 4_096);
        assert!(short.len() < 4_200 && short.starts_with('€') && short.ends_with('€'));
    }
}
