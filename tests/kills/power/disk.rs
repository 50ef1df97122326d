//! What a disk may have after a loss of power, by a record of `strace`.
//!
//! All that was synchronized is there. Of what was changed since, a disk may have any part: later writes without earlier
//! ones, some sectors of a write, data without the length of its file or the length without its data. A new name is lost if
//! its directory was not synchronized, and a deleted one may be back. A sector has one of the contents that processes saw:
//! what was written to it before is in the memory of the same page.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

use fastrand::Rng;

/// The smallest part that is written as a whole.
const SECTOR: usize = 512;

/// The directory, in the place of a file's name.
pub(super) const DIRECTORY: &str = ".";

/// A system call. Lines of the record tell when it began and ended, as those of other threads may be in between.
pub(super) struct Step {
    began: usize,
    ended: usize,
    pub(super) what: What,
}

pub(super) enum What {
    /// The process said a line.
    Said(String),
    Create(String),
    Delete(String),
    Write(String, usize, Vec<u8>),
    Resize(String, usize),
    /// All earlier changes of a file, or of the names in the directory, are on the disk.
    Sync(String),
    /// The power failed, and this was left.
    Lost(Files),
}

/// The content of files, by name.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

impl Step {
    pub(super) fn lost(files: Files) -> Self {
        Self {
            began: 0,
            ended: 0,
            what: What::Lost(files),
        }
    }
}

/// Reads a record of the calls of one process that change files of this directory, after so many lines of others.
pub(super) fn read(record: &str, lines: usize, directory: &Path) -> Vec<Step> {
    let mut positions = HashMap::new();
    let mut steps = Vec::new();
    for (began, ended, call) in calls(record) {
        for what in changes(&call, directory, &mut positions) {
            steps.push(Step {
                began: lines + began,
                ended: lines + ended,
                what,
            });
        }
    }
    // What is written may be on the disk at once, and what is synchronized is at the end.
    steps.sort_by_key(|step| match step.what {
        What::Sync(_) => step.ended,
        _ => step.began,
    });
    steps
}

/// The calls in the order in which they began, with the lines of their beginning and end.
fn calls(record: &str) -> Vec<(usize, usize, String)> {
    let mut open = HashMap::new();
    let mut calls = Vec::new();
    for (line, text) in record.lines().enumerate() {
        let (thread, text) = text.split_once(' ').unwrap();
        let text = text.trim_start();
        if let Some(begin) = text.strip_suffix("<unfinished ...>") {
            open.insert(thread, (line, begin));
        } else if text.starts_with("<... ") {
            let (began, begin) = open.remove(thread).unwrap();
            let (_, end) = text.split_once(" resumed>").unwrap();
            calls.push((began, line, begin.to_owned() + end));
        } else if !text.starts_with("+++") {
            calls.push((line, line, text.to_owned()));
        }
    }
    // What the end of the process interrupted has changed nothing.
    calls.sort_by_key(|(began, ..)| *began);
    calls
}

/// What a call has changed in the directory, or has said. `positions` are those of the descriptors.
fn changes(call: &str, directory: &Path, positions: &mut HashMap<String, usize>) -> Vec<What> {
    let (name, arguments) = call.split_once('(').unwrap();
    let (arguments, result) = arguments.rsplit_once(" = ").unwrap();
    // A call that failed changes nothing, though a write may stop where the disk is full.
    let Ok(result) = result.split('<').next().unwrap().parse::<usize>() else {
        return Vec::new();
    };
    let named = |path: &str| {
        let path = String::from_utf8(bytes(path)).unwrap();
        let path = Path::new(&path);
        let is_here = path.parent() == Some(directory);
        // SQLite does not read its index after a crash.
        let name = path.file_name().unwrap_or_default().to_str().unwrap();
        (is_here && !name.ends_with("-shm")).then(|| name.to_owned())
    };
    let quoted = || arguments.split('"').nth(1).unwrap();
    let (descriptor, rest) = arguments.split_once('<').unwrap_or_default();
    let (path, rest) = rest.split_once('>').unwrap_or_default();
    let last = || {
        let last = rest.rsplit(", ").next().unwrap();
        last.trim_end_matches([' ', ')']).parse().unwrap()
    };
    let written = |at| {
        let file = named(path)?;
        let mut data = bytes(quoted());
        data.truncate(result);
        assert_eq!(data.len(), result, "{call:.200}");
        Some(What::Write(file, at, data))
    };
    match name {
        "openat" => {
            positions.insert(result.to_string(), 0);
            let is_created = arguments.contains("O_CREAT");
            assert!(!arguments.contains("O_TRUNC") || !is_created, "{call:.200}");
            let file = named(quoted()).filter(|_| is_created);
            file.map(What::Create).into_iter().collect()
        }
        "unlink" | "unlinkat" => named(quoted()).map(What::Delete).into_iter().collect(),
        "lseek" => {
            positions.insert(descriptor.to_owned(), result);
            Vec::new()
        }
        "ftruncate" => {
            let resized = named(path).map(|file| What::Resize(file, last()));
            resized.into_iter().collect()
        }
        "fsync" | "fdatasync" if bytes(path) == directory.as_os_str().as_encoded_bytes() => {
            vec![What::Sync(DIRECTORY.to_owned())]
        }
        "fsync" | "fdatasync" => named(path).map(What::Sync).into_iter().collect(),
        "write" if descriptor == "1" => said(&bytes(quoted())),
        "write" => {
            let position = positions.entry(descriptor.to_owned()).or_default();
            let at = std::mem::replace(position, *position + result);
            written(at).into_iter().collect()
        }
        "pwrite64" => written(last()).into_iter().collect(),
        other => panic!("`{other}` is not understood"),
    }
}

