//! The page for a new password at `/reset-password/`: over HTTP, and in Chromium as a person uses
//! it.

use std::fs;

use fantoccini::Locator;
use fantoccini::key::Key;
use farhand_tests::client::PASSWORD;
use farhand_tests::{Api, Browser, Reply, Workspace, eventually, mail};
use serde_json::{Value, json};
use uuid::Uuid;

const PAGE: &str = "/reset-password/";
/// The files of the page, with their media types.
const FILES: &[(&str, &str)] = &[
    (PAGE, "text/html; charset=utf-8"),
    ("/reset-password/page.css", "text/css; charset=utf-8"),
    ("/reset-password/page.js", "text/javascript; charset=utf-8"),
];
/// The views of the page, with their headings.
const CHOOSE: (&str, &str) = ("choose", "Choose a new password");
const DONE: (&str, &str) = ("done", "Password changed");
const INVALID: (&str, &str) = ("invalid", "This link does not work");
const SENT: (&str, &str) = ("sent", "Check your mail");
const NEW_PASSWORD: &str = "quiet rivers run deep";

/// The key in a link that was just mailed to the workspace's superuser.
async fn reset_key(workspace: &Workspace) -> String {
    let client = own_address();
    let requests = request_link(&workspace.anonymous, "boss@example.com", &client);
    mail::key_of(&mail::reset_link(workspace, "boss@example.com", requests).await).to_owned()
}

/// A client address that no other test uses.
fn own_address() -> String {
    let [a, b, c, ..] = *Uuid::new_v4().as_bytes();
    format!("10.{a}.{b}.{c}")
}

/// Requests a link from a client address.
async fn request_link(api: &Api, email: &str, client: &str) -> Reply {
    api.from_address(client).post("/api/auth/reset-password/", &json!({"email": email})).await
}

/// A browser that visits the page of a new workspace.
struct Visit {
    workspace: Workspace,
    browser: Browser,
    /// The browser's client address.
    client: String,
}

impl Visit {
    async fn new() -> Self {
        let (workspace, browser, client) =
            (Workspace::new().await, Browser::open().await, own_address());
        browser.set_header("X-Forwarded-For", &client).await;
        Self { workspace, browser, client }
    }

    /// Opens the page with the link of a new mail, and returns the key in it.
    async fn with_new_link() -> (Self, String) {
        let visit = Self::new().await;
        let key = reset_key(&visit.workspace).await;
        visit.open(&format!("{PAGE}?key={key}")).await;
        visit.wait_for_view(CHOOSE).await;
        (visit, key)
    }

    fn url(&self, path: &str) -> String {
        let port = self.workspace.anonymous.url.rsplit(':').next().unwrap();
        format!("http://{}:{port}{path}", self.workspace.anonymous.host)
    }

    async fn open(&self, path: &str) {
        self.browser.client.goto(&self.url(path)).await.unwrap();
    }

    /// Waits until exactly one view is visible, and checks its heading.
    async fn wait_for_view(&self, (view, heading): (&str, &str)) {
        eventually(heading, || async {
            let shown =
                "[...document.querySelectorAll('section')].filter((view) => !view.hidden).map((view) => view.id)";
            (self.browser.value(shown).await == json!([view])).then_some(())
        })
        .await;
        assert_eq!(self.text(&format!("#{view} h1")).await, heading);
        assert_eq!(self.browser.client.title().await.unwrap(), format!("{heading} · Farhand"));
    }

    /// Waits until a view shows a message above its form.
    async fn wait_for_message(&self, view: &str, message: &str) {
        eventually(message, || async {
            (self.text(&format!("#{view} [role=alert]")).await.contains(message)).then_some(())
        })
        .await;
    }

    async fn text(&self, css: &str) -> String {
        self.browser.client.find(Locator::Css(css)).await.unwrap().text().await.unwrap()
    }

    /// The error messages at the password field.
    async fn problems(&self) -> Vec<String> {
        let mut texts = Vec::new();
        for item in self.browser.client.find_all(Locator::Css("#problems li")).await.unwrap() {
            texts.push(item.text().await.unwrap());
        }
        texts
    }

    async fn click(&self, css: &str) {
        self.browser.client.find(Locator::Css(css)).await.unwrap().click().await.unwrap();
    }

    /// Replaces the text in a field.
    async fn fill(&self, css: &str, text: &str) {
        let field = self.browser.client.find(Locator::Css(css)).await.unwrap();
        field.clear().await.unwrap();
        field.send_keys(text).await.unwrap();
    }

    async fn submit_password(&self, password: &str) {
        self.fill("#password", password).await;
        self.click("#choose button").await;
    }

