//! The console at `/` over HTTP (contract 16). Its tests in a browser are in `web/console/tests`.

use farhand_domain::http::console::PAGES;
use farhand_tests::Workspace;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
const FOREVER: &str = "public, max-age=31536000, immutable";

/// The paths of the files that the page refers to.
fn files_of(page: &str) -> Vec<&str> {
    page.split('"').filter(|text| text.starts_with("/console/")).collect()
}

#[tokio::test]
async fn the_page_and_its_files_have_strict_headers() {
    let api = Workspace::new().await.anonymous;
    let page = api.get("/").await;
    let files = files_of(&page.text);
    assert!(files.len() >= 3, "{}", page.text);
    for path in ["/"].iter().chain(&files) {
        let reply = api.get(path).await;
        assert_eq!(reply.status, 200, "{path}");
        let media_type = match path.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        for (name, value) in [
            ("Content-Type", media_type),
            ("Content-Security-Policy", POLICY),
            ("Cache-Control", if *path == "/" { "no-cache" } else { FOREVER }),
            ("Referrer-Policy", "no-referrer"),
            ("X-Frame-Options", "DENY"),
            ("X-Content-Type-Options", "nosniff"),
        ] {
            assert_eq!(reply.header(name), value, "{path}");
        }
        let head = api.call("HEAD", path).await;
        assert_eq!((head.status, head.text.as_str()), (200, ""), "{path}");
        let post = api.call("POST", path).await;
        assert_eq!((post.status, post.header("Allow")), (405, "GET, HEAD, OPTIONS"), "{path}");
    }
    let licences = api.get("/console/licences.txt").await;
    assert!(licences.text.contains("react-dom") && licences.text.contains("MIT"));
    assert_eq!(licences.header("Content-Type"), "text/plain; charset=utf-8");
    assert_eq!(licences.header("Cache-Control"), "no-cache");
    // Nothing is inline, because the policy forbids it.
    assert!(!page.text.contains("<style") && !page.text.contains(" style="), "{}", page.text);
    assert!(page.text.matches("<script").count() == page.text.matches("src=\"/console/").count());
}

#[tokio::test]
async fn every_page_has_an_address() {
    let api = Workspace::new().await.anonymous;
    let page = api.get("/").await.text;
    for name in PAGES {
        for path in [format!("/{name}"), format!("/{name}/"), format!("/{name}/some/where?x=1")] {
            let reply = api.get(&path).await;
            assert_eq!((reply.status, &reply.text), (200, &page), "{path}");
        }
    }
    let unknown = [
        "/nope",
        "/Servers",
        "/console/",
        "/console/index.html",
        "/console/unknown.js",
        "/console/x/y.js",
        "/console/..%2Fapi%2Fdocs%2Findex.html",
        "/console/%2e%2e%2findex.js",
    ];
    for path in unknown {
        api.get(path).await.expect_detail(404, None);
    }
    for host in ["nobody-has-this.local.localhost", "example.com", "local.localhost"] {
        for path in ["/", "/servers", "/console/unknown.js"] {
            api.with_host(host).get(path).await.expect_detail(404, None);
        }
    }
}
