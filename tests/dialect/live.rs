//! Live output of `exec`, and `event watch` (contract 21.6).

use farhand_tests::agents::own_account;
use farhand_tests::alpacon::{Alpacon, Channel, Command, EventSession, Frame};
use farhand_tests::client::unique;
use farhand_tests::{Instance, Person, RealAgent, ScriptedAgent, Workspace, now};
use serde_json::{Value, json};
use uuid::Uuid;

/// Opens a channel and connects to it.
async fn connect(cli: &Alpacon) -> (EventSession, Channel) {
    let session = cli.open_channel().await;
    let channel = cli.dial(&session).await.unwrap();
    (session, channel)
}

/// The output and the end of a command, in the frames of a channel.
async fn read_to_end(channel: &mut Channel, command: &str) -> String {
    let mut chunks: Vec<(i64, String)> = Vec::new();
    loop {
        let Frame { event_type, payload } = channel.next().await.unwrap();
        match event_type.as_str() {
            "command_output" => {
                assert_eq!(payload.command_id.as_deref(), Some(command));
                chunks.push((payload.seq.unwrap(), payload.content.unwrap()));
            }
            "command_fin" if payload.id.as_deref() == Some(command) => break,
            "command_fin" => {}
            other => panic!("{other}"),
        }
    }
    let seqs: Vec<i64> = chunks.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, (0..chunks.len() as i64).collect::<Vec<_>>());
    chunks.into_iter().map(|(_, content)| content).collect()
}

#[tokio::test]
async fn exec_shows_output_as_it_arrives() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let _agent = RealAgent::start(&workspace, &server).await;
    let cli = Alpacon::cli(&workspace.admin);
    let (session, mut channel) = connect(&cli).await;
    assert_eq!(session.id, session.channel_id);
    let id = cli.server_id("web").await;
    for (line, output, code) in [
        ("for i in 1 2 3; do echo $i; sleep 0.3; done; exit 4", "1\n2\n3\n", 4),
        // It may end before the subscription.
        ("echo quick", "quick\n", 0),
        ("true", "", 0),
    ] {
        let command = cli.start(&id, line, &own_account()).await.id;
        let output_reply = cli.subscribe(&session.channel_id, "command_output", &command).await;
        assert!((200..300).contains(&output_reply.status), "{}", output_reply.text);
        let fin_reply = cli.subscribe(&session.channel_id, "command_fin", &id).await;
        assert!((200..300).contains(&fin_reply.status), "{}", fin_reply.text);
        assert_eq!(read_to_end(&mut channel, &command).await, output);
        // The frame comes only after the end can be read.
        let done: Command = cli.get(&format!("/api/events/commands/{command}/")).await;
        assert_eq!(done.exit_code, Some(code));
    }
    channel.close().await;
}

#[tokio::test]
async fn event_watch_shows_the_ends_of_a_servers_commands() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let watcher = Person::new(&workspace, "watcher").await;
    let group = workspace.group("ops", &[&server]).await;
    workspace.add_member(&group, &watcher, "member").await;
    let cli = Alpacon::cli(&watcher.api);
    let (session, mut channel) = connect(&cli).await;
    let server_id = cli.server_id("web").await;
    cli.subscribe(&session.channel_id, "command_fin", &server_id).await.expect(201);
    for _ in 0..2 {
        let command = Alpacon::cli(&workspace.admin).start(&server_id, "id", "").await.id;
        agent.next_command().await;
        agent.fin(&command, 0, "").await;
        let frame = channel.next().await.unwrap();
        assert_eq!((frame.event_type.as_str(), frame.payload.id), ("command_fin", Some(command)));
    }
}

#[tokio::test]
async fn a_secret_opens_one_socket() {
    let workspace = Workspace::new().await;
    let cli = Alpacon::cli(&workspace.admin);
    let session = cli.open_channel().await;
    let with_url = |url: String| EventSession {
        id: session.id.clone(),
        channel_id: session.channel_id.clone(),
        websocket_url: url,
    };
    let url = session.websocket_url.trim_end_matches('/');
    let (base, secret) = url.rsplit_once('/').unwrap();
    let wrong: String = secret.chars().rev().collect();
    let other = cli.open_channel().await;
    for bad in [
        format!("{base}/{wrong}/"),
        format!("{base}/x/"),
        // The secret of another channel.
        format!(
            "{base}/{}/",
            other.websocket_url.trim_end_matches('/').rsplit('/').next().unwrap()
        ),
        url.replace(&session.id, farhand_tests::people::UNKNOWN_UUID),
        url.replace(&session.id, "x"),
    ] {
        let bad = format!("{}/", bad.trim_end_matches('/'));
        assert_eq!(cli.dial(&with_url(bad.clone())).await.err(), Some(404), "{bad}");
    }
    // A host of another workspace.
    let elsewhere = Workspace::new().await;
    let there = Alpacon::cli(&elsewhere.admin);
    assert_eq!(there.dial(&with_url(session.websocket_url.clone())).await.err(), Some(404));
    // Not a WebSocket.
    let path = url.split_once("/ws/").unwrap().1;
    cli.api.get(&format!("/ws/{path}/")).await.expect_fields(400, &["non_field_errors"]);
    // Without the dialect, the path does not exist.
    workspace.anonymous.get(&format!("/ws/{path}/")).await.expect_detail(404, None);
    let mut first = cli.dial(&session).await.unwrap();
    assert_eq!(cli.dial(&session).await.err(), Some(404));
    // The first socket still works.
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let command = cli.start(server["id"].as_str().unwrap(), "id", "").await.id;
    agent.next_command().await;
    cli.subscribe(&session.channel_id, "command_output", &command).await.expect(201);
    agent.chunk(&command, 0, "a").await;
    agent.fin(&command, 0, "a").await;
    assert_eq!(read_to_end(&mut first, &command).await, "a");
}

