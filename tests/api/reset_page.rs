//! The page for a new password, at `/reset-password/`: over HTTP, and as a person uses it, in
//! Chromium.

use std::fs;

use fantoccini::Locator;
use fantoccini::key::Key;
use farhand_tests::client::PASSWORD;
use farhand_tests::{Api, Browser, Reply, Workspace, eventually, mail};
use serde_json::{Value, json};
use uuid::Uuid;

const PAGE: &str = "/reset-password/";
/// Every file of the page, with its media type.
const FILES: &[(&str, &str)] = &[
    (PAGE, "text/html; charset=utf-8"),
    ("/reset-password/page.css", "text/css; charset=utf-8"),
    ("/reset-password/page.js", "text/javascript; charset=utf-8"),
];
/// The views, with their headings.
const CHOOSE: (&str, &str) = ("choose", "Choose a new password");
const DONE: (&str, &str) = ("done", "Password changed");
const INVALID: (&str, &str) = ("invalid", "This link does not work");
const SENT: (&str, &str) = ("sent", "Check your mail");
const NEW_PASSWORD: &str = "quiet rivers run deep";

/// The key of a link that was just mailed to the workspace's superuser.
async fn reset_key(workspace: &Workspace) -> String {
    let client = own_address();
    let asked = ask(&workspace.anonymous, "boss@example.com", &client);
    mail::key_of(&mail::reset_link(workspace, "boss@example.com", asked).await).to_owned()
}

/// An address of a client that no other test has.
fn own_address() -> String {
    let [a, b, c, ..] = *Uuid::new_v4().as_bytes();
    format!("10.{a}.{b}.{c}")
}

/// Asks for a link as a client with an address.
async fn ask(api: &Api, email: &str, client: &str) -> Reply {
    api.from_address(client).post("/api/auth/reset-password/", &json!({"email": email})).await
}

/// A browser on the page of a workspace of its own.
struct Visit {
    workspace: Workspace,
    browser: Browser,
    /// The client's address.
    client: String,
}

impl Visit {
    async fn new() -> Self {
        let (workspace, browser, client) =
            (Workspace::new().await, Browser::open().await, own_address());
        browser.set_header("X-Forwarded-For", &client).await;
        Self { workspace, browser, client }
    }

    /// Opens the page with a link that was just mailed; returns the link's key.
    async fn choosing() -> (Self, String) {
        let visit = Self::new().await;
        let key = reset_key(&visit.workspace).await;
        visit.open(&format!("{PAGE}?key={key}")).await;
        visit.sees(CHOOSE).await;
        (visit, key)
    }

    fn url(&self, path: &str) -> String {
        let port = self.workspace.anonymous.url.rsplit(':').next().unwrap();
        format!("http://{}:{port}{path}", self.workspace.anonymous.host)
    }

    async fn open(&self, path: &str) {
        self.browser.client.goto(&self.url(path)).await.unwrap();
    }

    /// Waits until a view is shown, and no other.
    async fn sees(&self, (view, heading): (&str, &str)) {
        eventually(heading, || async {
            let shown =
                "[...document.querySelectorAll('section')].filter((view) => !view.hidden).map((view) => view.id)";
            (self.browser.value(shown).await == json!([view])).then_some(())
        })
        .await;
        assert_eq!(self.text(&format!("#{view} h1")).await, heading);
        assert_eq!(self.browser.client.title().await.unwrap(), format!("{heading} · Farhand"));
    }

    /// Waits until a view has a message above its form.
    async fn is_told(&self, view: &str, message: &str) {
        eventually(message, || async {
            (self.text(&format!("#{view} [role=alert]")).await.contains(message)).then_some(())
        })
        .await;
    }

    async fn text(&self, css: &str) -> String {
        self.browser.client.find(Locator::Css(css)).await.unwrap().text().await.unwrap()
    }

    /// The texts of the messages at the password's field.
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

    /// Puts a text into a field in place of what is there.
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

    /// The element that has the focus, as an expression tells it.
    async fn focused(&self, of_element: &str) -> Value {
        self.browser.value(&format!("document.activeElement.{of_element}")).await
    }

    /// Asserts that the console is silent.
    async fn end(self) {
        assert_eq!(self.browser.console().await, Vec::<Value>::new());
    }

