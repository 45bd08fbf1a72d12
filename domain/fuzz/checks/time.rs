//! Timestamps: reading a time, writing it and reading it again gives the same time.

use farhand_domain::time::Timestamp;

pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(time) = Timestamp::parse(&text) else { return };
    let shown = time.to_string();
    assert_eq!((shown.len(), shown.is_ascii()), (32, true), "{shown}");
    assert!(shown.ends_with("+00:00"));
    assert_eq!(Timestamp::parse(&shown), Ok(time), "{shown}");
    let has_offset = text.ends_with(['Z', 'z'])
        || text.len() > 6 && text.is_char_boundary(text.len() - 6) && text[text.len() - 6..].starts_with(['+', '-']);
    assert!(has_offset, "{text:?} has no offset");
    for seconds in [1, 60, 86_400, i64::MAX / 4] {
        let later = time.plus_seconds(seconds);
        assert!(later >= time && later.to_string() >= shown, "texts sort like times");
        assert_eq!(Timestamp::parse(&later.to_string()), Ok(later));
        assert!(later.seconds_since(time) >= 0.0);
    }
    assert!(time.to_rfc_5322().ends_with(" +0000"));
    let json = serde_json::to_string(&time).expect("a text");
    assert_eq!(serde_json::from_str::<Timestamp>(&json).expect("what is stored can be read"), time);
}
