//! The two CSV files of the openb trace as rows. A bad cell is one line on standard error with file, line, column, value and
//! what was expected; all of them are found, not only the first.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;

use csv::StringRecord;

use crate::fault::Fault;

/// A node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NodeRow {
    pub(super) name: String,
    pub(super) cpu_milli: u64,
    pub(super) memory_mib: u64,
    pub(super) gpus: u32,
    /// Model of its GPUs; empty without GPUs.
    pub(super) model: String,
}

/// A pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PodRow {
    pub(super) name: String,
    pub(super) cpu_milli: u64,
    pub(super) memory_mib: u64,
    pub(super) gpus: u32,
    /// Thousandths of each GPU, 1..=1000; 0 without GPUs.
    pub(super) gpu_milli: u32,
    /// Models it may run on; empty: any.
    pub(super) models: Vec<String>,
    pub(super) qos: Option<Qos>,
}

impl PodRow {
    /// Whether it asks for a part of each GPU.
    pub(super) const fn shares(&self) -> bool {
        self.gpus > 0 && self.gpu_milli < 1000
    }

    /// Thousandths of a GPU in all.
    pub(super) fn asked_milli(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.gpu_milli)
    }
}

/// The trace's service classes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Qos {
    Guaranteed,
    LatencySensitive,
    Burstable,
    BestEffort,
}

impl Qos {
    pub(super) const ALL: [Self; 4] = [Self::Guaranteed, Self::LatencySensitive, Self::Burstable, Self::BestEffort];

    /// As the trace spells it.
    const fn name(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::LatencySensitive => "LS",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BE",
        }
    }

    /// Its PriorityClass.
    pub(super) const fn class(self) -> &'static str {
        match self {
            Self::Guaranteed => "guaranteed",
            Self::LatencySensitive => "ls",
            Self::Burstable => "burstable",
            Self::BestEffort => "be",
        }
    }

    /// Its rank among the classes. Below 100: every pod may be evicted.
    pub(super) const fn priority(self) -> i32 {
        match self {
            Self::Guaranteed => 90,
            Self::LatencySensitive => 75,
            Self::Burstable => 60,
            Self::BestEffort => DEFAULT_PRIORITY,
        }
    }
}

/// What pods without a class have.
pub(super) const DEFAULT_PRIORITY: i32 = 50;

/// What is publicly known of the models in the trace.
pub(super) struct CardModel;

impl CardModel {
    /// MiB of one card, nominal.
    pub(super) fn memory_mib(model: &str) -> Option<u32> {
        match model {
            "P100" | "T4" | "V100M16" => Some(16 * 1024),
            "A10" => Some(24 * 1024),
            "V100M32" => Some(32 * 1024),
            _ => None,
        }
    }
}

/// A CSV file while it is read.
struct Table {
    name: String,
    columns: HashMap<String, usize>,
    records: Vec<(u64, StringRecord)>,
    errors: Vec<String>,
}

impl Table {
    fn open(path: &Path, required: &[&str]) -> Result<Self, Fault> {
        let name = path.display().to_string();
        let unreadable = |error: &dyn std::fmt::Display| Fault::bad_input(format!("{name}: cannot be read: {error}"));
        let file = File::open(path).map_err(|error| unreadable(&error))?;
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(file);
        let headers = reader.headers().map_err(|error| unreadable(&error))?;
        let columns: HashMap<String, usize> = headers.iter().enumerate().map(|(i, column)| (column.to_owned(), i)).collect();
        let missing: Vec<&str> = required.iter().copied().filter(|&column| !columns.contains_key(column)).collect();
        if !missing.is_empty() {
            let found: Vec<&str> = headers.iter().collect();
            let (missing, found) = (missing.join(", "), found.join(", "));
            return Err(Fault::bad_input(format!("{name}: line 1: {found:?}: expected the columns {missing} as well")));
        }
        let mut table = Self { name, columns, records: Vec::new(), errors: Vec::new() };
        for record in reader.records() {
            match record {
                Ok(record) => table.records.push((record.position().map_or(0, csv::Position::line), record)),
                Err(error) => {
                    let line = error.position().map_or(0, csv::Position::line);
                    let what = match error.kind() {
                        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                            format!("{len} cells: expected {expected_len}, as in line 1")
                        }
                        csv::ErrorKind::Utf8 { .. } => "not UTF-8".to_owned(),
                        _ => error.to_string(),
                    };
                    table.errors.push(format!("{}: line {line}: {what}", table.name));
                }
            }
        }
        Ok(table)
    }

    /// Rows by `read`, all different in column `key`. `read` says what is wrong with a row through the cells it asks for.
    fn rows<T>(mut self, key: &str, read: impl Fn(&mut Cells<'_, '_>) -> T) -> Result<Vec<T>, Fault> {
        let mut names = HashSet::new();
        let mut rows = Vec::with_capacity(self.records.len());
        for (line, record) in &self.records {
            let mut cells =
                Cells { columns: &self.columns, place: format!("{}: line {line}", self.name), record, errors: &mut self.errors };
            let row = read(&mut cells);
            let name = cells.text(key);
            if !names.insert(name) && !name.is_empty() {
                cells.wrong(key, name, "a name that no other line has");
            }
            rows.push(row);
        }
        match self.errors.len() {
            0 => Ok(rows),
            errors => {
                let word = if errors == 1 { "error" } else { "errors" };
                Err(Fault::bad_input(format!("{}\n{errors} {word} in {}", self.errors.join("\n"), self.name)))
            }
        }
    }
}