#[tokio::test]
async fn guessed_channels_are_not_stored() {
    let (instance, _folder) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), &unique("t")).await;
    let cli = Alpacon::cli(&workspace.admin);
    let tables = || {
        let sql = "SELECT name FROM sqlite_master WHERE name = 'channel'";
        instance.read_objects("Channel", sql).len()
    };
    let session = cli.open_channel().await;
    assert_eq!(tables(), 1);
    let (base, secret) = session.websocket_url.trim_end_matches('/').rsplit_once('/').unwrap();
    for (id, secret) in [(Uuid::new_v4(), secret), (Uuid::new_v4(), "x")] {
        let base = base.replace(&session.id, &id.to_string());
        let guess = EventSession {
            id: session.id.clone(),
            channel_id: session.channel_id.clone(),
            websocket_url: format!("{base}/{secret}/"),
        };
        assert_eq!(cli.dial(&guess).await.err(), Some(404));
    }
    let server = workspace.server("web").await;
    let id = server["id"].as_str().unwrap();
    let guessed = cli.subscribe(&Uuid::new_v4().to_string(), "command_fin", id).await;
    assert_eq!(guessed.status, 404, "{}", guessed.text);
    assert_eq!(tables(), 1);
}

#[tokio::test]
async fn a_channel_has_twenty_subscriptions_at_a_time() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let cli = Alpacon::cli(&workspace.admin);
    let id = server["id"].as_str().unwrap();
    let (session, mut channel) = connect(&cli).await;
    let mut commands = Vec::new();
    for _ in 0..=20 {
        commands.push(cli.start(id, "id", "").await.id);
        agent.next_command().await;
    }
    let subscribe = |command| cli.subscribe(&session.channel_id, "command_output", command);
    for command in &commands[..20] {
        subscribe(command).await.expect(201);
    }
    subscribe(&commands[20]).await.expect_fields(400, &["channel"]);
    // An equal one is no other subscription.
    subscribe(&commands[0]).await.expect(201);
    // One that ended makes room.
    agent.fin(&commands[0], 0, "").await;
    assert_eq!(read_to_end(&mut channel, &commands[0]).await, "");
    farhand_tests::eventually("room for another subscription", || async {
        (subscribe(&commands[20]).await.status == 201).then_some(())
    })
    .await;
}

#[tokio::test]
async fn commands_of_the_future_do_not_hide_ends() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let cli = Alpacon::cli(&workspace.admin);
    let id = server["id"].as_str().unwrap();
    for _ in 0..101 {
        let later = json!({"server": id, "line": "id", "scheduled_at": now().plus_seconds(3600)});
        workspace.admin.post("/api/events/commands/", &later).await.expect(201);
    }
    let (session, mut channel) = connect(&cli).await;
    cli.subscribe(&session.channel_id, "command_fin", id).await.expect(201);
    let command = cli.start(id, "id", "").await.id;
    agent.next_command().await;
    agent.fin(&command, 0, "").await;
    assert_eq!(channel.next().await.unwrap().payload.id, Some(command));
}