    async fn submit_email(&self, email: &str) {
        self.fill("#email", email).await;
        self.click("#invalid button").await;
    }

    /// A property of the focused element.
    async fn focused(&self, of_element: &str) -> Value {
        self.browser.value(&format!("document.activeElement.{of_element}")).await
    }

    /// Ends the visit, and asserts that the console is empty.
    async fn finish(self) {
        assert_eq!(self.browser.console().await, Vec::<Value>::new());
    }

    /// Asserts that the current view is accessible, in light and dark mode, and fits on a phone.
    async fn assert_accessible(&self) {
        for scheme in ["light", "dark"] {
            self.browser.set_color_scheme(scheme).await;
            for screen in [None, Some((320, 568))] {
                self.browser.set_screen(screen).await;
                assert_eq!(self.browser.axe_violations().await, json!([]), "{scheme} {screen:?}");
                let overflow =
                    "document.documentElement.scrollWidth - document.documentElement.clientWidth";
                assert_eq!(self.browser.value(overflow).await, 0, "{screen:?}");
                let small = "[...document.querySelectorAll('button, label:has(input), input:not(label input)')]
                    .filter((target) => target.checkVisibility())
                    .filter((target) => target.getBoundingClientRect().height < 44
                        || target.getBoundingClientRect().width < 44
                        || parseFloat(getComputedStyle(target).fontSize) < 16)
                    .map((target) => target.outerHTML)";
                assert_eq!(self.browser.value(small).await, json!([]), "{screen:?}");
            }
        }
        self.browser.set_screen(None).await;
    }
}

