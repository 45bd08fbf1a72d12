//! The facts that the agent reports about its host (agent-protocol 2.2).
//!
//! Most facts come from files that a minimal host may not have. A missing fact is omitted.

use std::collections::{HashMap, HashSet};
use std::fs;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::host::account::{AgentAccount, only_name};

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The body of the `commit` and `sync` calls.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Facts {
    pub version: &'static str,
    /// The load average of the last minute.
    pub load: f64,
    /// The only account that this agent can run commands as. Absent if the agent is root, which can
    /// use any account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_username: Option<String>,
    /// The hardware.
    pub info: Hardware,
    pub os: Os,
}

/// The hardware.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
pub struct Hardware {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The processor architecture, such as `x86_64`.
    pub cpu_type: &'static str,
    /// The processor's product name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_brand: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_physical_cores: Option<usize>,
    /// The hardware threads of all cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_logical_cores: Option<usize>,
    /// In bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical_memory: Option<u64>,
}

/// The operating system, from os-release(5).
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
pub struct Os {
    /// The name for people, such as `Debian GNU/Linux`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The name for programs, such as `debian`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// `debian` or `rhel` for systems of these families, otherwise the same as `platform`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform_like: Option<String>,
}

impl Facts {
    pub fn read() -> Self {
        let file = |path| fs::read_to_string(path).ok();
        let release = file("/etc/os-release").or_else(|| file("/usr/lib/os-release"));
        let mut info = file("/proc/cpuinfo").map(|text| parse_cpus(&text)).unwrap_or_default();
        info.cpu_type = std::env::consts::ARCH;
        info.hostname = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        info.cpu_logical_cores = info
            .cpu_logical_cores
            .or_else(|| std::thread::available_parallelism().ok().map(Into::into));
        info.physical_memory = file("/proc/meminfo").and_then(|text| parse_memory(&text));
        Self {
            version: VERSION,
            load: read_load(),
            default_username: only_name(AgentAccount::current()),
            info,
            os: release.map(|text| parse_os(&text)).unwrap_or_default(),
        }
    }

    /// The SHA-256 of each category's JSON, which the service may compare.
    pub fn hashes(&self) -> serde_json::Value {
        let hash = |category: Result<Vec<u8>, serde_json::Error>| {
            let digest = Sha256::digest(category.unwrap_or_default());
            format!(
                "sha256:{}",
                digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
            )
        };
        serde_json::json!({
            "info": hash(serde_json::to_vec(&self.info)),
            "os": hash(serde_json::to_vec(&self.os)),
        })
    }
}

/// The load average of the last minute, or 0 if the host does not provide it.
pub fn read_load() -> f64 {
    fs::read_to_string("/proc/loadavg").ok().and_then(|text| parse_load(&text)).unwrap_or_default()
}

/// Parses `/proc/loadavg`.
fn parse_load(text: &str) -> Option<f64> {
    text.split_ascii_whitespace().next()?.parse().ok().filter(|load: &f64| load.is_finite())
}

/// Parses `/proc/meminfo`. Returns bytes.
fn parse_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Parses `/proc/cpuinfo`. On ARM, the file lists threads only, without product name and cores.
fn parse_cpus(text: &str) -> Hardware {
    let fields = |text: &str| -> HashMap<String, String> {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
    };
    let processors: Vec<_> = text
        .split("\n\n")
        .map(fields)
        .filter(|processor| processor.contains_key("processor"))
        .collect();
    let cores: HashSet<_> = processors
        .iter()
        .filter_map(|processor| {
            Some((
                processor.get("physical id").cloned().unwrap_or_default(),
                processor.get("core id")?,
            ))
        })
        .collect();
    Hardware {
        cpu_brand: processors.iter().find_map(|processor| processor.get("model name").cloned()),
        cpu_physical_cores: Some(cores.len()).filter(|count| *count > 0),
        cpu_logical_cores: Some(processors.len()).filter(|count| *count > 0),
        ..Hardware::default()
    }
}

