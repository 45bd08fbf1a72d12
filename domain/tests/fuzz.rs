//! Runs the checks of the fuzz targets (`fuzz/checks/`) on all inputs of their corpora, and on random
//! changes of them. `npm run fuzz` runs them under libFuzzer (docs/contributing/fuzzing.md).

// In a test, a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;

/// Maximum length of a changed input, in bytes.
const MAX_LENGTH: usize = 4_096;

/// The inputs of a target's corpus. Each is a line of its file.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fuzz/corpus/{target}.txt"));
    fs::read_to_string(file).unwrap().lines().map(unescaped).collect()
}

/// The bytes of a line, in which `\n`, `\r`, `\t`, `\\` and `\xNN` stand for one byte each.
fn unescaped(line: &str) -> Vec<u8> {
    let mut rest = line.bytes();
    let mut bytes = Vec::new();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next().unwrap() {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'\\' => b'\\',
                b'x' => {
                    let digits = [rest.next().unwrap(), rest.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                other => panic!("an unknown escape: {}", char::from(other)),
            },
            byte => byte,
        });
    }
    bytes
}

#[test]
fn a_line_has_any_bytes() {
    assert_eq!(unescaped(r"a\\x\x00\xff\n\r\t"), b"a\\x\x00\xff\n\r\t");
    assert_eq!(unescaped(""), b"");
}

/// The bytes that a change inserts.
#[derive(Clone, Debug)]
enum Inserted {
    Bytes(Vec<u8>),
    /// A piece of an input: the input, the start and the end.
    Piece(Index, Index, Index),
}

/// A change: its position, the number of deleted bytes, and the inserted bytes.
fn change() -> impl Strategy<Value = (Index, usize, Inserted)> {
    let odd = prop::sample::select(vec![
        "\0",
        "\"",
        "\n",
        "*",
        "\u{feff}",
        "İ",
        "😀",
        "%FF",
        "9999999999",
        "\\ud800",
        ",",
    ]);
    let inserted = prop_oneof![
        odd.prop_map(|text| Inserted::Bytes(text.as_bytes().to_vec())),
        prop::collection::vec(any::<u8>(), 0..4).prop_map(Inserted::Bytes),
        any::<(Index, Index, Index)>()
            .prop_map(|(input, start, end)| Inserted::Piece(input, start, end)),
    ];
    (any::<Index>(), 0..4usize, inserted)
}

/// One of the inputs, with up to five changes.
fn changed(inputs: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (any::<Index>(), prop::collection::vec(change(), 0..6)).prop_map(move |(input, changes)| {
        let mut data = inputs[input.index(inputs.len())].clone();
        for (position, length, inserted) in changes {
            let start = position.index(data.len() + 1);
            let inserted = match inserted {
                Inserted::Bytes(bytes) => bytes,
                Inserted::Piece(input, start, end) => {
                    let other = &inputs[input.index(inputs.len())];
                    let (start, end) = (start.index(other.len() + 1), end.index(other.len() + 1));
                    other[start.min(end)..start.max(end)].to_vec()
                }
            };
            data.splice(start..(start + length).min(data.len()), inserted);
        }
        data.truncate(MAX_LENGTH);
        data
    })
}

macro_rules! targets {
    ($($target:ident)*) => {
        #[path = "../fuzz/checks"]
        mod checks {
            $(pub mod $target;)*
        }

        $(
            mod $target {
                use super::*;

                #[test]
                fn every_input_of_the_corpus_passes() {
                    let inputs = corpus(stringify!($target));
                    assert!(inputs.len() >= 10, "{} inputs", inputs.len());
                    inputs.iter().for_each(|data| checks::$target::check(data));
                }

                proptest! {
                    #![proptest_config(ProptestConfig::with_cases(512))]
                    #[test]
                    fn changed_inputs_pass(data in changed(corpus(stringify!($target)))) {
                        checks::$target::check(&data);
                    }
                }
            }
        )*

        #[test]
        fn every_check_is_a_target() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/checks");
            let mut found: Vec<_> =
                fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            let mut named = vec![$(concat!(stringify!($target), ".rs").to_owned()),*];
            found.sort();
            named.sort();
            assert_eq!(found, named);
        }
    };
}

targets!(acl authorization body host mail names networks password query selector smtp time wire);