#[tokio::test]
async fn the_page_has_three_files_with_strict_headers() {
    let api = Workspace::new().await.anonymous;
    let mut size = 0;
    for (path, media_type) in FILES {
        let reply = api.get(&format!("{path}?key=x")).await;
        assert_eq!(reply.status, 200, "{path}");
        assert_eq!(reply.header("Content-Type"), *media_type);
        for (name, value) in [
            ("Referrer-Policy", "no-referrer"),
            ("X-Frame-Options", "DENY"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-store"),
        ] {
            assert_eq!(reply.header(name), value, "{path}");
        }
        assert!(!reply.header("X-Request-Id").is_empty(), "{path}");
        let policy: Vec<&str> = reply.header("Content-Security-Policy").split("; ").collect();
        let expected = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
            base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
        assert_eq!(policy, expected.split("; ").collect::<Vec<_>>(), "{path}");
        let name = if *path == PAGE { "index.html" } else { path.rsplit('/').next().unwrap() };
        let file = format!("{}/../web/reset-password/{name}", env!("CARGO_MANIFEST_DIR"));
        assert_eq!(reply.text, fs::read_to_string(file).unwrap(), "the file is served unchanged");
        size += reply.text.len();

        let head = api.call("HEAD", path).await;
        assert_eq!((head.status, head.text.as_str()), (200, ""), "{path}");
        assert_eq!(head.header("Content-Type"), *media_type);
        let post = api.call("POST", path).await;
        assert_eq!((post.status, post.header("Allow")), (405, "GET, HEAD, OPTIONS"), "{path}");
    }
    assert!(size <= 10_000, "{size} bytes");
}

#[tokio::test]
async fn no_other_file_is_served() {
    let api = Workspace::new().await.anonymous;
    for path in [
        "/index.html/",
        "/web/reset-password/",
        "/reset-password/index/",
        "/reset-password/index.html/",
        "/reset-password/page.js/x/",
        "/reset-password//page.css/",
        "/reset-password/%70age.css/",
        "/Reset-Password/",
        "/page.css/",
    ] {
        api.get(path).await.expect_detail(404, None);
        // Only paths of the API get a redirect for a missing slash (contract 3.1).
        api.get(path.trim_end_matches('/')).await.expect_detail(404, None);
    }
    api.get("/reset-password/page.css/").await.expect_detail(404, None);
    let moved = api.get("/reset-password?key=x").await;
    assert_eq!(moved.header("Location"), format!("http://{}/reset-password/?key=x", api.host));
}

#[tokio::test]
async fn only_workspaces_serve_the_page() {
    let api = Workspace::new().await.anonymous;
    for host in ["nobody-has-this.local.localhost", "example.com", "local.localhost"] {
        for (path, _) in FILES {
            api.with_host(host).get(path).await.expect_detail(404, None);
            api.with_host(host).call("POST", path).await.expect_detail(404, None);
        }
    }
}

#[tokio::test]
async fn a_new_password_ends_sessions_and_keeps_tokens() {
    let visit = Visit::new().await;
    let (workspace, browser) = (&visit.workspace, &visit.browser);
    let key = reset_key(workspace).await;
    // The link in the mail leads to the page.
    visit.open(&format!("/api/auth/reset-password/confirm/{key}/")).await;
    visit.wait_for_view(CHOOSE).await;
    assert_eq!(browser.client.current_url().await.unwrap().as_str(), visit.url(PAGE));
    assert!(visit.text("#choose p").await.contains(&workspace.anonymous.host));
    visit.submit_password(NEW_PASSWORD).await;
    visit.wait_for_view(DONE).await;
    assert_eq!(visit.focused("role").await, "status", "a screen reader announces the view");
    let message = visit.text("#done [role=status]").await;
    assert!(
        message.contains("sessions were signed out") && message.contains("API tokens stay"),
        "{message}"
    );

    workspace.session().get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    workspace.admin.get("/api/status/").await.expect(200);
    for (password, status) in [(PASSWORD, 403), (NEW_PASSWORD, 200)] {
        let login = json!({"username": "boss", "password": password});
        workspace.anonymous.post("/api/auth/login/", &login).await.expect(status);
    }

    // The link was used, so neither the link nor the page accepts the key again.
    visit.open(&format!("{PAGE}?key={key}")).await;
    visit.wait_for_view(CHOOSE).await;
    visit.submit_password("another fine password").await;
    visit.wait_for_view(INVALID).await;
    assert_eq!(visit.focused("textContent").await, INVALID.1);
    visit.open(&format!("/api/auth/reset-password/confirm/{key}/")).await;
    visit.wait_for_view(INVALID).await;
    assert_eq!(
        browser.client.current_url().await.unwrap().as_str(),
        visit.url(&format!("{PAGE}?error=invalid"))
    );
    visit.finish().await;
}

#[tokio::test]
async fn the_key_is_sent_in_exactly_one_request() {
    let (visit, key) = Visit::with_new_link().await;
    visit.fill("#password", NEW_PASSWORD).await;
    // Three clicks before a response can arrive.
    visit
        .browser
        .value("[1, 2, 3].forEach(() => document.querySelector('#choose button').click())")
        .await;
    visit.wait_for_view(DONE).await;
    let requests = visit.browser.requests().await;
    let with_key: Vec<_> = requests
        .iter()
        .filter(|request| request.to_string().contains(&key))
        .map(|request| (request["method"].as_str().unwrap(), request["url"].as_str().unwrap()))
        .collect();
    let confirm = visit.url(&format!("/api/auth/reset-password/confirm/{key}/"));
    assert_eq!(
        with_key,
        [("GET", visit.url(&format!("{PAGE}?key={key}")).as_str()), ("POST", confirm.as_str())]
    );
    for request in &requests {
        let url = request["url"].as_str().unwrap();
        assert!(
            url.starts_with(&visit.url("/")) || url.starts_with("data:image/svg+xml,"),
            "{url}"
        );
        assert_eq!(request["headers"]["Referer"].as_str().unwrap_or(""), "", "{request}");
    }
    let sent = requests.iter().find_map(|request| request["postData"].as_str()).unwrap();
    assert_eq!(serde_json::from_str::<Value>(sent).unwrap(), json!({"new_password": NEW_PASSWORD}));
    visit.finish().await;
}

#[tokio::test]
async fn the_key_leaves_the_address_bar_and_the_history() {
    let (visit, key) = Visit::with_new_link().await;
    let here = visit.url(PAGE);
    assert_eq!(visit.browser.value("location.href").await, here);
    assert!(!visit.browser.client.source().await.unwrap().contains(&key));
    // Going back from another page does not show the key either.
    visit.open("/reset-password/?error=invalid").await;
    visit.wait_for_view(INVALID).await;
    visit.browser.client.back().await.unwrap();
    eventually("the page before", || async {
        (visit.browser.value("location.href").await == here).then_some(())
    })
    .await;
    visit.finish().await;

    // The form works without the key in the address bar.
    let (visit, _) = Visit::with_new_link().await;
    visit.submit_password(NEW_PASSWORD).await;
    visit.wait_for_view(DONE).await;
    assert_eq!(visit.browser.value("location.search").await, "");
    visit.finish().await;
}

#[tokio::test]
async fn password_errors_appear_at_the_field() {
    let (visit, _) = Visit::with_new_link().await;
    visit.submit_password("12345").await;
    let problems = eventually("the messages", || async {
        let problems = visit.problems().await;
        (!problems.is_empty()).then_some(problems)
    })
    .await;
    assert_eq!(
        problems,
        [
            "This password is too short. It must contain at least 8 characters.",
            "This password is too common.",
            "This password is entirely numeric.",
        ]
    );
    assert_eq!(visit.focused("id").await, "password");
    assert_eq!(visit.focused("ariaInvalid").await, "true");
    assert_eq!(visit.focused("value").await, "12345", "the typed text stays");
    let described = "getAttribute('aria-describedby').split(' ').map((id) => document.getElementById(id).innerText)";
    let described = visit.focused(described).await.to_string();
    assert!(
        described.contains("too common") && described.contains("At least 8 characters"),
        "{described}"
    );
    assert_eq!(visit.text("#choose [role=alert]").await, "");

    // Another message replaces these.
    visit.submit_password("boss@example").await;
    eventually("the message", || async {
        (visit.problems().await == ["The password is too similar to the email address."])
            .then_some(())
    })
    .await;
    visit.submit_password(NEW_PASSWORD).await;
    visit.wait_for_view(DONE).await;
    visit.finish().await;
}

#[tokio::test]
async fn a_failed_request_keeps_the_form() {
    let (visit, _) = Visit::with_new_link().await;
    visit.browser.set_offline(true).await;
    visit.submit_password(NEW_PASSWORD).await;
    visit.wait_for_message("choose", "try again").await;
    assert_eq!(
        visit.browser.value("document.querySelector('#password').value").await,
        NEW_PASSWORD
    );
    visit.browser.set_offline(false).await;
    visit.click("#choose button").await;
    visit.wait_for_view(DONE).await;

    visit.open(&format!("{PAGE}?error=invalid")).await;
    visit.browser.set_offline(true).await;
    visit.submit_email("someone@example.com").await;
    visit.wait_for_message("invalid", "try again").await;
    visit.browser.set_offline(false).await;
    visit.click("#invalid button").await;
    visit.wait_for_view(SENT).await;
    visit.finish().await;
}

#[tokio::test]
async fn the_password_is_shown_only_on_request() {
    let (visit, _) = Visit::with_new_link().await;
    let kind = || async { visit.browser.value("document.querySelector('#password').type").await };
    assert_eq!(kind().await, "password");
    visit.click("label:has(#show)").await;
    assert_eq!(kind().await, "text");
    visit.click("label:has(#show)").await;
    assert_eq!(kind().await, "password");
    visit.finish().await;
}

#[tokio::test]
async fn an_invalid_link_offers_a_new_one() {
    let visit = Visit::new().await;
    for query in
        ["", "?key=", "?error=invalid", "?error=invalid&key=x", "?key=.", "?key=..", "?key=%2E%2e"]
    {
        visit.open(&format!("{PAGE}{query}")).await;
        visit.wait_for_view(INVALID).await;
    }
    assert!(
        visit
            .text("#invalid")
            .await
            .contains("It is unknown, was used before, or is older than 24 hours.")
    );
    // An invalid key is sent unchanged, as one segment of the path.
    visit.browser.requests().await;
    visit.open(&format!("{PAGE}?key=a%2F..%3Fb%26c")).await;
    visit.wait_for_view(CHOOSE).await;
    visit.submit_password(NEW_PASSWORD).await;
    visit.wait_for_view(INVALID).await;
    let requests = visit.browser.requests().await;
    let post = requests.iter().find(|request| request["method"] == "POST").unwrap();
    assert_eq!(post["url"], visit.url("/api/auth/reset-password/confirm/a%2F..%3Fb%26c/"));

    // The browser itself rejects text that is not an address.
    visit.submit_email("someone").await;
    assert_eq!(
        visit.browser.value("document.querySelector('#email').validity.patternMismatch").await,
        true
    );
    visit.browser.requests().await;
    visit.submit_email("jürgen@bücher.example ").await;
    visit.wait_for_view(SENT).await;
    assert_eq!(visit.focused("role").await, "status", "a screen reader announces the view");
    let message = visit.text("#sent [role=status]").await;
    assert!(
        message.contains(
            "If this address belongs to an account, a mail with a new link is on its way"
        ),
        "{message}"
    );
    assert!(message.contains("jürgen@bücher.example"), "{message}");
    let requests = visit.browser.requests().await;
    let sent = requests.iter().find_map(|request| request["postData"].as_str()).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(sent).unwrap(),
        json!({"email": "jürgen@bücher.example"})
    );
    visit.click("#again").await;
    visit.wait_for_view(INVALID).await;
    assert_eq!(visit.focused("id").await, "email");
    visit.finish().await;
}

