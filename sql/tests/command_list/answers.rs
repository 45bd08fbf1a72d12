//! Compares lists with the lists of the naive model.

use farhand_sql::command_counts::{behind, distance};

use crate::data::{Dice, Variant, count, database, delete, list_of, run, statement};
use crate::model::{Model, SCHEDULES, TIMES, WORDS};

/// An id that no batch has.
const UNKNOWN_BATCH: &str = "0000000c-0000-7000-8000-000000000000";

/// A query of a few random parameters.
fn random_query(dice: &mut Dice, model: &Model) -> Vec<(&'static str, String)> {
    let mut query: Vec<(&'static str, String)> = Vec::new();
    let command = dice.pick(&model.commands).clone();
    let mut add = |is_there: bool, name: &'static str, value: String| {
        if is_there {
            query.push((name, value));
        }
    };
    add(dice.once_in(4), "server", command.server);
    add(dice.once_in(8), "batch", command.batch.unwrap_or(UNKNOWN_BATCH.to_owned()));
    add(dice.once_in(12), "schedule", (*dice.pick(&SCHEDULES)).to_owned());
    add(dice.once_in(4), "shell", command.shell.to_owned());
    add(dice.once_in(4), "requested_by", command.requested_by.unwrap_or(77).to_string());
    add(dice.once_in(4), "requested_by_isnull", (*dice.pick(&["true", "false"])).to_owned());
    add(dice.once_in(4), "is_scheduled", (*dice.pick(&["true", "false"])).to_owned());
    let states = [
        "scheduled",
        "queued",
        "sent",
        "acked",
        "success",
        "failed",
        "cancelled",
        "expired",
        "stuck",
    ];
    // Half of the queries have only states of commands that have not ended.
    let states = if dice.once_in(2) { &states[..4] } else { &states };
    let picked: Vec<&str> = (0..=dice.roll(4)).map(|_| *dice.pick(states)).collect();
    add(dice.once_in(4), "state", picked.join(","));
    add(dice.once_in(6), "success", (*dice.pick(&["true", "false"])).to_owned());
    add(dice.once_in(8), "exit_code", (*dice.pick(&["-1", "0", "1", "7"])).to_owned());
    add(dice.once_in(6), "username", (*dice.pick(&["root", "Deploy", "nobody"])).to_owned());
    for name in ["added_at__gte", "added_at__lt"] {
        add(dice.once_in(8), name, format!("2026-01-01T00:00:{:02}.000000+00:00", dice.roll(13)));
    }
    let words: Vec<&str> = (0..=dice.roll(3)).map(|_| *dice.pick(&WORDS)).collect();
    add(dice.once_in(2), "search", words.join(" "));
    let mut names = TIMES.to_vec();
    let keys = (0..=dice.roll(3)).map(|_| {
        let name = names.remove(dice.roll(names.len()));
        format!("{}{name}", dice.pick(&["", "-"]))
    });
    let keys: Vec<_> = keys.collect();
    add(!dice.once_in(3), "ordering", keys.join(","));
    query
}

#[test]
fn every_list_is_that_of_a_naive_model() {
    let database = database();
    let mut dice = Dice(20_261_121);
    // Neither workspace may list commands of the other. Doubles do not hold the keys of the second.
    let models = [1, 1_000_000].map(|workspace| Model::fill(&database, workspace, &mut dice));
    let (mut non_empty, mut with_full_access) = (0, 0);
    for round in 0..1_700 {
        let model = dice.pick(&models);
        let caller = dice.pick(&model.callers);
        let query = match round {
            0..7 => vec![],
            7..53 => vec![("search", WORDS[round - 7].to_owned())],
            _ => random_query(&mut dice, model),
        };
        let all = model.answer(&query, caller);
        let size = 1 + dice.roll(30);
        let page = dice.roll(3).min(all.len() / size);
        // Another branch of the query reads pages from offset 10,000 on.
        let offset = if dice.once_in(20) { 10_000 + page * size } else { page * size };
        let context = format!("round {round}, {}: {query:?}, {size} from {offset}", caller.name);
        let list = list_of(&query);
        let expected: Vec<String> = all.iter().skip(offset).take(size).cloned().collect();
        let found = run(
            &database,
            statement(&list, Some(&caller.me), Variant::ForAll, size as u64, offset as u64),
        );
        assert_eq!((found.total, &found.ids), (Some(all.len() as i64), &expected), "{context}");
        let found = run(
            &database,
            statement(&list, Some(&caller.me), Variant::FullAccess, size as u64, offset as u64),
        );
        if caller.me.has_full_access() {
            assert_eq!(
                (found.total, &found.ids),
                (Some(all.len() as i64), &expected),
                "full access, {context}"
            );
            with_full_access += 1;
        } else {
            assert_eq!((found.total, found.ids), (None, vec![]), "full access, {context}");
        }
        if round == 800 {
            count(&database, 1);
            count(&database, 1_000_000);
        }
        non_empty += usize::from(!expected.is_empty());
        if round % 50 == 0 {
            for variant in [Variant::ForAll, Variant::FullAccess] {
                let without_caller =
                    run(&database, statement(&list, None, variant, size as u64, offset as u64));
                assert_eq!((without_caller.total, without_caller.ids), (None, vec![]), "{context}");
            }
        }
    }
    assert!(non_empty > 400 && with_full_access > 250, "{non_empty}, {with_full_access}");
}

/// Commands are created, counted and deleted in any order. The key of a deleted command may be used
/// again if the command was not counted.
#[test]
fn the_number_of_commands_is_exact_at_any_time() {
    let database = database();
    let mut dice = Dice(7);
    let mut model = Model::fill(&database, 1, &mut dice);
    Model::fill(&database, 1_000_000, &mut dice);
    for step in 0..400 {
        match dice.roll(8) {
            0 => count(&database, 1),
            1..4 => {
                // Half of the deletions delete the last command.
                let at = if dice.once_in(2) {
                    model.commands.len() - 1
                } else {
                    dice.roll(model.commands.len())
                };
                delete(&database, 1, &model.commands.remove(at).id);
            }
            _ => {
                let again = dice.pick(&model.commands).clone();
                model.add(&database, 1, again, &format!("{step:08x}"));
            }
        }
        let number = |sql: &str| database.query_row(sql, [1], |row| row.get::<_, i64>(0)).unwrap();
        let uncounted = number(&format!("SELECT count(*) FROM commands c WHERE {}", behind("?1")));
        assert!(number(&format!("SELECT {}", distance("?1"))) >= uncounted, "{step}");
        let command = dice.pick(&model.commands).clone();
        let requester = command.requested_by.unwrap_or(1).to_string();
        for query in [vec![], vec![("server", command.server)], vec![("requested_by", requester)]] {
            let list = list_of(&query);
            for caller in &model.callers {
                let found =
                    run(&database, statement(&list, Some(&caller.me), Variant::ForAll, 1, 0));
                assert_eq!(
                    found.total,
                    Some(model.answer(&query, caller).len() as i64),
                    "{step}: {query:?}, {}",
                    caller.name
                );
            }
        }
    }
}