fn said(output: &[u8]) -> Vec<What> {
    let output = String::from_utf8_lossy(output);
    let lines = output.lines().filter_map(|line| line.split_once("says: "));
    lines.map(|(_, line)| What::Said(line.to_owned())).collect()
}

/// The bytes of a text of `\x6a\x6b`.
fn bytes(text: &str) -> Vec<u8> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        other => panic!("{other} is no hexadecimal digit"),
    };
    let (parts, rest) = text.as_bytes().as_chunks::<4>();
    assert!(rest.is_empty(), "{text:.200}");
    let byte = |[_, _, high, low]: &[u8; 4]| digit(*high) << 4 | digit(*low);
    parts.iter().map(byte).collect()
}

/// A directory on a disk.
#[derive(Default)]
pub(super) struct Disk<'a> {
    files: Vec<File<'a>>,
    /// The files as processes see them, by name.
    seen: BTreeMap<&'a str, usize>,
    synchronized: BTreeMap<&'a str, usize>,
    /// The names that were created or deleted since, and when that had ended.
    changes: Vec<(usize, &'a str, Option<usize>)>,
}

#[derive(Default)]
struct File<'a> {
    synchronized: Vec<u8>,
    /// With the ends of their calls.
    changes: Vec<(usize, Change<'a>)>,
}

enum Change<'a> {
    Write(usize, &'a [u8]),
    Resize(usize),
}

impl<'a> Disk<'a> {
    /// Goes on by a step. What is `ignored` is not synchronized.
    pub(super) fn step(&mut self, step: &'a Step, ignored: impl Fn(&str) -> bool) {
        let (began, ended) = (step.began, step.ended);
        match &step.what {
            What::Create(name) if !self.seen.contains_key(&**name) => {
                self.changes.push((ended, name, Some(self.files.len())));
                self.seen.insert(name, self.files.len());
                self.files.push(File::default());
            }
            What::Delete(name) => {
                self.changes.push((ended, name, None));
                self.seen.remove(&**name);
            }
            What::Write(name, at, data) => self.change(name, ended, Change::Write(*at, data)),
            What::Resize(name, len) => self.change(name, ended, Change::Resize(*len)),
            What::Sync(name) if ignored(name) => {}
            What::Sync(name) if name == DIRECTORY => {
                for (_, name, file) in self.changes.extract_if(.., |(ended, ..)| *ended < began) {
                    set(&mut self.synchronized, name, file);
                }
            }
            What::Sync(name) => {
                if let Some(file) = self.seen.get(&**name) {
                    self.files[*file].synchronize(began);
                }
            }
            What::Lost(files) => *self = Self::of(files),
            What::Said(_) | What::Create(_) => {}
        }
    }

    fn of(files: &'a Files) -> Self {
        let names = files.keys().enumerate().map(|(at, name)| (&**name, at));
        let names: BTreeMap<_, _> = names.collect();
        let file = |content: &Vec<u8>| File {
            synchronized: content.clone(),
            ..File::default()
        };
        Self {
            files: files.values().map(file).collect(),
            seen: names.clone(),
            synchronized: names,
            changes: Vec::new(),
        }
    }

