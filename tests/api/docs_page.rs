//! The interactive API reference at `/api/docs/`: over HTTP, and in Chromium.

use fantoccini::Locator;
use farhand_tests::{Browser, Workspace, eventually};
use serde_json::{Value, json};

const PAGE: &str = "/api/docs/";
/// Every file of the page, with its media type.
const FILES: [(&str, &str); 5] = [
    (PAGE, "text/html; charset=utf-8"),
    ("/api/docs/page.css", "text/css; charset=utf-8"),
    ("/api/docs/page.js", "text/javascript; charset=utf-8"),
    ("/api/docs/swagger-ui.css", "text/css; charset=utf-8"),
    ("/api/docs/swagger-ui.js", "text/javascript; charset=utf-8"),
];

#[tokio::test]
async fn the_files_have_strict_headers() {
    let api = Workspace::new().await.anonymous;
    for (path, media_type) in FILES {
        let reply = api.get(path).await;
        assert_eq!(reply.status, 200, "{path}");
        assert!(reply.text.len() > 500, "{path}");
        for (name, value) in [
            ("Content-Type", media_type),
            ("Referrer-Policy", "no-referrer"),
            ("X-Frame-Options", "DENY"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-store"),
        ] {
            assert_eq!(reply.header(name), value, "{path}");
        }
        assert!(!reply.header("X-Request-Id").is_empty(), "{path}");
        let expected = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
            base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
        assert_eq!(reply.header("Content-Security-Policy"), expected, "{path}");

        let head = api.call("HEAD", path).await;
        assert_eq!((head.status, head.text.as_str()), (200, ""), "{path}");
        assert_eq!(head.header("Content-Type"), media_type);
        let post = api.call("POST", path).await;
        assert_eq!((post.status, post.header("Allow")), (405, "GET, HEAD, OPTIONS"), "{path}");
    }
}

#[tokio::test]
async fn only_workspaces_have_the_page() {
    let api = Workspace::new().await.anonymous;
    for host in ["nobody-has-this.local.localhost", "example.com", "local.localhost"] {
        for (path, _) in FILES {
            api.with_host(host).get(path).await.expect_detail(404, None);
        }
    }
    let moved = api.get("/api/docs").await;
    assert_eq!(moved.header("Location"), format!("http://{}/api/docs/", api.host));
    for path in ["/api/docs/index.html/", "/api/docs/page.js/", "/api/docs/../docs.js/"] {
        api.get(path).await.expect_detail(404, None);
    }
}

/// A browser on the page of its own workspace.
struct Visit {
    workspace: Workspace,
    browser: Browser,
}

impl Visit {
    async fn new() -> Self {
        let (workspace, browser) = (Workspace::new().await, Browser::open().await);
        let visit = Self { workspace, browser };
        visit.browser.client.goto(&visit.url(PAGE)).await.unwrap();
        visit.until("the operations", ".opblock-tag").await;
        visit
    }

    fn url(&self, path: &str) -> String {
        let port = self.workspace.anonymous.url.rsplit(':').next().unwrap();
        format!("http://{}:{port}{path}", self.workspace.anonymous.host)
    }

    /// Waits until the page has an element.
    async fn until(&self, what: &str, css: &str) {
        let found = format!("document.querySelector({}) !== null", json!(css));
        eventually(what, || async { (self.browser.value(&found).await == true).then_some(()) })
            .await;
    }

    async fn click(&self, css: &str) {
        self.until(css, css).await;
        self.browser.client.find(Locator::Css(css)).await.unwrap().click().await.unwrap();
    }

    /// Executes an operation. Returns the response's status and the sent Authorization header.
    async fn execute(&self, tag: &str, operation: &str, path: &str) -> (String, Value) {
        let block = format!("#operations-{tag}-{operation}");
        if self.browser.client.find(Locator::Css(&block)).await.is_err() {
            self.click(&format!("#operations-tag-{tag}")).await;
            self.click(&format!("{block} .opblock-summary-control")).await;
        }
        self.browser.requests().await;
        self.click(&format!("{block} .execute")).await;
        let url = self.url(path);
        let header = eventually("the request", || async {
            let requests = self.browser.requests().await;
            let sent = requests.iter().find(|request| request["url"] == url)?;
            Some(sent["headers"]["Authorization"].clone())
        })
        .await;
        let status = format!("{block} .live-responses-table tr.response td.response-col_status");
        self.until("the answer", &status).await;
        let shown = self.browser.client.find(Locator::Css(&status)).await.unwrap();
        (shown.text().await.unwrap(), header)
    }

    async fn enter(&self, credential: &str) {
        let field = self.browser.client.find(Locator::Css("#credential")).await.unwrap();
        field.clear().await.unwrap();
        field.send_keys(credential).await.unwrap();
    }

    /// Asserts that the browser's console is empty. It would show violations of the policy.
    async fn end(self) {
        assert_eq!(self.browser.console().await, Vec::<Value>::new());
    }
}

#[tokio::test]
async fn a_token_gets_its_quotes_and_a_request_its_answer() {
    let visit = Visit::new().await;
    let (status, header) = visit.execute("Service", "status", "/api/status/").await;
    assert_eq!((status.as_str(), header), ("401", Value::Null));

    let login = json!({"username": "boss", "password": farhand_tests::client::PASSWORD});
    let login = visit.workspace.anonymous.post("/api/auth/login/", &login).await.expect(200);
    let token = login["token"].as_str().unwrap();
    visit.enter(token).await;
    let header = visit.execute("Service", "status", "/api/status/").await.1;
    assert_eq!(header, format!("token=\"{token}\""));
    eventually("the new answer", || async {
        let shown =
            "document.querySelector('#operations-Service-status .live-responses-table').innerText";
        let shown = visit.browser.value(shown).await;
        shown.as_str().unwrap().contains("\"status\": \"ok\"").then_some(())
    })
    .await;
    // A complete header is sent unchanged.
    visit.enter(&format!("token=\"{token}\"")).await;
    let header = visit.execute("Service", "status", "/api/status/").await.1;
    assert_eq!(header, format!("token=\"{token}\""));
    visit.click("#forget").await;
    let header = visit.execute("Service", "status", "/api/status/").await.1;
    assert_eq!(header, Value::Null);
    let stored = "[localStorage.length, sessionStorage.length, document.cookie]";
    assert_eq!(visit.browser.value(stored).await, json!([0, 0, ""]));
    visit.end().await;
}

#[tokio::test]
async fn the_page_asks_its_own_origin_only() {
    let visit = Visit::new().await;
    visit.click("#operations-tag-Commands").await;
    visit.click("#operations-Commands-createCommand .opblock-summary-control").await;
    visit.until("the fields", "#operations-Commands-createCommand textarea").await;
    let requests = visit.browser.requests().await;
    let urls: Vec<&str> = requests.iter().map(|request| request["url"].as_str().unwrap()).collect();
    let expected = FILES.map(|(path, _)| visit.url(path));
    for url in &expected {
        assert!(urls.contains(&url.as_str()), "{url}: {urls:?}");
    }
    for url in urls {
        assert!(url.starts_with(&visit.url("/")) || url.starts_with("data:"), "{url}");
    }
    visit.end().await;
}

#[tokio::test]
async fn the_page_is_accessible() {
    let visit = Visit::new().await;
    for scheme in ["light", "dark"] {
        visit.browser.set_color_scheme(scheme).await;
        let found = visit.browser.axe_violations().await;
        // Swagger UI itself violates two rules: headings of tags are one level too low, and its
        // title is outside of `main`.
        let rules: Vec<&Value> = found.as_array().unwrap().iter().map(|rule| &rule["id"]).collect();
        assert_eq!(rules, ["heading-order", "region"], "{scheme}: {found:#}");
    }
    visit.end().await;
}