/// Parses `os-release`.
fn parse_os(text: &str) -> Os {
    let unquote = |value: &str| value.trim().trim_matches(['"', '\'']).to_owned();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(unquote(line)).filter(|value| !value.is_empty())
    };
    let platform = value("ID");
    let relatives = value("ID_LIKE").unwrap_or_default();
    let family =
        platform.iter().map(String::as_str).chain(relatives.split_ascii_whitespace()).find_map(
            |name| match name {
                "debian" | "ubuntu" => Some("debian"),
                "rhel" | "fedora" | "centos" => Some("rhel"),
                _ => None,
            },
        );
    Os {
        name: value("NAME"),
        version: value("VERSION_ID"),
        platform_like: family.map(str::to_owned).or_else(|| platform.clone()),
        platform,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_of_this_host_are_found() {
        let facts = Facts::read();
        assert!(facts.info.physical_memory > Some(1024 * 1024), "{facts:?}");
        assert!(facts.info.cpu_logical_cores > Some(0) && facts.load >= 0.0, "{facts:?}");
        assert!(
            facts.hashes()["os"]
                .as_str()
                .is_some_and(|hash| hash.starts_with("sha256:") && hash.len() == 71)
        );
    }

    #[test]
    fn cores_and_threads_are_counted() {
        let cpu = |n: u8, socket: u8, core: u8| {
            format!(
                "processor\t: {n}\nmodel name\t: Model 1: fast\nphysical id\t: {socket}\ncore id\t\t: {core}\n\n"
            )
        };
        let info = parse_cpus(&[cpu(0, 0, 0), cpu(1, 0, 0), cpu(2, 0, 1), cpu(3, 1, 0)].concat());
        assert_eq!((info.cpu_physical_cores, info.cpu_logical_cores), (Some(3), Some(4)));
        assert_eq!(info.cpu_brand.as_deref(), Some("Model 1: fast"));
        let arm =
            parse_cpus("processor\t: 0\nBogoMIPS\t: 50\n\nprocessor\t: 1\n\nHardware\t: board\n");
        assert_eq!(
            (arm.cpu_physical_cores, arm.cpu_logical_cores, arm.cpu_brand),
            (None, Some(2), None)
        );
        assert_eq!(parse_cpus("").cpu_logical_cores, None);
    }

    #[test]
    fn memory_and_load_are_parsed() {
        assert_eq!(parse_memory("MemFree: 1 kB\nMemTotal:  2048 kB\n"), Some(2 * 1024 * 1024));
        assert_eq!(
            (parse_memory("MemTotal: x"), parse_memory("MemTotal: 18446744073709551615 kB")),
            (None, None)
        );
        assert_eq!(
            (parse_load("0.25 0.10 0.05 1/100 42\n"), parse_load("nan"), parse_load("")),
            (Some(0.25), None, None)
        );
    }

    #[test]
    fn os_release_gives_the_family_of_a_system() {
        let family = |text: &str| parse_os(text).platform_like;
        assert_eq!(family("ID=debian").as_deref(), Some("debian"));
        assert_eq!(family("ID=mint\nID_LIKE=\"ubuntu debian\"").as_deref(), Some("debian"));
        assert_eq!(family("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"").as_deref(), Some("rhel"));
        assert_eq!(family("ID=alpine").as_deref(), Some("alpine"));
        assert_eq!(family(""), None);
        let rocky = parse_os(
            "NAME=\"Rocky Linux\"\nVERSION=\"9.4 (Blue Onyx)\"\nID=\"rocky\"\nVERSION_ID=\"9.4\"\n",
        );
        assert_eq!(
            (rocky.name.as_deref(), rocky.version.as_deref()),
            (Some("Rocky Linux"), Some("9.4"))
        );
        assert_eq!(rocky.platform.as_deref(), Some("rocky"));
    }
}
