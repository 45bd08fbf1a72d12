//! The next due times, including the days when the local clock changes (contract 14.3).

use farhand_tests::Workspace;
use serde_json::{Value, json};

use super::{create, patch};

/// Asserts the first due times after `starts_at`, in UTC.
async fn check(
    workspace: &Workspace,
    timezone: &str,
    cron: &str,
    starts_at: &str,
    expected: &[&str],
) {
    let body = json!({"cron": cron, "timezone": timezone, "starts_at": format!("{starts_at}:00Z")});
    let made = create(&workspace.session(), body).await;
    let runs = made["next_runs"].as_array().unwrap();
    let expected: Vec<Value> =
        expected.iter().map(|due| json!(format!("{due}:00.000000+00:00"))).collect();
    assert_eq!(runs[..expected.len()], expected, "{timezone} {cron}");
    assert_eq!(runs.len(), 5, "{timezone} {cron}");
}

/// The expected times are from the clock changes of 2027 in the IANA database.
#[tokio::test]
async fn local_times_follow_the_clock_changes_of_their_zone() {
    let workspace = Workspace::new().await;
    let check = async |zone: &str, cron: &str, from: &str, expected: &[&str]| {
        check(&workspace, zone, cron, from, expected).await;
    };
    // 02:00 to 03:00 does not occur: the run is at 03:00.
    let berlin = ["2027-03-27T01:30", "2027-03-28T01:00", "2027-03-29T00:30"];
    check("Europe/Berlin", "30 2 * * *", "2027-03-27T00:00", &berlin).await;
    // 02:00 to 03:00 occurs twice: the run is at the first 02:30.
    let berlin = ["2027-10-30T00:30", "2027-10-31T00:30", "2027-11-01T01:30"];
    check("Europe/Berlin", "30 2 * * *", "2027-10-30T00:00", &berlin).await;
    let york = ["2027-03-13T07:30", "2027-03-14T07:00", "2027-03-15T06:30"];
    check("America/New_York", "30 2 * * *", "2027-03-13T00:00", &york).await;
    let york = ["2027-11-07T05:00", "2027-11-07T05:30", "2027-11-08T06:00"];
    check("America/New_York", "0,30 1 * * *", "2027-11-07T00:00", &york).await;
    // The clock skips midnight.
    let havana = ["2027-03-13T05:00", "2027-03-14T05:00", "2027-03-15T04:00"];
    check("America/Havana", "@daily", "2027-03-13T00:00", &havana).await;
    // Every hour is an hour of elapsed time, also when the clock changes by half an hour.
    let howe = ["2027-04-03T14:00", "2027-04-03T15:30", "2027-04-03T16:30"];
    check("Australia/Lord_Howe", "0 * * * *", "2027-04-03T13:30", &howe).await;
    let chatham = ["2027-09-25T13:15", "2027-09-25T14:15", "2027-09-25T15:15"];
    check("Pacific/Chatham", "0 */1 * * *", "2027-09-25T13:00", &chatham).await;
    let kolkata = ["2027-01-01T18:30", "2027-01-02T18:30"];
    check("Asia/Kolkata", "0 0 * * *", "2027-01-01T00:00", &kolkata).await;
    let last_fridays = ["2027-01-29T12:00", "2027-02-26T12:00", "2027-03-26T12:00"];
    check("UTC", "0 12 * * FRIL", "2027-01-01T00:00", &last_fridays).await;
    let either = ["2027-01-04T00:00", "2027-01-11T00:00", "2027-01-13T00:00"];
    check("UTC", "0 0 13 * MON", "2027-01-01T00:00", &either).await;
}

#[tokio::test]
async fn a_schedule_without_due_times_has_no_next_runs() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let ended = create(&session, json!({"ends_at": "2020-01-01T00:00:00Z"})).await;
    assert_eq!(ended["next_runs"], json!([]));
    let open = patch(&session, &ended, json!({"ends_at": null})).await;
    assert_eq!(open["next_runs"].as_array().unwrap().len(), 5);
    let bounded = json!({"cron": "0 0 1 1 *", "starts_at": "2030-01-01T00:00:00Z", "ends_at": "2031-01-01T00:00:00Z"});
    let bounded = patch(&session, &open, bounded).await;
    let both = ["2030-01-01T00:00:00.000000+00:00", "2031-01-01T00:00:00.000000+00:00"];
    assert_eq!(bounded["next_runs"], json!(both));
    assert_eq!(patch(&session, &open, json!({"enabled": false})).await["next_runs"], json!([]));
    assert_eq!(patch(&session, &open, json!({"enabled": true})).await["next_runs"], json!(both));
}