#[tokio::test]
async fn each_limit_of_link_requests_has_its_own_message() {
    let visit = Visit::new().await;
    let api = &visit.workspace.anonymous;
    for _ in 0..5 {
        request_link(api, "someone@example.com", &own_address()).await.expect(200);
    }
    visit.open(&format!("{PAGE}?error=invalid")).await;
    visit.submit_email("someone@example.com").await;
    visit
        .wait_for_message("invalid", "Too many links were requested for this address recently.")
        .await;
    let mut requests = 0;
    while request_link(api, &format!("someone-{requests}@example.com"), &visit.client).await.status
        != 429
    {
        requests += 1;
        assert!(requests <= 20, "the limit is 20 requests an hour");
    }
    visit.submit_email("someone-else@example.com").await;
    visit.wait_for_message("invalid", "Too many requests came from your network.").await;
    assert_eq!(
        visit.browser.value("document.querySelector('#email').value").await,
        "someone-else@example.com"
    );
    visit.finish().await;
}

#[tokio::test]
async fn the_page_works_with_the_keyboard_alone() {
    let (visit, key) = Visit::with_new_link().await;
    let press = |keys: Vec<char>| visit.browser.press(keys);
    let typed = |text: &str| text.chars().collect();
    press(vec![Key::Tab.into()]).await;
    assert_eq!(visit.focused("id").await, "password", "the first Tab reaches the field");
    assert_eq!(visit.focused("matches(':focus-visible')").await, true);
    press(typed("12345")).await;
    press(vec![Key::Enter.into()]).await;
    eventually("the messages", || async { (!visit.problems().await.is_empty()).then_some(()) })
        .await;
    // The focus returned to the field, so typing continues there.
    press(typed(" rivers run deep")).await;
    press(vec![Key::Tab.into(), ' ']).await;
    assert_eq!(visit.focused("checked").await, true);
    press(vec![Key::Tab.into()]).await;
    assert_eq!(visit.focused("tagName").await, "BUTTON");
    let outline = "(({outlineStyle, outlineWidth}) => [outlineStyle, outlineWidth])(getComputedStyle(document.activeElement))";
    assert_eq!(visit.browser.value(outline).await, json!(["solid", "3px"]), "the focus is visible");
    press(vec![Key::Enter.into()]).await;
    visit.wait_for_view(DONE).await;

    visit.open(&format!("{PAGE}?key={key}")).await;
    press(vec![Key::Tab.into()]).await;
    press(typed(NEW_PASSWORD)).await;
    press(vec![Key::Enter.into()]).await;
    visit.wait_for_view(INVALID).await;
    // From the focused heading to the field.
    press(vec![Key::Tab.into()]).await;
    press(typed("someone@example.com")).await;
    press(vec![Key::Tab.into(), Key::Enter.into()]).await;
    visit.wait_for_view(SENT).await;
    press(vec![Key::Tab.into(), Key::Enter.into()]).await;
    visit.wait_for_view(INVALID).await;
    visit.finish().await;
}