    fn change(&mut self, name: &str, ended: usize, change: Change<'a>) {
        if let Some(file) = self.seen.get(name) {
            self.files[*file].changes.push((ended, change));
        }
    }

    /// The files as processes see them.
    pub(super) fn seen(&self) -> Files {
        let seen = |(name, file): (&&str, &usize)| ((*name).to_owned(), self.files[*file].seen());
        self.seen.iter().map(seen).collect()
    }

    /// The files as they may be after a loss of power.
    pub(super) fn lost(&self, random: &mut Rng) -> Files {
        let mut names = self.synchronized.clone();
        let kept = Kept::any(self.changes.len(), random);
        for (at, (_, name, file)) in self.changes.iter().enumerate() {
            if kept.has(at, random) {
                set(&mut names, name, *file);
            }
        }
        let lost = |(name, file): (&str, usize)| (name.to_owned(), self.files[file].lost(random));
        names.into_iter().map(lost).collect()
    }
}

fn set<'a>(names: &mut BTreeMap<&'a str, usize>, name: &'a str, file: Option<usize>) {
    match file {
        Some(file) => names.insert(name, file),
        None => names.remove(name),
    };
}

impl File<'_> {
    fn synchronize(&mut self, began: usize) {
        for (_, change) in self.changes.extract_if(.., |(ended, _)| *ended < began) {
            change.apply(&mut self.synchronized);
        }
    }

    fn seen(&self) -> Vec<u8> {
        let mut seen = self.synchronized.clone();
        for (_, change) in &self.changes {
            change.apply(&mut seen);
        }
        seen
    }

    fn lost(&self, random: &mut Rng) -> Vec<u8> {
        let kept = Kept::any(self.changes.len(), random);
        if matches!(kept, Kept::All) {
            return self.seen();
        }
        let is_torn = random.bool();
        // Of new sectors that were never written.
        let has_garbage = random.bool();
        let (mut seen, mut disk) = (self.synchronized.clone(), self.synchronized.clone());
        let mut len = disk.len();
        for (at, (_, change)) in self.changes.iter().enumerate() {
            let range = change.apply(&mut seen);
            let is_kept = kept.has(at, random);
            if is_kept {
                len = seen.len();
                disk.truncate(len);
            }
            let end = disk.len();
            disk.resize(seen.len().max(end), 0);
            if has_garbage {
                random.fill(&mut disk[end..]);
            }
            for sector in range.start / SECTOR..range.end.div_ceil(SECTOR) {
                let is_kept = match is_torn {
                    true => kept.has(at, random),
                    false => is_kept,
                };
                if is_kept {
                    let sector = sector * SECTOR..seen.len().min((sector + 1) * SECTOR);
                    disk[sector.clone()].copy_from_slice(&seen[sector]);
                }
            }
        }
        disk.truncate(len);
        disk
    }
}

impl Change<'_> {
    /// Returns what it has written.
    fn apply(&self, content: &mut Vec<u8>) -> Range<usize> {
        match *self {
            Change::Write(at, data) => {
                let end = at + data.len();
                content.resize(content.len().max(end), 0);
                content[at..end].copy_from_slice(data);
                at..end
            }
            Change::Resize(len) => {
                content.resize(len, 0);
                0..0
            }
        }
    }
}

/// Which changes are on the disk.
enum Kept {
    All,
    None,
    Before(usize),
    From(usize),
    Each(f64),
}

impl Kept {
    fn any(changes: usize, random: &mut Rng) -> Self {
        match random.u8(..8) {
            0 => Self::All,
            1 => Self::None,
            2 | 3 => Self::Before(random.usize(..=changes)),
            4 => Self::From(random.usize(..=changes)),
            _ => Self::Each(*random.choice(&[0.1, 0.5, 0.9]).unwrap()),
        }
    }

    fn has(&self, at: usize, random: &mut Rng) -> bool {
        match *self {
            Self::All => true,
            Self::None => false,
            // The last one may be torn.
            Self::Before(end) if at + 1 == end => random.bool(),
            Self::Before(end) => at < end,
            Self::From(first) => at >= first,
            Self::Each(chance) => random.f64() < chance,
        }
    }
}
