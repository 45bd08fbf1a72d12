//! The output of commands.

use farhand_domain::link::stored_command::ChunkSums;
use farhand_sql::object::server_link::chunks::{self, Piece};
use farhand_sql::object::server_link::schema;
use farhand_sql::statement::Statement;
use serde_json::{Value as Json, json};

use super::object::{Object, id};

/// The table has the output of command 1 in three rows: the chunks 0 to 2, the chunk 5, which
/// has two pieces, and the chunks 8 and 9. Other commands have the same output.
fn object() -> Object {
    let object = Object::new(schema());
    for command in 0..3 {
        for (first, piece, next, lengths, content) in [
            (0, 0, 3, "[1,1,1]", "abc"),
            (5, 0, 6, "[4]", "de"),
            (5, 1, 6, "[4]", "fg"),
            (8, 0, 10, "[1,1]", "hi"),
        ] {
            let bytes = if piece == 0 { lengths.len() as u64 } else { 0 };
            let (lengths, content) = (lengths.to_owned(), content.to_owned());
            let stored = Piece { first, piece, next, bytes, kept: bytes / 2, lengths, content };
            object.run(chunks::store(id(command), stored));
        }
    }
    object
}

/// The first chunk and the content of each piece.
fn pieces(object: &Object, statement: Statement) -> Vec<(i64, String)> {
    let rows = object.rows(statement);
    let piece =
        |row: &Json| (row["first"].as_i64().unwrap(), row["content"].as_str().unwrap().to_owned());
    rows.iter().map(piece).collect()
}

fn found(pieces: &[(i64, &str)]) -> Vec<(i64, String)> {
    pieces.iter().map(|(first, content)| (*first, (*content).to_owned())).collect()
}

#[test]
fn the_sums_count_each_row_once() {
    let object = object();
    let sums = |command| {
        let sums = object.column("sums", chunks::sums(id(command)));
        serde_json::from_str::<ChunkSums>(sums[0].as_str().unwrap()).unwrap()
    };
    let expected =
        ChunkSums { rows: 3, bytes: 7 + 3 + 5, count: 6, top: 10, kept_bytes: 3 + 1 + 2 };
    assert_eq!(sums(1), expected);
    assert_eq!(sums(9), ChunkSums::default());
}

#[test]
fn a_stored_piece_is_replaced() {
    let object = object();
    let (lengths, content) = ("[2]".to_owned(), "xy".to_owned());
    let new = Piece { first: 5, piece: 1, next: 7, bytes: 1, kept: 2, lengths, content };
    assert_eq!(object.run(chunks::store(id(1), new)), 1);
    let all = object.table("chunks");
    assert_eq!(all.len(), 12);
    let expected = json!({"command": id(1), "first": 5, "piece": 1, "next": 7, "bytes": 1,
        "kept": 2, "lengths": "[2]", "content": "xy"});
    assert_eq!(all[6], expected);
}

#[test]
fn a_row_is_found_with_all_its_pieces() {
    let object = object();
    let five = [(5, "de"), (5, "fg")];
    for (seq, up_to, before, at) in [
        (0, &[(0, "abc")][..], &[][..], &[(0, "abc")][..]),
        (4, &[(0, "abc")], &[(0, "abc")], &[]),
        (5, &five, &[(0, "abc")], &five),
        (7, &five, &five, &[]),
        (1 << 32, &[(8, "hi")], &[(8, "hi")], &[]),
    ] {
        assert_eq!(pieces(&object, chunks::row_up_to(id(1), seq)), found(up_to), "{seq}");
        assert_eq!(pieces(&object, chunks::row_before(id(1), seq)), found(before), "{seq}");
        assert_eq!(pieces(&object, chunks::row_at(id(1), seq)), found(at), "{seq}");
    }
    assert_eq!(pieces(&object, chunks::row_up_to(id(9), 5)), found(&[]));
    let lengths = object.column("lengths", chunks::row_at(id(1), 0));
    assert_eq!(lengths, ["[1,1,1]"]);
}

#[test]
fn output_is_read_from_any_chunk() {
    let object = object();
    let (abc, de, fg, hi) = ((0, "abc"), (5, "de"), (5, "fg"), (8, "hi"));
    for (from, end, rows, ranges) in [
        (0, 10, &[abc, de, fg, hi][..], &[[0, 3], [5, 6], [8, 10]][..]),
        (2, 10, &[abc, de, fg, hi], &[[0, 3], [5, 6], [8, 10]]),
        // A gap is at this chunk: the row before it is read too.
        (4, 8, &[abc, de, fg], &[[5, 6]]),
        (5, 5, &[], &[]),
        (9, 10, &[hi], &[[8, 10]]),
        (10, 10, &[hi], &[]),
    ] {
        let statement = chunks::pieces(id(1), from, end);
        assert_eq!(pieces(&object, statement), found(rows), "{from} {end}");
        let found = object.rows(chunks::ranges(id(1), from, end));
        let expected = ranges.iter().map(|[first, next]| json!({"first": first, "next": next}));
        assert_eq!(found, expected.collect::<Vec<_>>(), "{from} {end}");
    }
    assert_eq!(object.column("content", chunks::contents(id(1))), ["abc", "de", "fg", "hi"]);
    let backwards = object.column("content", chunks::contents_backwards(id(1)));
    assert_eq!(backwards, ["hi", "fg", "de", "abc"]);
}

#[test]
fn rows_are_deleted_whole_and_pieces_from_the_end() {
    let object = object();
    let count = |limit| object.column("number", chunks::count(id(1), limit))[0].as_i64().unwrap();
    let rest = || object.column("content", chunks::contents(id(1)));
    assert_eq!([count(0), count(1), count(4), count(9)], [0, 1, 4, 4]);
    assert_eq!(object.run(chunks::delete_pieces(id(1), 8, 1)), 0);
    assert_eq!(object.run(chunks::delete_pieces(id(1), 5, 1)), 1);
    assert_eq!(rest(), ["abc", "de", "hi"]);
    assert_eq!(object.run(chunks::delete_row(id(1), 8)), 1);
    assert_eq!(rest(), ["abc", "de"]);
    assert_eq!(object.table("chunks").len(), 10);

    let object = self::object();
    // The second of two table rows is the first piece of its row.
    assert_eq!(object.run(chunks::delete_first(id(1), 2)), 3);
    assert_eq!(object.column("content", chunks::contents(id(1))), ["hi"]);
    assert_eq!(object.run(chunks::delete_first(id(1), 2)), 1);
    assert_eq!(object.run(chunks::delete_first(id(1), 2)), 0);
    assert_eq!(object.table("chunks").len(), 8);
}

#[test]
fn the_primary_key_finds_and_sorts_all_output() {
    let object = object();
    for statement in [
        chunks::sums(id(1)),
        chunks::count(id(1), 9),
        chunks::delete_first(id(1), 9),
        chunks::row_up_to(id(1), 5),
        chunks::row_before(id(1), 5),
        chunks::row_at(id(1), 5),
        chunks::delete_row(id(1), 5),
        chunks::delete_pieces(id(1), 5, 1),
        chunks::ranges(id(1), 2, 9),
        chunks::pieces(id(1), 2, 9),
        chunks::contents(id(1)),
        chunks::contents_backwards(id(1)),
    ] {
        let plan = object.plan(statement);
        assert!(plan.contains("SEARCH chunks USING PRIMARY KEY (command=?"), "{plan}");
        assert!(!plan.contains("TEMP B-TREE") && !plan.contains("SCAN chunks"), "{plan}");
    }
}
