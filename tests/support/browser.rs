//! A browser: headless Chromium with its own profile, controlled over WebDriver.

use std::fs::{self, File};
use std::process::Stdio;

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::{Client, ClientBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::instance::kill_processes_with;
use crate::processes::Process;
use crate::{eventually, setting};

/// The accessibility checker axe-core.
const AXE_SCRIPT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../node_modules/axe-core/axe.min.js");

/// A browser with one window. Dropping it ends the browser.
pub struct Browser {
    /// The WebDriver client.
    pub client: Client,
    /// The session's URL, for commands that only Chromium has.
    session: String,
    _driver: Process,
    folder: TempDir,
}

impl Browser {
    pub async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let printed = folder.path().join("driver.out");
        let mut command = Command::new(setting("FARHAND_CHROMEDRIVER"));
        command
            .arg("--port=0")
            // Every process has the folder in its arguments or its environment, so Drop finds all
            // processes. Temporary files go there as well.
            .arg(format!("--log-path={}", folder.path().join("driver.log").display()))
            .env("TMPDIR", folder.path())
            .stdin(Stdio::null())
            .stdout(File::create(&printed).unwrap())
            .stderr(Stdio::null());
        let driver = Process::spawn(&mut command);
        let port = eventually("the driver's port", || async {
            let text = fs::read_to_string(&printed).unwrap();
            Some(text.split_once("successfully on port ")?.1.split_once('.')?.0.to_owned())
        })
        .await;
        let driver_url = format!("http://127.0.0.1:{port}");
        let capabilities = json!({
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "goog:chromeOptions": {"binary": setting("FARHAND_CHROMIUM"), "args": [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                format!("--user-data-dir={}", folder.path().join("profile").display()),
            ]},
        });
        let mut builder = ClientBuilder::new(HttpConnector::new());
        builder.capabilities(capabilities.as_object().unwrap().clone());
        let client = builder.connect(&driver_url).await.unwrap();
        let session =
            format!("{driver_url}/session/{}", client.session_id().await.unwrap().unwrap());
        Self { client, session, _driver: driver, folder }
    }

    /// Sends a command that the WebDriver client does not offer.
    async fn extra(&self, command: &str, body: &Value) -> Value {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let response =
            client.post(format!("{}/{command}", self.session)).json(body).send().await.unwrap();
        let answer: Value = response.json().await.unwrap();
        assert!(answer["value"]["error"].is_null(), "{command} {body}: {answer}");
        answer["value"].clone()
    }

    /// Sends a command of the Chrome DevTools Protocol.
    pub async fn devtools(&self, command: &str, parameters: Value) {
        self.extra("goog/cdp/execute", &json!({"cmd": command, "params": parameters})).await;
    }

    /// Emulates a mobile screen of a size, or stops the emulation.
    pub async fn set_screen(&self, size: Option<(u32, u32)>) {
        match size {
            Some((width, height)) => {
                let screen = json!({"width": width, "height": height, "deviceScaleFactor": 2, "mobile": true});
                self.devtools("Emulation.setDeviceMetricsOverride", screen).await;
            }
            None => self.devtools("Emulation.clearDeviceMetricsOverride", json!({})).await,
        }
    }

    /// Sets the colour scheme that pages see as the user's preference: `light` or `dark`.
    pub async fn set_color_scheme(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    pub async fn set_offline(&self, offline: bool) {
        let throughput = if offline { 0 } else { -1 };
        let network = json!({"offline": offline, "latency": 0, "downloadThroughput": throughput,
            "uploadThroughput": throughput});
        self.devtools("Network.emulateNetworkConditions", network).await;
    }

    /// Sends a header with every request from now on.
    pub async fn set_header(&self, name: &str, value: &str) {
        self.devtools("Network.enable", json!({})).await;
        self.devtools("Network.setExtraHTTPHeaders", json!({"headers": {name: value}})).await;
    }

    /// Presses keys one after the other on the focused element.
    pub async fn press(&self, keys: impl IntoIterator<Item = char>) {
        let press = |actions: KeyActions, value: char| {
            actions.then(KeyAction::Down { value }).then(KeyAction::Up { value })
        };
        let actions = keys.into_iter().fold(KeyActions::new("keyboard".to_owned()), press);
        self.client.perform_actions(actions).await.unwrap();
    }

    /// The value of a JavaScript expression.
    pub async fn value(&self, expression: &str) -> Value {
        self.client.execute(&format!("return {expression}"), Vec::new()).await.unwrap()
    }

    /// New console messages since the last call, without advice and without failed requests.
    pub async fn console(&self) -> Vec<Value> {
        let entries = self.extra("se/log", &json!({"type": "browser"})).await;
        let says =
            |entry: &&Value| entry["source"] != "network" && entry["source"] != "recommendation";
        entries.as_array().unwrap().iter().filter(says).cloned().collect()
    }

    /// The requests that pages sent since the last call: `method`, `url`, `headers` and `postData`
    /// of each.
    pub async fn requests(&self) -> Vec<Value> {
        let entries = self.extra("se/log", &json!({"type": "performance"})).await;
        let events = entries.as_array().unwrap().iter();
        let messages = events.map(|entry| {
            serde_json::from_str::<Value>(entry["message"].as_str().unwrap()).unwrap()
        });
        let sent =
            messages.filter(|event| event["message"]["method"] == "Network.requestWillBeSent");
        let parameters = sent.map(|event| event["message"]["params"].clone());
        // Chromium's own first page sends requests too.
        let of_pages =
            parameters.filter(|sent| sent["documentURL"].as_str().unwrap().starts_with("http"));
        of_pages.map(|sent| sent["request"].clone()).collect()
    }

    /// The accessibility rules that the current page violates, each with the elements concerned.
    pub async fn axe_violations(&self) -> Value {
        let axe =
            fs::read_to_string(AXE_SCRIPT).unwrap_or_else(|error| panic!("{AXE_SCRIPT}: {error}"));
        self.client.execute(&axe, Vec::new()).await.unwrap();
        let run = "const done = arguments[0];
            axe.run({resultTypes: ['violations']}).then(
              (found) => done(found.violations.map(({id, nodes}) => ({id, nodes: nodes.map((node) => node.html)}))),
              (error) => done(String(error)));";
        self.client.execute_async(run, Vec::new()).await.unwrap()
    }
}

impl Drop for Browser {
    /// Chromium is in another process group than the driver, so ending the driver is not enough.
    fn drop(&mut self) {
        kill_processes_with(self.folder.path());
    }
}
