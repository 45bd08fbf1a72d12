//! The checks of the fuzz targets (`fuzz/`), the very same files: on every file of their corpora,
//! and on what comes of those by a few changes. `npm run fuzz` looks for more
//! (docs/contributing/fuzzing.md).

// A test says with unwrap that the rest makes no sense without it.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;

/// The most bytes of an input that is changed.
const LONGEST: usize = 4_096;

/// The files of a target's corpus, in the order of their names.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// A change: how much goes at which place, and what comes there.
#[derive(Clone, Debug)]
enum Put {
    Bytes(Vec<u8>),
    /// A piece of another input, from one place to another.
    Piece(Index, Index, Index),
}

fn change() -> impl Strategy<Value = (Index, usize, Put)> {
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
    let put = prop_oneof![
        odd.prop_map(|text| Put::Bytes(text.as_bytes().to_vec())),
        prop::collection::vec(any::<u8>(), 0..4).prop_map(Put::Bytes),
        any::<(Index, Index, Index)>()
            .prop_map(|(input, start, end)| Put::Piece(input, start, end)),
    ];
    (any::<Index>(), 0..4usize, put)
}

/// One of the inputs with some changes.
fn changed(inputs: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (any::<Index>(), prop::collection::vec(change(), 0..6)).prop_map(move |(input, changes)| {
        let mut data = inputs[input.index(inputs.len())].clone();
        for (place, length, put) in changes {
            let start = place.index(data.len() + 1);
            let put = match put {
                Put::Bytes(bytes) => bytes,
                Put::Piece(input, start, end) => {
                    let other = &inputs[input.index(inputs.len())];
                    let (start, end) = (start.index(other.len() + 1), end.index(other.len() + 1));
                    other[start.min(end)..start.max(end)].to_vec()
                }
            };
            data.splice(start..(start + length).min(data.len()), put);
        }
        data.truncate(LONGEST);
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
                fn corpus_holds() {
                    let inputs = corpus(stringify!($target));
                    assert!(inputs.len() >= 10, "{} inputs", inputs.len());
                    inputs.iter().for_each(|data| checks::$target::check(data));
                }

                proptest! {
                    #![proptest_config(ProptestConfig::with_cases(512))]
                    #[test]
                    fn changed_corpus_holds(data in changed(corpus(stringify!($target)))) {
                        checks::$target::check(&data);
                    }
                }
            }
        )*

        #[test]
        fn every_target_is_here() {
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

targets!(acl authorization body host mail names networks password query smtp time wire);
