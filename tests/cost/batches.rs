//! How many rows D1 reads for batches and their targets (`docs/contributing/cost.md`, Batches). The
//! batches are inserted directly into the database.

use farhand_tests::client::unique;
use farhand_tests::people::BATCHES;
use farhand_tests::{Api, Instance, Workspace};
use serde_json::Value;

/// Inserts batches of a workspace, with their servers and commands. Half of the batches are open:
/// half of their targets run, and the others have not started.
fn fill(instance: &Instance, workspace: i64, requester: i64, (batches, targets): (u32, u32)) {
    let server = format!("printf('%08x-0000-7000-8000-%012x', {workspace}, t.i)");
    let batch = format!("printf('%08x-0000-7000-9000-%012x', {workspace}, b.i)");
    let numbers = |count: u32| {
        format!(
            "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) SELECT i FROM n)"
        )
    };
    let (of_batches, of_targets) = (numbers(batches), numbers(targets));
    instance.d1(&format!(
        "INSERT INTO servers (id, workspace_id, name, agent_key_hash, added_at, updated_at)
         SELECT {server}, {workspace}, 'web-' || t.i, '', '', '' FROM {of_targets} t;
         INSERT INTO batches (id, workspace_id, name, requested_by, shell, line, username, groupname, timeout,
            max_concurrency, on_offline, added_at, scheduled_at, expires_at, state, total, pending)
         SELECT {batch}, {workspace}, '', {requester}, 'system', 'id', 'root', '', 60, 50, 'skip',
            strftime('%Y-%m-%dT%H:%M:%f000+00:00', '2026-01-01', b.i || ' seconds'), '2026-01-01T00:00:00.000000+00:00', '2999-01-01T00:00:00.000000+00:00',
            'running', {targets}, {targets} FROM {of_batches} b;
         INSERT INTO batch_targets (workspace_id, batch_id, position, server_id, server_name)
         SELECT {workspace}, {batch}, t.i - 1, {server}, 'web-' || t.i FROM {of_batches} b CROSS JOIN {of_targets} t;
         INSERT INTO commands (seq, workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname,
            timeout, added_at, scheduled_at, expires_at, state, status_message, batch_id)
         SELECT ({workspace} << 40) + b.i * 10000 + t.i, {workspace}, printf('%08x-0000-7000-a000-%06x%06x', {workspace}, b.i, t.i),
            {server}, 'web-' || t.i, {requester}, 'system', 'id', 'root', '', 60, '2026-01-01T00:00:00.000000+00:00', '2026-01-01T00:00:00.000000+00:00', '2999-01-01T00:00:00.000000+00:00', 'acked', '', {batch}
         FROM {of_batches} b CROSS JOIN {of_targets} t WHERE t.i % 2 = 0;
         UPDATE batches SET finished_at = '2026-01-02T00:00:00.000000+00:00', state = 'finished', pending = 0,
            counts = json_object('total', total, 'pending', 0, 'queued', 0, 'sent', 0, 'running', 0, 'success', total,
                'failed', 0, 'cancelled', 0, 'expired', 0, 'stuck', 0, 'skipped', 0)
         WHERE workspace_id = {workspace} AND rowid % 2 = 0",
    ));
}

/// Reads a path. Returns the response, and how many rows were read.
async fn read(instance: &Instance, api: &Api, path: &str) -> (Value, u64) {
    let id = unique("cost");
    let reply = api.send(api.request("GET", path).header("X-Request-Id", &id)).await;
    let line = instance.request_log_line(&id).await;
    (reply.expect(200), line["rows_read"].as_u64().unwrap())
}

#[tokio::test]
async fn reading_a_batch_reads_no_target_and_a_page_of_targets_reads_only_these() {
    let (instance, _state) = Instance::new().await;
    instance.wait_until_first_pass_is_over().await;
    let mut costs = Vec::new();
    for (slug, size) in [("small", (10, 10)), ("large", (30, 1_000))] {
        let workspace = Workspace::create_with(&instance.operator(), slug).await;
        let admin = &workspace.admin;
        let me = admin.get("/api/iam/users/-/").await.expect(200)["id"].as_i64().unwrap();
        let id = instance.d1(&format!("SELECT id FROM workspaces WHERE slug = '{slug}'"));
        fill(&instance, id[0]["id"].as_i64().unwrap(), me, size);
        let (list, of_list) = read(&instance, admin, &format!("{BATCHES}?page_size=10")).await;
        assert_eq!(list["count"], size.0);
        let open = list["results"].as_array().unwrap();
        let open = open.iter().find(|batch| batch["finished_at"].is_null()).unwrap();
        let counts = &open["counts"];
        assert_eq!(
            (&counts["pending"], &counts["running"]),
            (&(size.1 / 2).into(), &(size.1 / 2).into())
        );
        let path = format!("{BATCHES}{}/", open["id"].as_str().unwrap());
        let (batch, of_batch) = read(&instance, admin, &path).await;
        assert_eq!(batch["counts"], *counts);
        let (targets, of_targets) =
            read(&instance, admin, &format!("{path}targets/?page_size=10")).await;
        assert_eq!(targets["count"], size.1);
        let states = targets["results"].as_array().unwrap().iter().map(|target| &target["state"]);
        assert_eq!(states.filter(|state| **state == "running").count(), 5);
        println!("{size:?}: {of_list} {of_batch} {of_targets}");
        costs.push([of_list, of_batch, of_targets]);
    }
    // The count of the list reads an entry of an index for each batch.
    let [small, large] = [costs[0], costs[1]];
    assert!(large[0] <= small[0] + 25, "list: {large:?} {small:?}");
    assert!(large[1] <= small[1] + 5, "batch: {large:?} {small:?}");
    assert!(large[2] <= small[2] + 5, "targets: {large:?} {small:?}");
}
