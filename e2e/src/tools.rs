//! The binaries of a control plane, built once from Go modules whose versions `scale-tests/tools` pins, and kept in a cache.
//!
//! A cache folder is named after everything that decides what is in it, so a stale one is never used. Not known here: how the
//! binaries are started.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// A supported minor version of Kubernetes, with the newest patch that `scale-tests/tools` pins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Version {
    /// The newest: every test runs on it.
    #[default]
    V1_37,
    /// The oldest: tested before a release.
    V1_34,
}

impl Version {
    /// Folder below `scale-tests/tools` whose go.mod pins the server.
    const fn module(self) -> &'static str {
        match self {
            Self::V1_37 => ".",
            Self::V1_34 => "kubernetes-1.34",
        }
    }

    const fn minor(self) -> u32 {
        match self {
            Self::V1_37 => 37,
            Self::V1_34 => 34,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.minor())
    }
}

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "1.37" => Ok(Self::V1_37),
            "1.34" => Ok(Self::V1_34),
            other => bail!("Kubernetes version {other:?}: expected 1.37 or 1.34"),
        }
    }
}

/// What is built: the name of the binary, its package, and whether it is part of Kubernetes itself.
const PROGRAMS: [(&str, &str, bool); 5] = [
    ("etcd", "go.etcd.io/etcd/server/v3", false),
    ("kwok", "sigs.k8s.io/kwok/cmd/kwok", false),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl", true),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", true),
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", true),
];

/// Stages of kwok that its module ships: nodes are ready and stay so, pods run as soon as they are bound.
const STAGES: [&str; 3] = ["node/fast", "node/heartbeat-with-lease", "pod/fast"];

/// Changes when the way they are built does.
const RECIPE: &[u8] = b"1: stripped, version stamped, stages of kwok";

/// Built binaries.
#[derive(Clone, Debug)]
pub struct Tools {
    folder: PathBuf,
    version: Version,
}

impl Tools {
    /// Builds what is not in `cache` yet. Says on standard error what it does.
    ///
    /// # Errors
    /// If Go is missing, or a module cannot be fetched or built.
    pub fn build(repository: &Path, cache: &Path, version: Version) -> Result<Self> {
        let modules = repository.join("scale-tests/tools");
        let go = go_version()?;
        let folder = cache.join(format!("{version}-{:016x}", key(&modules, version, &go)?));
        let tools = Self { folder, version };
        if tools.folder.is_dir() {
            return Ok(tools);
        }
        fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
        let lock = File::create(cache.join("lock")).with_context(|| format!("cannot write in {}", cache.display()))?;
        lock.lock().context("cannot lock the cache of tools")?;
        if tools.folder.is_dir() {
            return Ok(tools);
        }
        let began = Instant::now();
        let half = tools.folder.with_extension("part");
        fs::create_dir_all(&half)?;
        let builds = cache.join("go-build");
        for (position, (name, package, of_kubernetes)) in PROGRAMS.into_iter().enumerate() {
            let step = Instant::now();
            eprintln!("e2e: building {name} ({} of {}) …", position + 1, PROGRAMS.len());
            let module = modules.join(if of_kubernetes { version.module() } else { "." });
            compile(&module, package, &half.join(name), version, &builds)?;
            eprintln!("e2e: built {name} in {:.0} s", step.elapsed().as_secs_f64());
        }
        fs::write(half.join("stages.yaml"), stages(&modules)?)?;
        // Gigabytes that are of no use to anybody once the programs are there.
        fs::remove_dir_all(&builds).with_context(|| format!("cannot remove {}", builds.display()))?;
        fs::rename(&half, &tools.folder).with_context(|| format!("cannot make {}", tools.folder.display()))?;
        eprintln!("e2e: tools of Kubernetes {version} built in {:.0} s", began.elapsed().as_secs_f64());
        Ok(tools)
    }

    /// Path of a program: `etcd`, `kwok`, `kubectl`, `kube-apiserver` or `kube-controller-manager`.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The stages of simulated nodes and pods, as kwok reads them.
    #[must_use]
    pub fn stages(&self) -> PathBuf {
        self.folder.join("stages.yaml")
    }

    /// Of Kubernetes.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }
}

/// `go1.26.8`.
fn go_version() -> Result<String> {
    match Command::new("go").args(["env", "GOVERSION"]).output() {
        Err(error) => Err(error).context("cannot start go (`cargo xtask e2e` says what it is needed for)"),
        Ok(output) if !output.status.success() => bail!("go env: {}", String::from_utf8_lossy(&output.stderr).trim()),
        Ok(output) => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
    }
}

/// A number for everything that the binaries depend on (FNV-1a, which is the same on every machine).
fn key(modules: &Path, version: Version, go: &str) -> Result<u64> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut take = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for folder in [".", version.module()] {
        for name in ["go.mod", "go.sum"] {
            let path = modules.join(folder).join(name);
            take(&fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
        }
    }
    take(go.as_bytes());
    take(RECIPE);
    Ok(hash)
}

/// `v1.37.2`, out of the module's go.mod.
fn pinned(module: &Path, path: &str) -> Result<String> {
    let text = fs::read_to_string(module.join("go.mod"))?;
    let versions = text.lines().filter_map(|line| line.trim().strip_prefix(path)?.strip_prefix(' '));
    let version = versions.filter_map(|rest| rest.split_whitespace().next()).find(|word| word.starts_with('v'));
    Ok(version.with_context(|| format!("{}/go.mod does not require {path}", module.display()))?.to_owned())
}

/// `builds`: where go keeps what it compiled. Not in the user's cache: so that a build takes as long on a machine that has
/// built them before as on a new one, and nothing is left there.
fn compile(module: &Path, package: &str, output: &Path, version: Version, builds: &Path) -> Result<()> {
    // Without its version a client does not know what it talks to.
    let patch = pinned(module, "k8s.io/kubernetes")?;
    let minor = version.minor();
    let mut flags = "-s -w".to_owned();
    for variables in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        flags += &format!(" -X {variables}.gitVersion={patch} -X {variables}.gitMajor=1 -X {variables}.gitMinor={minor}");
    }
    let mut command = Command::new("go");
    command.current_dir(module).env("CGO_ENABLED", "0").env("GOCACHE", builds).args([
        "build",
        "-mod=readonly",
        "-buildvcs=false",
    ]);
    let status = command.args(["-ldflags", &flags, "-o"]).arg(output).arg(package).status().context("cannot start go")?;
    if !status.success() {
        bail!("go build {package} in {}: {status}", module.display());
    }
    Ok(())
}

/// The stages of kwok's module, one after another.
fn stages(module: &Path) -> Result<String> {
    let mut command = Command::new("go");
    command.current_dir(module).args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start go")?;
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let mut text = String::new();
    for stage in STAGES {
        let stage = folder.join("kustomize/stage").join(stage);
        let entries = fs::read_dir(&stage).with_context(|| format!("cannot read {}", stage.display()))?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        paths.sort();
        let is_stage = |path: &&PathBuf| path.extension().is_some_and(|e| e == "yaml") && !path.ends_with("kustomization.yaml");
        for path in paths.iter().filter(is_stage) {
            text += "---\n";
            text += fs::read_to_string(path)?.trim_end();
            text += "\n";
        }
    }
    Ok(text)
}
