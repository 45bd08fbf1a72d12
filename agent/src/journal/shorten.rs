//! A fin with only a short piece of its output, for when many fins are kept.

use farhand_domain::wire::Fin;

/// Bytes of output that a shortened fin keeps.
pub const SHORT_RESULT: usize = 4 * 1024;

/// Cuts the output that a fin repeats to about [`SHORT_RESULT`], in the form of
/// [`farhand_domain::output::result`].
pub fn shorten_result(fin: &mut Fin) {
    fin.result = fin.result.take().map(|result| shorten(&result, SHORT_RESULT));
}

/// Shortens a result to about `bytes`, keeping its head and its tail.
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
    fn a_short_result_is_shorter() {
        assert_eq!(shorten("abc", 10), "abc");
        let short = shorten(&"€".repeat(10_000), 4_096);
        assert!(short.len() < 4_200 && short.starts_with('€') && short.ends_with('€'));
    }
}