#[tokio::test]
async fn a_subscription_needs_the_channel_and_the_command() {
    let (workspace, elsewhere) = (Workspace::new().await, Workspace::new().await);
    let (web, db) = (workspace.server("web").await, workspace.server("db").await);
    let _agents = [
        ScriptedAgent::connect(&workspace, &web).await,
        ScriptedAgent::connect(&workspace, &db).await,
    ];
    let user = Person::new(&workspace, "user").await;
    let group = workspace.group("ops", &[&web]).await;
    workspace.add_member(&group, &user, "member").await;
    let admin = Alpacon::cli(&workspace.admin);
    let cli = Alpacon::cli(&user.api);
    let (session, _socket) = connect(&cli).await;
    let (own, _own_socket) = connect(&admin).await;
    let visible = admin.start(web["id"].as_str().unwrap(), "id", "").await.id;
    let hidden = admin.start(db["id"].as_str().unwrap(), "id", "").await.id;
    let unknown = farhand_tests::people::UNKNOWN_UUID;
    let channel = session.channel_id.as_str();
    for (who, channel, event, target, status) in [
        (&cli, channel, "command_output", visible.as_str(), 201),
        (&cli, channel, "command_output", hidden.as_str(), 404),
        (&cli, channel, "command_output", unknown, 404),
        (&cli, channel, "command_fin", db["id"].as_str().unwrap(), 404),
        (&cli, own.channel_id.as_str(), "command_output", visible.as_str(), 404),
        (&admin, channel, "command_output", visible.as_str(), 404),
        (&cli, unknown, "command_output", visible.as_str(), 404),
        (&cli, channel, "websh", visible.as_str(), 400),
        (&cli, "x", "command_fin", visible.as_str(), 400),
    ] {
        let reply = who.subscribe(channel, event, target).await;
        assert_eq!(reply.status, status, "{event} {target}: {}", reply.text);
    }
    cli.subscribe(channel, "websh", &visible).await.expect_fields(400, &["event_type"]);
    let stranger = Alpacon::cli(&elsewhere.admin);
    let reply = stranger.subscribe(channel, "command_output", &visible).await;
    assert_eq!(reply.status, 404);
    let anonymous = Alpacon::cli(&workspace.anonymous);
    anonymous.subscribe(channel, "websh", "x").await.expect_detail(401, None);
    anonymous.api.post("/api/events/sessions/", &json!({})).await.expect_detail(401, None);
    cli.api.post("/api/events/sessions/", &json!({"x": 1})).await.expect_fields(400, &["x"]);
}

#[tokio::test]
async fn a_limited_token_sees_only_what_its_list_allows() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let limited =
        Alpacon::cli(&workspace.limited(&json!({"commands": ["id"], "usernames": ["boss"]})).await);
    let admin = Alpacon::cli(&workspace.admin);
    let id = server["id"].as_str().unwrap();
    let (session, mut channel) = connect(&limited).await;
    let hidden = admin.start(id, "secret", "").await.id;
    agent.next_command().await;
    let refused = limited.subscribe(&session.channel_id, "command_output", &hidden).await;
    assert_eq!(refused.status, 404, "{}", refused.text);
    let fin = limited.subscribe(&session.channel_id, "command_fin", id).await;
    assert!((200..300).contains(&fin.status), "{}", fin.text);
    agent.fin(&hidden, 0, "").await;
    let own = limited.start(id, "id", "").await.id;
    agent.next_command().await;
    agent.fin(&own, 0, "").await;
    // The end of the hidden command came first, and is not sent.
    assert_eq!(channel.next().await.unwrap().payload.id, Some(own));
}

#[tokio::test]
async fn the_socket_closes_when_the_credential_ends() {
    let workspace = Workspace::new().await;
    let token = workspace
        .session()
        .post("/api/auth/tokens/", &json!({"name": "ci", "expires_at": null}))
        .await
        .expect(201);
    let cli = Alpacon::cli(&workspace.anonymous.with_token(token["key"].as_str().unwrap()));
    let (session, mut channel) = connect(&cli).await;
    let path = format!("/api/auth/tokens/{}/", token["id"].as_str().unwrap());
    workspace.session().delete(&path).await.expect(204);
    assert_eq!(channel.next().await.unwrap_err(), Some(1008));
    let refused = cli.subscribe(&session.channel_id, "command_output", &session.id).await;
    refused.expect_detail(403, Some("INVALID_TOKEN"));
}

#[tokio::test]
async fn output_is_not_sent_after_the_access_has_ended() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let user = Person::new(&workspace, "user").await;
    let group = workspace.group("ops", &[&server]).await;
    let membership: Value = workspace.add_member(&group, &user, "member").await;
    let cli = Alpacon::cli(&user.api);
    let (session, mut channel) = connect(&cli).await;
    let id = cli.start(server["id"].as_str().unwrap(), "id", "").await.id;
    agent.next_command().await;
    cli.subscribe(&session.channel_id, "command_output", &id).await.expect(201);
    agent.chunk(&id, 0, "public").await;
    assert_eq!(channel.next().await.unwrap().payload.content.as_deref(), Some("public"));
    let path = format!("/api/iam/memberships/{}/", membership["id"].as_str().unwrap());
    workspace.admin.delete(&path).await.expect(204);
    agent.chunk(&id, 1, "secret").await;
    assert_eq!(channel.next().await.unwrap_err(), Some(1008));
}

#[tokio::test]
async fn a_secret_is_valid_for_a_minute() {
    let (instance, _folder) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), &unique("t")).await;
    let cli = Alpacon::cli(&workspace.admin);
    // A channel deletes its row when its socket closes, so the first socket stays open.
    let mut sockets = Vec::new();
    for (age, refusal) in [(50, None), (61, Some(404))] {
        let session = cli.open_channel().await;
        let opened_at = now().plus_seconds(-age);
        let sql = format!("UPDATE channel SET opened_at = '{opened_at}'");
        instance.tamper_with_objects("Channel", &sql);
        let dialled = cli.dial(&session).await;
        assert_eq!(dialled.as_ref().err().copied(), refusal, "{age}");
        sockets.extend(dialled.ok());
    }
}
