//! Cycles that break off with a bug of ours: the rows go to a file, the gang whose turn it was is set aside, and the process goes
//! on with all others.

use std::any::Any;
use std::fs;
use std::io::{self, BufWriter, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use muster_api::names::ObjectName;
use muster_api::read::Loaded;
use muster_core::cycle::{Scheduler, Stage};
use muster_core::index::GangIdx;
use muster_core::outcome::Outcome;

/// A cycle that broke off.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mishap {
    /// Whose turn it was.
    pub gang: Option<GangIdx>,
    /// What the panic said.
    pub said: String,
}

/// One cycle, whatever comes of it. `begin` is called as each stage begins.
///
/// # Errors
/// If it panics.
pub fn plan(scheduler: &mut Scheduler, loaded: &Loaded, begin: &mut dyn FnMut(Stage)) -> Result<Outcome, Mishap> {
    let config = &loaded.snapshot.config;
    let cycle = AssertUnwindSafe(|| scheduler.run(config, begin).clone());
    // What the scheduler holds is worthless afterwards; only whose turn it was is asked.
    catch_unwind(cycle).map_err(|panic| Mishap { gang: scheduler.at_work(), said: said(&*panic) })
}

/// What a panic says.
#[must_use]
pub fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").to_owned()
}

/// Where rows are written, at most `Dumps::MOST` times by one process: a bug that comes back must not fill the disk.
#[derive(Debug)]
pub struct Dumps {
    folder: PathBuf,
    written: u32,
}

impl Dumps {
    const MOST: u32 = 8;

    /// Into this folder.
    #[must_use]
    pub fn to(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), written: 0 }
    }

    /// Writes the rows and what was said; `None`: enough was written.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, shard: &str, loaded: &Loaded, mishap: &Mishap) -> io::Result<Option<PathBuf>> {
        if self.written >= Self::MOST {
            return Ok(None);
        }
        self.written += 1;
        let time = loaded.now.strftime("%Y%m%dT%H%M%S");
        let path = self.folder.join(format!("muster-{shard}-{time}-{}-{}.rows", std::process::id(), self.written));
        let mut file = BufWriter::new(fs::File::create_new(&path)?);
        writeln!(file, "muster {}: a cycle of shard {shard} broke off at {}", env!("CARGO_PKG_VERSION"), loaded.now)?;
        writeln!(file, "panic: {}", mishap.said)?;
        writeln!(file, "gang: {}", mishap.gang.map_or("unknown".to_owned(), |gang| loaded.names.gangs[gang].to_string()))?;
        writeln!(file, "{:#?}\n{:#?}", loaded.names, loaded.snapshot)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(Some(path))
    }
}

/// The gang to be left out of the next cycles.
#[must_use]
pub fn culprit<'a>(loaded: &'a Loaded, mishap: &Mishap) -> Option<&'a ObjectName> {
    mishap.gang.map(|gang| &loaded.names.gangs[gang])
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use muster_api::assumed::Assumed;
    use muster_api::live::{Live, Seen, Watched};
    use muster_core::index::{Idx as _, NodeIdx};
    use serde_json::{Value, json};

    use super::*;

    /// A node with room for all, and two gangs of a pod that wait.
    fn live() -> Live {
        let mut live = Live::default();
        let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}]}});
        live.put(Seen::Node(Box::new(serde_json::from_value(node).expect("a node"))));
        let ours = |kind: Watched, metadata: Value, spec: Value| {
            Seen::Ours(kind, json!({"apiVersion": "v1", "kind": kind.name(), "metadata": metadata, "spec": spec}))
        };
        let free = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
        let queue = json!({"resources": {"cpu": free, "memory": free, "gpu": free}});
        live.put(ours(Watched::Queue, json!({"name": "q"}), queue));
        for name in ["bad", "good"] {
            let metadata = json!({"name": name, "namespace": "ns", "uid": name});
            live.put(ours(Watched::PodGroup, metadata, json!({"queue": "q", "minMember": 1})));
            let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": name,
                "annotations": {"pod-group-name": name}}, "spec": {"schedulerName": "kai-scheduler", "containers": []}});
            live.put(Seen::Pod(Box::new(serde_json::from_value(pod).expect("a pod"))));
        }
        live
    }

    /// The rows, with a bug in those of one gang: a node that does not exist.
    fn broken(live: &Live, assumed: &Assumed) -> Loaded {
        let mut loaded = live.load_with(Timestamp::UNIX_EPOCH, assumed);
        let bad = loaded.names.pods.indices().find(|pod| loaded.names.pods[*pod].name == "bad").expect("it is there");
        loaded.snapshot.pods[bad].nominated = Some(NodeIdx::new(99));
        loaded
    }

    #[test]
    fn a_bug_in_one_gang_stops_neither_the_process_nor_the_others() {
        let live = live();
        let mut assumed = Assumed::default();
        let loaded = broken(&live, &assumed);
        let mishap = plan(&mut Scheduler::new(&loaded.snapshot), &loaded, &mut |_| {}).expect_err("the rows are wrong");
        let name = culprit(&loaded, &mishap).expect("it had its turn").clone();
        assert_eq!((name.name.as_str(), mishap.said.contains("out of bounds")), ("bad", true), "{mishap:?}");
        assumed.set_aside(name, live.gang(culprit(&loaded, &mishap).expect("a name")).expect("it is known").uid);
        // The next cycle, with the same bug in it, serves the others.
        let loaded = broken(&live, &assumed);
        let outcome = plan(&mut Scheduler::new(&loaded.snapshot), &loaded, &mut |_| {}).expect("it is set aside");
        let placed: Vec<_> = outcome.decisions.iter().map(|made| loaded.names.pods[made.pod].name.as_str()).collect();
        assert_eq!(placed, ["good"]);
        // Made anew by its owner it is tried again.
        let mut live = live;
        live.put(Seen::Ours(
            Watched::PodGroup,
            json!({"apiVersion": "v1", "kind": "PodGroup", "metadata": {"name": "bad", "namespace": "ns", "uid": "other"},
                "spec": {"queue": "q", "minMember": 1}}),
        ));
        live.settle(Timestamp::UNIX_EPOCH, &mut assumed);
        let loaded = live.load_with(Timestamp::UNIX_EPOCH, &assumed);
        assert_eq!(plan(&mut Scheduler::new(&loaded.snapshot), &loaded, &mut |_| {}).expect("good rows").decisions.len(), 2);
    }

    #[test]
    fn rows_are_written_but_not_for_ever() {
        let folder = std::env::temp_dir().join(format!("muster-mishap-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&folder).expect("a folder");
        let live = live();
        let loaded = live.load(Timestamp::UNIX_EPOCH);
        let mishap = Mishap { gang: Some(GangIdx::new(0)), said: "an index".to_owned() };
        let mut dumps = Dumps::to(&folder);
        let path = dumps.write("s", &loaded, &mishap).expect("it can be written").expect("it is the first");
        let text = fs::read_to_string(path).expect("it is there");
        assert!(text.contains("panic: an index") && text.contains("gang: ns/bad") && text.contains("PodRow"), "{text}");
        for _ in 0..20 {
            dumps.write("s", &loaded, &mishap).expect("it can be written");
        }
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 8);
        fs::remove_dir_all(&folder).expect("it was made here");
        assert!(Dumps::to(&folder).write("s", &loaded, &mishap).is_err());
    }
}
