//! Moments: whatever is read has one text, which reads as the same moment.

use farhand_domain::time::Timestamp;

pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(moment) = Timestamp::parse(&text) else { return };
    let shown = moment.to_string();
    assert_eq!((shown.len(), shown.is_ascii()), (32, true), "{shown}");
    assert!(shown.ends_with("+00:00"));
    assert_eq!(Timestamp::parse(&shown), Ok(moment), "{shown}");
    let has_offset = text.ends_with(['Z', 'z'])
        || text.len() > 6 && text.is_char_boundary(text.len() - 6) && text[text.len() - 6..].starts_with(['+', '-']);
    assert!(has_offset, "{text:?} has no offset");
    for seconds in [1, 60, 86_400, i64::MAX / 4] {
        let later = moment.plus_seconds(seconds);
        assert!(later >= moment && later.to_string() >= shown, "texts sort as moments do");
        assert_eq!(Timestamp::parse(&later.to_string()), Ok(later));
        assert!(later.seconds_since(moment) >= 0.0);
    }
    assert!(moment.to_rfc_5322().ends_with(" +0000"));
    let json = serde_json::to_string(&moment).expect("a text");
    assert_eq!(serde_json::from_str::<Timestamp>(&json).expect("what is stored can be read"), moment);
}