/// The cells of one line.
struct Cells<'a, 'e> {
    columns: &'a HashMap<String, usize>,
    place: String,
    record: &'a StringRecord,
    errors: &'e mut Vec<String>,
}

impl<'a> Cells<'a, '_> {
    fn wrong(&mut self, column: &str, value: &str, expected: &str) {
        let short: String = value.chars().take(80).collect();
        self.errors.push(format!("{}: {column}: {short:?}: expected {expected}", self.place));
    }

    /// Empty if there is no such column.
    fn text(&self, column: &str) -> &'a str {
        self.columns.get(column).and_then(|&i| self.record.get(i)).unwrap_or_default()
    }

    fn number(&mut self, column: &str, most: u32) -> u32 {
        let text = self.text(column);
        match text.parse() {
            Ok(number) if number <= most => number,
            _ => {
                self.wrong(column, text, &format!("an integer from 0 to {most}"));
                0
            }
        }
    }

    fn name(&mut self, column: &str) -> String {
        let text = self.text(column);
        if text.is_empty() {
            self.wrong(column, text, "a name");
        }
        text.to_owned()
    }
}

/// The node list. Fails with every bad line.
pub(super) fn nodes(path: &Path) -> Result<Vec<NodeRow>, Fault> {
    Table::open(path, &["sn", "cpu_milli", "memory_mib", "gpu"])?.rows("sn", |cells| NodeRow {
        name: cells.name("sn"),
        cpu_milli: cells.number("cpu_milli", 1_000_000_000).into(),
        memory_mib: cells.number("memory_mib", 1_000_000_000).into(),
        gpus: cells.number("gpu", 1024),
        model: cells.text("model").to_owned(),
    })
}

/// The pod list. Fails with every bad line.
pub(super) fn pods(path: &Path) -> Result<Vec<PodRow>, Fault> {
    Table::open(path, &["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"])?.rows("name", |cells| {
        let pod = PodRow {
            name: cells.name("name"),
            cpu_milli: cells.number("cpu_milli", 1_000_000_000).into(),
            memory_mib: cells.number("memory_mib", 1_000_000_000).into(),
            gpus: cells.number("num_gpu", 1024),
            gpu_milli: cells.number("gpu_milli", 1000),
            models: models(cells.text("gpu_spec")),
            qos: qos(cells),
        };
        if (pod.gpus == 0) != (pod.gpu_milli == 0) {
            let value = cells.text("gpu_milli");
            let expected = if pod.gpus == 0 { "0 where num_gpu is 0" } else { "1 to 1000 where num_gpu is not 0" };
            // A cell that is no number was reported already.
            if value.parse::<u32>().is_ok_and(|milli| milli <= 1000) && cells.text("num_gpu").parse::<u32>().is_ok() {
                cells.wrong("gpu_milli", value, expected);
            }
        }
        pod
    })
}

/// `A|B|B` as A, B.
fn models(text: &str) -> Vec<String> {
    let mut models: Vec<String> = text.split('|').map(str::trim).filter(|model| !model.is_empty()).map(str::to_owned).collect();
    models.sort_unstable();
    models.dedup();
    models
}

fn qos(cells: &mut Cells<'_, '_>) -> Option<Qos> {
    let text = cells.text("qos");
    let found = Qos::ALL.into_iter().find(|qos| qos.name() == text);
    if found.is_none() && !text.is_empty() {
        cells.wrong("qos", text, "one of Guaranteed, LS, Burstable, BE, or nothing");
    }
    found
}
