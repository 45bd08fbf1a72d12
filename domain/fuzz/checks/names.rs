//! Short texts: slugs, ids, retention settings and origins. Also how output is cut.

use farhand_domain::time::Timestamp;
use farhand_domain::command::{output, retention};
use farhand_domain::http::cors;
use farhand_domain::{id, workspace};

pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let is_slug = (1..=63).contains(&text.len())
        && text.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '-'))
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && !text.ends_with('-');
    assert_eq!(workspace::is_slug(&text), is_slug, "{text:?}");

    let is_id = text.len() == 36
        && text
            .char_indices()
            .all(|(at, c)| if [8, 13, 18, 23].contains(&at) { c == '-' } else { c.is_ascii_hexdigit() });
    assert_eq!(id::parse(&text).map(|id| id.to_string()), is_id.then(|| text.to_lowercase()));

    let now = Timestamp::from_millis(1_795_224_225_000);
    let days = text.parse::<u32>().ok().filter(|_| !text.starts_with('+'));
    let is_setting = text.is_empty() || text == "0" || days.is_some_and(|days| (2..=36_500).contains(&days));
    let until = retention::until(&text, now);
    assert_eq!(until.is_ok(), is_setting, "{text:?}");
    assert!(until.ok().flatten().is_none_or(|until| until < now));

    if let Some(origin) = cors::origin(&text) {
        assert!(text.starts_with(origin) && !origin.ends_with('/'));
        assert_eq!(cors::origin(origin), Some(origin));
        assert!(cors::allows(&text, origin) && !cors::allows(&text, &format!("{origin}.evil.example")));
    }

    let (kept, is_cut) = output::result(&text);
    assert!(kept.len() <= output::MAX_RESULT && (is_cut || kept == text));
    match output::in_list(&text) {
        Some(beginning) => {
            assert!(text.starts_with(beginning) && beginning.chars().count() == output::MAX_RESULT_IN_LIST);
        }
        None => assert!(text.chars().count() <= output::MAX_RESULT_IN_LIST),
    }
}