    /// Asserts that what is shown now is accessible, light and dark, and fits a phone.
    async fn suits_everyone(&self) {
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
        assert_eq!(
            reply.text,
            fs::read_to_string(file).unwrap(),
            "as it was written, nothing put in"
        );
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
async fn nothing_else_of_the_files_is_served() {
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
        // The slash rule is for the API's paths (contract 3.1).
        api.get(path.trim_end_matches('/')).await.expect_detail(404, None);
    }
    api.get("/reset-password/page.css/").await.expect_detail(404, None);
    let moved = api.get("/reset-password?key=x").await;
    assert_eq!(moved.header("Location"), format!("http://{}/reset-password/?key=x", api.host));
}

#[tokio::test]
async fn the_page_belongs_to_workspaces() {
    let api = Workspace::new().await.anonymous;
    for host in ["nobody-has-this.local.localhost", "example.com", "local.localhost"] {
        for (path, _) in FILES {
            api.under(host).get(path).await.expect_detail(404, None);
            api.under(host).call("POST", path).await.expect_detail(404, None);
        }
    }
}

#[tokio::test]
async fn a_new_password_ends_sessions_and_leaves_tokens() {
    let visit = Visit::new().await;
    let (workspace, browser) = (&visit.workspace, &visit.browser);
    let key = reset_key(workspace).await;
    // The link of the mail leads to the page.
    visit.open(&format!("/api/auth/reset-password/confirm/{key}/")).await;
    visit.sees(CHOOSE).await;
    assert_eq!(browser.client.current_url().await.unwrap().as_str(), visit.url(PAGE));
    assert!(visit.text("#choose p").await.contains(&workspace.anonymous.host));
    visit.submit_password(NEW_PASSWORD).await;
    visit.sees(DONE).await;
    assert_eq!(visit.focused("role").await, "status", "so that it is heard");
    let told = visit.text("#done [role=status]").await;
    assert!(
        told.contains("sessions were signed out") && told.contains("API tokens stay"),
        "{told}"
    );

    workspace.session().get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    workspace.admin.get("/api/status/").await.expect(200);
    for (password, status) in [(PASSWORD, 403), (NEW_PASSWORD, 200)] {
        let login = json!({"username": "boss", "password": password});
        workspace.anonymous.post("/api/auth/login/", &login).await.expect(status);
    }

    // The link was used: neither it nor the page takes the key again.
    visit.open(&format!("{PAGE}?key={key}")).await;
    visit.sees(CHOOSE).await;
    visit.submit_password("another fine password").await;
    visit.sees(INVALID).await;
    assert_eq!(visit.focused("textContent").await, INVALID.1);
    visit.open(&format!("/api/auth/reset-password/confirm/{key}/")).await;
    visit.sees(INVALID).await;
    assert_eq!(
        browser.client.current_url().await.unwrap().as_str(),
        visit.url(&format!("{PAGE}?error=invalid"))
    );
    visit.end().await;
}

#[tokio::test]
async fn the_key_goes_into_one_request_and_nowhere_else() {
    let (visit, key) = Visit::choosing().await;
    visit.fill("#password", NEW_PASSWORD).await;
    // Three clicks before anything can have come back.
    visit
        .browser
        .value("[1, 2, 3].forEach(() => document.querySelector('#choose button').click())")
        .await;
    visit.sees(DONE).await;
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
    visit.end().await;
}

#[tokio::test]
async fn the_key_leaves_the_address_bar_and_the_history() {
    let (visit, key) = Visit::choosing().await;
    let here = visit.url(PAGE);
    assert_eq!(visit.browser.value("location.href").await, here);
    assert!(!visit.browser.client.source().await.unwrap().contains(&key));
    // Coming back to it from another page does not show the key either.
    visit.open("/reset-password/?error=invalid").await;
    visit.sees(INVALID).await;
    visit.browser.client.back().await.unwrap();
    eventually("the page before", || async {
        (visit.browser.value("location.href").await == here).then_some(())
    })
    .await;
    visit.end().await;

    // The form works without it.
    let (visit, _) = Visit::choosing().await;
    visit.submit_password(NEW_PASSWORD).await;
    visit.sees(DONE).await;
    assert_eq!(visit.browser.value("location.search").await, "");
    visit.end().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_password_stands_at_its_field() {
    let (visit, _) = Visit::choosing().await;
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
    assert_eq!(visit.focused("value").await, "12345", "what was typed stays");
    let described = "getAttribute('aria-describedby').split(' ').map((id) => document.getElementById(id).innerText)";
    let described = visit.focused(described).await.to_string();
    assert!(
        described.contains("too common") && described.contains("At least 8 characters"),
        "{described}"
    );
    assert_eq!(visit.text("#choose [role=alert]").await, "");

    // Other messages take the place of these.
    visit.submit_password("boss@example").await;
    eventually("the message", || async {
        (visit.problems().await == ["The password is too similar to the email address."])
            .then_some(())
    })
    .await;
    visit.submit_password(NEW_PASSWORD).await;
    visit.sees(DONE).await;
    visit.end().await;
}

#[tokio::test]
async fn a_failure_leaves_the_form_as_it_was() {
    let (visit, _) = Visit::choosing().await;
    visit.browser.set_offline(true).await;
    visit.submit_password(NEW_PASSWORD).await;
    visit.is_told("choose", "try again").await;
    assert_eq!(
        visit.browser.value("document.querySelector('#password').value").await,
        NEW_PASSWORD
    );
    visit.browser.set_offline(false).await;
    visit.click("#choose button").await;
    visit.sees(DONE).await;

    visit.open(&format!("{PAGE}?error=invalid")).await;
    visit.browser.set_offline(true).await;
    visit.submit_email("someone@example.com").await;
    visit.is_told("invalid", "try again").await;
    visit.browser.set_offline(false).await;
    visit.click("#invalid button").await;
    visit.sees(SENT).await;
    visit.end().await;
}

#[tokio::test]
async fn the_password_is_shown_on_request_only() {
    let (visit, _) = Visit::choosing().await;
    let kind = || async { visit.browser.value("document.querySelector('#password').type").await };
    assert_eq!(kind().await, "password");
    visit.click("label:has(#show)").await;
    assert_eq!(kind().await, "text");
    visit.click("label:has(#show)").await;
    assert_eq!(kind().await, "password");
    visit.end().await;
}

#[tokio::test]
async fn a_link_that_is_not_good_leads_to_a_new_one() {
    let visit = Visit::new().await;
    for query in
        ["", "?key=", "?error=invalid", "?error=invalid&key=x", "?key=.", "?key=..", "?key=%2E%2e"]
    {
        visit.open(&format!("{PAGE}{query}")).await;
        visit.sees(INVALID).await;
    }
    assert!(
        visit
            .text("#invalid")
            .await
            .contains("It is unknown, was used before, or is older than 24 hours.")
    );
    // A key that is no key is sent as it is, as one segment of the path.
    visit.browser.requests().await;
    visit.open(&format!("{PAGE}?key=a%2F..%3Fb%26c")).await;
    visit.sees(CHOOSE).await;
    visit.submit_password(NEW_PASSWORD).await;
    visit.sees(INVALID).await;
    let requests = visit.browser.requests().await;
    let post = requests.iter().find(|request| request["method"] == "POST").unwrap();
    assert_eq!(post["url"], visit.url("/api/auth/reset-password/confirm/a%2F..%3Fb%26c/"));

    // The browser itself refuses what is no address.
    visit.submit_email("someone").await;
    assert_eq!(
        visit.browser.value("document.querySelector('#email').validity.patternMismatch").await,
        true
    );
    visit.browser.requests().await;
    visit.submit_email("jürgen@bücher.example ").await;
    visit.sees(SENT).await;
    assert_eq!(visit.focused("role").await, "status", "so that it is heard");
    let told = visit.text("#sent [role=status]").await;
    assert!(
        told.contains(
            "If this address belongs to an account, a mail with a new link is on its way"
        ),
        "{told}"
    );
    assert!(told.contains("jürgen@bücher.example"), "{told}");
    let requests = visit.browser.requests().await;
    let sent = requests.iter().find_map(|request| request["postData"].as_str()).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(sent).unwrap(),
        json!({"email": "jürgen@bücher.example"})
    );
    visit.click("#again").await;
    visit.sees(INVALID).await;
    assert_eq!(visit.focused("id").await, "email");
    visit.end().await;
}

#[tokio::test]
async fn too_many_requests_for_a_link_are_told_apart() {
    let visit = Visit::new().await;
    let api = &visit.workspace.anonymous;
    for _ in 0..5 {
        ask(api, "someone@example.com", &own_address()).await.expect(200);
    }
    visit.open(&format!("{PAGE}?error=invalid")).await;
    visit.submit_email("someone@example.com").await;
    visit.is_told("invalid", "Too many links were asked for this address lately.").await;
    let mut asked = 0;
    while ask(api, &format!("someone-{asked}@example.com"), &visit.client).await.status != 429 {
        asked += 1;
        assert!(asked <= 20, "20 an hour");
    }
    visit.submit_email("someone-else@example.com").await;
    visit.is_told("invalid", "Too many requests came from your network.").await;
    assert_eq!(
        visit.browser.value("document.querySelector('#email').value").await,
        "someone-else@example.com"
    );
    visit.end().await;
}

#[tokio::test]
async fn a_keyboard_is_enough() {
    let (visit, key) = Visit::choosing().await;
    let press = |keys: Vec<char>| visit.browser.press(keys);
    let typed = |text: &str| text.chars().collect();
    press(vec![Key::Tab.into()]).await;
    assert_eq!(visit.focused("id").await, "password", "the first stop");
    assert_eq!(visit.focused("matches(':focus-visible')").await, true);
    press(typed("12345")).await;
    press(vec![Key::Enter.into()]).await;
    eventually("the messages", || async { (!visit.problems().await.is_empty()).then_some(()) })
        .await;
    // The focus came back to the field: the text goes on.
    press(typed(" rivers run deep")).await;
    press(vec![Key::Tab.into(), ' ']).await;
    assert_eq!(visit.focused("checked").await, true);
    press(vec![Key::Tab.into()]).await;
    assert_eq!(visit.focused("tagName").await, "BUTTON");
    let outline = "(({outlineStyle, outlineWidth}) => [outlineStyle, outlineWidth])(getComputedStyle(document.activeElement))";
    assert_eq!(visit.browser.value(outline).await, json!(["solid", "3px"]), "the focus is seen");
    press(vec![Key::Enter.into()]).await;
    visit.sees(DONE).await;

    visit.open(&format!("{PAGE}?key={key}")).await;
    press(vec![Key::Tab.into()]).await;
    press(typed(NEW_PASSWORD)).await;
    press(vec![Key::Enter.into()]).await;
    visit.sees(INVALID).await;
    // From the heading, which has the focus, on to the field.
    press(vec![Key::Tab.into()]).await;
    press(typed("someone@example.com")).await;
    press(vec![Key::Tab.into(), Key::Enter.into()]).await;
    visit.sees(SENT).await;
    press(vec![Key::Tab.into(), Key::Enter.into()]).await;
    visit.sees(INVALID).await;
    visit.end().await;
}

#[tokio::test]
async fn every_view_suits_everyone() {
    let (visit, _) = Visit::choosing().await;
    visit.suits_everyone().await;
    visit.submit_password("12345").await;
    eventually("the messages", || async { (!visit.problems().await.is_empty()).then_some(()) })
        .await;
    visit.suits_everyone().await;
    visit.browser.set_offline(true).await;
    visit.submit_password(&"M".repeat(128)).await;
    visit.is_told("choose", "try again").await;
    visit.browser.set_offline(false).await;
    visit.suits_everyone().await;
    visit.submit_password(NEW_PASSWORD).await;
    visit.sees(DONE).await;
    visit.suits_everyone().await;

    visit.open(&format!("{PAGE}?error=invalid")).await;
    visit.suits_everyone().await;
    visit.browser.set_offline(true).await;
    visit.submit_email(&format!("{}@example.com", "m".repeat(64))).await;
    visit.is_told("invalid", "try again").await;
    visit.browser.set_offline(false).await;
    visit.suits_everyone().await;
    visit.click("#invalid button").await;
    visit.sees(SENT).await;
    visit.suits_everyone().await;
    visit.end().await;
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