#[tokio::test]
async fn every_view_is_accessible() {
    let (visit, _) = Visit::with_new_link().await;
    visit.assert_accessible().await;
    visit.submit_password("12345").await;
    eventually("the messages", || async { (!visit.problems().await.is_empty()).then_some(()) })
        .await;
    visit.assert_accessible().await;
    visit.browser.set_offline(true).await;
    visit.submit_password(&"M".repeat(128)).await;
    visit.wait_for_message("choose", "try again").await;
    visit.browser.set_offline(false).await;
    visit.assert_accessible().await;
    visit.submit_password(NEW_PASSWORD).await;
    visit.wait_for_view(DONE).await;
    visit.assert_accessible().await;

    visit.open(&format!("{PAGE}?error=invalid")).await;
    visit.assert_accessible().await;
    visit.browser.set_offline(true).await;
    visit.submit_email(&format!("{}@example.com", "m".repeat(64))).await;
    visit.wait_for_message("invalid", "try again").await;
    visit.browser.set_offline(false).await;
    visit.assert_accessible().await;
    visit.click("#invalid button").await;
    visit.wait_for_view(SENT).await;
    visit.assert_accessible().await;
    visit.finish().await;
}

#[tokio::test]
async fn without_javascript_the_page_says_what_it_needs() {
    let visit = Visit::new().await;
    visit.browser.devtools("Emulation.setScriptExecutionDisabled", json!({"value": true})).await;
    visit.open(&format!("{PAGE}?key=x")).await;
    let shown = visit.text("main").await;
    assert!(shown.starts_with("This page needs JavaScript"), "{shown}");
    assert!(!shown.contains("password"), "{shown}");
}
