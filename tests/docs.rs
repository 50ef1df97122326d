//! The links of README and pages resolve, on GitHub and in rustdoc.
//!
//! A page is read in two places: as a file on GitHub, and as a module in rustdoc. Its links to other pages,
//! examples and items have labels. The file defines them for GitHub, and `mod.rs` for rustdoc, which
//! reads these first, so that they count there. Rustdoc checks the paths that these lead to, and this file all the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

const PAGES: &str = "src/docs";
const PICTURES: &str = "pictures/";
const ITEMS: &str = "https://docs.rs/tower-webhook/latest/tower_webhook/";
const SOURCE: &str = "https://docs.rs/crate/tower-webhook/latest/source/";

/// The products that are libraries, whose `README.md` is the first page of their documentation.
const LIBRARIES: [&str; 3] = ["admin", "console", "sandbox"];

#[test]
fn links_between_files_lead_to_a_file_and_an_anchor() {
    for document in documents() {
        let targets = document.inline.iter().chain(document.definitions.values());
        for target in targets.filter(|target| !target.contains("://")) {
            let (path, anchor) = split(target);
            let name = &document.name;
            let linked = match path {
                "" => document.path.clone(),
                _ => document.path.with_file_name("").join(path),
            };
            assert!(linked.exists(), "{name}: {target} leads to no file");
            if let Some(anchor) = anchor {
                let linked = Document::read(&linked);
                assert!(
                    linked.anchors.contains(anchor),
                    "{name}: {target} leads to no anchor"
                );
            }
        }
    }
}

/// Rustdoc does not resolve links to another crate's pages.
#[test]
fn links_of_products_to_pages_of_the_library_lead_to_an_anchor() {
    let pages_of_library = format!("{ITEMS}docs/");
    let products = sources_in("crates").into_iter().chain(markdown());
    let mut count = 0;
    for path in products {
        for rest in read(&path).split(&pages_of_library).skip(1) {
            let (page, rest) = rest.split_once("/index.html").unwrap_or((rest, ""));
            let page = page.split(|c: char| !is_word(c)).next().unwrap();
            let linked = root().join(PAGES).join(page).with_extension("md");
            let anchor = rest.strip_prefix('#').map(|rest| {
                let end = rest.find(|c: char| !is_word(c) && c != '-');
                &rest[..end.unwrap_or(rest.len())]
            });
            let anchors = Document::read(&linked).anchors;
            assert!(
                anchor.is_none_or(|anchor| anchors.contains(anchor)),
                "{}: docs/{page}#{anchor:?} leads to no anchor",
                path.display()
            );
            count += 1;
        }
    }
    assert!(count > 10, "only {count} links were found");
}

#[test]
fn every_label_is_defined_and_every_definition_is_used() {
    for document in documents() {
        let defined: BTreeSet<_> = document.definitions.keys().cloned().collect();
        assert_eq!(defined, document.labels, "{}", document.name);
    }
}

#[test]
fn labels_lead_to_the_same_place_in_rustdoc() {
    let rustdoc = definitions_for_rustdoc();
    let mut used = BTreeSet::new();
    for page in pages() {
        let name = &page.name;
        for target in &page.inline {
            let is_elsewhere = target.contains("://");
            assert!(
                is_elsewhere || target.starts_with('#'),
                "{name}: rustdoc does not resolve {target}: use a label"
            );
        }
        for (label, target) in &page.definitions {
            let Some(expected) = in_rustdoc(target) else {
                continue;
            };
            let found = rustdoc.get(label).map(String::as_str);
            assert_eq!(found, Some(expected.as_str()), "{name}: [{label}]");
            used.insert(label.clone());
        }
    }
    let unused: Vec<_> = rustdoc.keys().filter(|it| !used.contains(*it)).collect();
    assert!(unused.is_empty(), "no page uses {unused:?}");
}

/// A label matches without regard to case.
#[test]
fn labels_differ_in_more_than_case() {
    let mut seen = BTreeMap::new();
    for label in definitions_for_rustdoc().into_keys() {
        if let Some(other) = seen.insert(label.to_lowercase(), label.clone()) {
            panic!("[{other}] and [{label}] are the same label");
        }
    }
}

#[test]
fn every_page_is_a_module() {
    let modules = read(&root().join(PAGES).join("mod.rs"));
    let modules: String = modules.split_whitespace().collect();
    for page in pages() {
        let file = page.path.file_name().unwrap().to_str().unwrap();
        let module = file.trim_end_matches(".md");
        let line = format!("page!({module},\"{file}\"");
        assert!(modules.contains(&line), "mod.rs lacks {line}");
    }
}

/// GitHub shows the file, and rustdoc its text. `tests/console/browser/story.rs` writes both.
#[test]
fn every_picture_is_small_and_the_same_in_rustdoc() {
    let directory = root().join("crates/console").join(PICTURES);
    let pictures = files_in(&directory, "webp");
    assert_eq!(pictures.len(), files_in(&directory, "b64").len());
    for path in pictures {
        let picture = fs::read(&path).unwrap();
        assert!(picture.len() < 60_000, "{}", path.display());
        let text = read(&path.with_extension("b64"));
        assert_eq!(text, BASE64_STANDARD.encode(picture), "{}", path.display());
    }
}

#[test]
fn readme_and_the_first_pages_of_rustdoc_link_to_every_page() {
    let readme = Document::read(&root().join("README.md"));
    let first = read(&root().join("src/lib.rs"));
    let list = read(&root().join(PAGES).join("mod.rs"));
    for page in pages() {
        let link = page.path.strip_prefix(root()).unwrap().to_str().unwrap();
        assert!(
            readme.inline.iter().any(|target| target == link),
            "README lacks a link to {link}"
        );
        let name = page.path.file_stem().unwrap().to_str().unwrap();
        let links = [
            (&first, format!("](docs::{name})")),
            (&list, format!("[`{name}`]")),
        ];
        for (text, link) in links {
            let mut lines = text.lines().filter(|line| line.starts_with("//! "));
            assert!(
                lines.any(|line| line.contains(&link)),
                "a list lacks {link}"
            );
        }
    }
}

#[test]
fn links_from_the_source_to_a_page_lead_to_an_anchor() {
    for path in sources() {
        let source = read(&path);
        for rest in source.split("docs::").skip(1) {
            let end = rest.find(|c: char| !is_word(c) && c != '#' && c != '-');
            let (page, anchor) = split(&rest[..end.unwrap_or(rest.len())]);
            let Some(anchor) = anchor else { continue };
            let linked = Document::read(&root().join(PAGES).join(page).with_extension("md"));
            assert!(
                linked.anchors.contains(anchor),
                "{}: docs::{page}#{anchor} leads to no anchor",
                path.display()
            );
        }
    }
}

#[test]
fn every_section_and_rule_that_is_cited_is_on_the_page_of_the_platform() {
    let platform = Document::read(&root().join(PAGES).join("platform.md"));
    let mut cited = 0;
    for path in sources().into_iter().chain(markdown()) {
        let text = read(&path);
        for anchor in citations(&text) {
            cited += 1;
            assert!(
                platform.anchors.contains(&anchor),
                "{}: there is no {anchor}",
                path.display()
            );
        }
    }
    assert!(cited > 30, "only {cited} citations were found");
}

#[test]
fn citations_are_recognised() {
    for (text, anchors) in [
        ("(Spec 2)", &["spec-2"][..]),
        ("Spec 4.2; Spec 8", &["spec-4-2", "spec-8"]),
        ("(Spec 6, rule 5).", &["spec-6-rule-5"]),
        ("Spec 5.2, rule 1", &["spec-5-2-rule-1"]),
        (
            "Spec 6, rules 3 and 4; x",
            &["spec-6-rule-3", "spec-6-rule-4"],
        ),
        (
            "(Spec 6,\n//! rules 1 and 2)",
            &["spec-6-rule-1", "spec-6-rule-2"],
        ),
        ("Spec 6, which", &["spec-6"]),
        ("Specific 6, a Spec", &[]),
    ] {
        assert_eq!(citations(text), anchors, "{text}");
    }
}

#[test]
fn table_of_responses_has_every_row_of_the_code() {
    let mut rows = BTreeMap::new();
    for path in sources() {
        for rest in read(&path).split("row!(\"").skip(1) {
            let (name, rest) = rest.split_once('"').expect("a name");
            let status = rest.trim_start_matches([',', ' ']);
            let status = match status.starts_with("OK)") {
                true => "200",
                false => status.split(' ').nth(1).expect("a status"),
            };
            rows.insert(name.to_owned(), status.to_owned());
        }
    }
    let responses = read(&root().join(PAGES).join("responses.md"));
    let mut documented = BTreeMap::new();
    for line in responses.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let Some(name) = cells.get(1).and_then(|it| it.strip_prefix("<a id=\"")) else {
            continue;
        };
        let (name, _) = name.split_once('"').expect("a name");
        let status = cells[3].split([' ', ';', ',']).next().expect("a status");
        documented.insert(name.to_owned(), status.to_owned());
    }
    assert_eq!(documented, rows);
}

#[test]
fn readme_begins_with_a_program_and_is_short() {
    let readme = read(&root().join("README.md"));
    let line = readme
        .lines()
        .position(|line| line.starts_with("```rust,no_run"));
    let line = line.expect("a program") + 1;
    assert!(line <= 25, "the program begins at line {line}");
    let words = readme.split_whitespace().count();
    assert!(words <= 700, "{words} words");
}

/// `benches/compile/run` reads those of README, too.
#[test]
fn each_crate_that_a_program_needs_is_added_before_the_release() {
    for name in ["README.md", "llms.txt", "src/docs/getting_started.md"] {
        let text = read(&root().join(name));
        let commands = text.split("cargo add ").skip(1);
        let commands = commands.map(|rest| rest.split(['\n', '`']).next().unwrap());
        let added: String = commands.map(|it| format!(" {it} ")).collect();
        let library = added.matches(" tower-webhook ").count();
        let from_the_clone = added.matches(" tower-webhook --path ../tower-webhook ");
        assert!(library == 1 && from_the_clone.count() == 1, "{name}");

        let imports = text.lines().filter_map(|line| line.strip_prefix("use "));
        let imported = imports.map(|it| it.split(':').next().unwrap());
        let others = [
            "anyhow",
            "serde",
            "serde_json",
            "tokio",
            "tracing_subscriber",
        ];
        let named = others
            .into_iter()
            .filter(|it| text.contains(&format!("{it}::")));
        for needed in imported.chain(named).filter(|it| *it != "std") {
            let names = [needed.to_owned(), needed.replace('_', "-")];
            let is_added = names.iter().any(|it| added.contains(&format!(" {it} ")));
            assert!(is_added, "{name} does not add {needed}");
        }
    }
}

/// What was measured is not in it.
#[test]
fn how_to_measure_is_said_in_1_500_words() {
    let words = read(&root().join("benches/README.md"))
        .split_whitespace()
        .count();
    assert!(words <= 1_500, "{words} words");
}

/// As `wc -w` counts.
#[test]
fn pages_have_at_most_24_000_words() {
    let pages = files_in(&root().join(PAGES), "md").into_iter();
    let products = files_in(&root().join("crates"), "md").into_iter();
    let pages = pages.chain(products);
    let others = ["README.md", "CHANGELOG.md"].map(|name| root().join(name));
    let count = |path: PathBuf| read(&path).split_whitespace().count();
    let words: usize = pages.chain(others).map(count).sum();
    assert!(words <= 24_000, "{words} words");
    let lines = read(&root().join("CHANGELOG.md")).lines().count();
    assert!(lines <= 60, "CHANGELOG has {lines} lines");
}

/// The descriptions of all profiles, in the order of the table: those with a file, and those of one line.
fn profiles_of_table() -> Vec<Value> {
    let directory = root().join("src/sender/profiles");
    let files = files_in(&directory, "json");
    let lines = read(&directory.join("others.jsonl"));
    let texts = files.iter().map(|path| read(path));
    let texts = texts.chain(lines.lines().map(str::to_owned));
    let mut profiles: Vec<Value> = texts
        .map(|text| serde_json::from_str(&text).unwrap())
        .collect();
    let title = |it: &Value| it["title"].as_str().expect("a title").to_lowercase();
    profiles.sort_by_key(|it| (it["name"] != "chat-platform", title(it)));
    profiles
}

/// A place as the table shows it: several are joined, or the first counts.
fn place(field: &Value, between: &str) -> Option<String> {
    let list = |list: &Value, between: &str| {
        let texts = list.as_array()?.iter().map(|it| place(it, between));
        Some(texts.collect::<Option<Vec<_>>>()?.join(between))
    };
    match field {
        Value::String(text) => Some(format!("`{text}`")),
        Value::Array(_) => list(field, between),
        Value::Object(fields) => match fields.get("join") {
            Some(join) => list(join, " + "),
            None => place(fields.get("at")?, between),
        },
        _ => None,
    }
}

fn row_of(profile: &Value) -> String {
    let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
    let (signature, time) = (&profile["signature"], &profile["signature"]["timestamp"]);
    let (name, key) = (text(&profile["name"]), &profile["key"]);
    let is_token = signature["algorithm"] == "token";
    let content = signature["content"].as_str().unwrap_or("{body}");

    let sources = content.split('{').filter_map(|it| it.split_once('}'));
    let named = sources.map(|(source, _)| match source {
        "body" | "method" => source.to_owned(),
        "url" => "URL".to_owned(),
        source if time["at"] == source => "time".to_owned(),
        source if *key == source => "key".to_owned(),
        source => format!("`{source}`"),
    });
    let signed = match is_token {
        true => "nothing: a token".to_owned(),
        false => named.collect::<Vec<_>>().join(", "),
    };
    let is_batch = profile["batch"] != Value::Null;
    let of_items = |text: Option<String>, none: &str| match text {
        Some(text) => text,
        None if is_batch => "of each item".to_owned(),
        None => none.to_owned(),
    };
    let span = |seconds: &Value| match seconds.as_u64().unwrap_or_default() {
        seconds if seconds % 86_400 == 0 && seconds > 0 => format!("{} d", seconds / 86_400),
        seconds if seconds % 3_600 == 0 && seconds > 0 => format!("{} h", seconds / 3_600),
        seconds if seconds % 60 == 0 => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    };
    let signed = match (&time["past"], &time["ahead"]) {
        (Value::Null, _) => signed,
        (past, ahead) if past == ahead => format!("{signed} (± {})", span(past)),
        (past, ahead) => format!("{signed} (-{}, +{})", span(past), span(ahead)),
    };
    let is_free = |part: &Value| {
        let part = part.as_str().unwrap_or_default();
        !part.starts_with('/') && (is_token || !content.contains(&format!("{{{part}}}")))
    };
    let has_free_key = key["join"]
        .as_array()
        .map_or(is_free(key), |it| it.iter().any(is_free));
    let differ = !is_batch && has_free_key && (is_token || profile["equal-bodies"] == true);
    let is_documented = profile["as-documented"] == true;
    let default = profile["kind"]["default"].as_str();
    let default = default.map_or(String::new(), |it| format!(", else `{it}`"));
    let cells = [
        format!(
            "{}{}: `{name}`",
            text(&profile["title"]),
            if is_documented { "†" } else { "" }
        ),
        signed,
        of_items(place(key, ", else "), "none") + if differ { "≠" } else { "" },
        of_items(place(&profile["kind"], ", else "), &format!("`{name}`")) + &default,
        text(&profile["about"]),
    ];
    format!("| {} |\n", cells.join(" | "))
}

/// Rows after an empty line are shown as bars.
#[test]
fn every_table_begins_with_a_head_and_a_line_below_it() {
    let mut tables = 0;
    let paths = markdown()
        .into_iter()
        .chain([root().join("tests/README.md")]);
    for path in paths {
        let text = read(&path);
        let mut in_fence = false;
        let mut is_row = |line: &&str| {
            in_fence ^= line.trim_start().starts_with("```");
            !in_fence && line.starts_with('|')
        };
        let rows: Vec<_> = text
            .lines()
            .map(|line| Some(line).filter(&mut is_row))
            .collect();
        let rows = rows.split(Option::is_none).filter(|it| !it.is_empty());
        for table in rows {
            let name = path.display();
            let [Some(head), Some(below), Some(_), ..] = table else {
                panic!("{name}: {table:?} is no table");
            };
            let is_rule = |cell: &str| cell.trim_matches([' ', ':']).bytes().all(|it| it == b'-');
            let is_head = below.trim_matches('|').split('|').all(is_rule);
            assert!(is_head, "{name}: there is no line below {head}");
            tables += 1;
        }
    }
    assert!(tables > 30, "{tables} tables");
}

/// `UPDATE=1` writes the table.
#[test]
fn the_table_of_senders_is_that_of_their_descriptions() {
    let path = root().join(PAGES).join("senders.md");
    let page = read(&path);
    let (before, rest) = page.split_once("\n| sender: name |").expect("a table");
    let (head, _) = rest.split_once('\n').expect("its head");
    let (_, after) = rest.split_once("\n\n").expect("its end");
    let head = format!("| sender: name |{head}");
    let columns = "|---".repeat(head.matches('|').count() - 1);
    let rows: String = profiles_of_table().iter().map(row_of).collect();
    let made = format!("{before}\n{head}\n{columns}|\n{rows}\n{after}");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, made).unwrap();
        return;
    }
    assert!(
        page == made,
        "run this test with UPDATE=1, which writes the table"
    );
}

/// A file of Markdown, without what is in fences.
struct Document {
    name: String,
    path: PathBuf,
    /// Where `[text](target)` leads to.
    inline: Vec<String>,
    /// Of `[text][label]` and `[label]`.
    labels: BTreeSet<String>,
    /// Of `[label]: target`.
    definitions: BTreeMap<String, String>,
    anchors: BTreeSet<String>,
}

impl Document {
    fn read(path: &Path) -> Self {
        let mut document = Self {
            name: path.display().to_string(),
            path: path.to_owned(),
            inline: Vec::new(),
            labels: BTreeSet::new(),
            definitions: BTreeMap::new(),
            anchors: BTreeSet::new(),
        };
        let mut text = String::new();
        let mut in_fence = false;
        for line in read(path).lines() {
            if line.trim_start().starts_with("```") {
                in_fence = !in_fence;
                continue;
            }
            if in_fence {
                continue;
            }
            if let Some((label, target)) = definition(line) {
                document.definitions.insert(label, target);
                continue;
            }
            if let Some(heading) = line.strip_prefix('#') {
                let heading = heading.trim_start_matches('#');
                document.anchors.insert(slug(heading));
            }
            text.push_str(line);
            text.push('\n');
        }
        let anchors = text.split("<a id=\"").skip(1);
        let anchors = anchors.filter_map(|rest| rest.split_once('"'));
        document
            .anchors
            .extend(anchors.map(|(id, _)| id.to_owned()));
        document.find_links(&text);
        document
    }

    fn find_links(&mut self, text: &str) {
        let mut rest = text;
        while let Some(start) = rest.find(['[', '`']) {
            let (at, after) = (&rest[start..], &rest[start + 1..]);
            if at.starts_with('`') {
                // Code is no link, unless it is within brackets.
                rest = after.split_once('`').map_or("", |(_, rest)| rest);
                continue;
            }
            let Some((label, behind)) = after.split_once(']') else {
                break;
            };
            rest = behind;
            if let Some(target) = behind.strip_prefix('(') {
                let (target, behind) = target.split_once(')').expect("`)`");
                self.inline.push(target.to_owned());
                rest = behind;
            } else if let Some(target) = behind.strip_prefix('[') {
                let (label, behind) = target.split_once(']').expect("`]`");
                self.labels.insert(unwrapped(label));
                rest = behind;
            } else {
                self.labels.insert(unwrapped(label));
            }
        }
    }
}

fn definition(line: &str) -> Option<(String, String)> {
    let (label, target) = line.strip_prefix('[')?.split_once("]: ")?;
    Some((label.to_owned(), target.to_owned()))
}

/// A label without line breaks.
fn unwrapped(label: &str) -> String {
    label.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The anchor of a heading, which GitHub and rustdoc make in the same way.
fn slug(heading: &str) -> String {
    let heading = heading.trim().to_lowercase();
    let characters = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if is_word(c) || c == '-' => Some(c),
        _ => None,
    });
    characters.collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn split(target: &str) -> (&str, Option<&str>) {
    match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    }
}

/// What a page's definition has to be for rustdoc. `None` if it is the same.
fn in_rustdoc(target: &str) -> Option<String> {
    if let Some(item) = target.strip_prefix(ITEMS) {
        let (page, anchor) = split(item);
        let mut path = vec!["crate"];
        for segment in page.split('/') {
            match segment.trim_end_matches(".html").split_once('.') {
                Some((_kind, name)) => path.push(name),
                None if segment == "index.html" => {}
                None => path.push(segment),
            }
        }
        // `method.name`
        path.extend(
            anchor
                .and_then(|anchor| anchor.split_once('.'))
                .map(|it| it.1),
        );
        return Some(path.join("::"));
    }
    if target.contains("://") {
        return None;
    }
    if let Some(product) = target.strip_prefix("../../crates/") {
        let (name, file) = product.split_once('/').expect("a file of a product");
        let is_first_page = LIBRARIES.contains(&name) && file.starts_with("README.md");
        return Some(if is_first_page {
            let page = file.replacen("README.md", "index.html", 1);
            format!("https://docs.rs/tower-webhook-{name}/latest/tower_webhook_{name}/{page}")
        } else {
            format!("https://docs.rs/crate/tower-webhook-{name}/latest/source/{file}")
        });
    }
    if let Some(example) = target.strip_prefix("../../") {
        return Some(format!("{SOURCE}{example}"));
    }
    let (file, anchor) = split(target);
    let page = file.trim_end_matches(".md");
    let anchor = anchor.map_or(String::new(), |anchor| format!("#{anchor}"));
    Some(format!("crate::docs::{page}{anchor}"))
}

fn definitions_for_rustdoc() -> BTreeMap<String, String> {
    let modules = read(&root().join(PAGES).join("mod.rs"));
    let everywhere = read(&root().join(PAGES).join("links.txt"));
    let by_feature = modules
        .lines()
        .filter_map(|line| line.split_once("doc = \"")?.1.split('"').next());
    let links = everywhere.lines().chain(by_feature);
    links.filter_map(definition).collect()
}

/// `Spec 6, rules 3 and 4` as the anchors of the platform's page.
fn citations(text: &str) -> Vec<String> {
    let mut anchors = Vec::new();
    for part in text.split("Spec ").skip(1) {
        let end = part.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (section, rest) = part.split_at(end.unwrap_or(part.len()));
        let section = section.trim_end_matches('.');
        if section.is_empty() {
            continue;
        }
        let section = format!("spec-{}", section.replace('.', "-"));
        // Across the lines of a comment.
        let words = rest.split(|c: char| !is_word(c) && c != ';' && c != ')');
        let mut words = words.filter(|word| !word.is_empty()).peekable();
        let has_rules = rest.starts_with(',')
            && words
                .next_if(|word| matches!(*word, "rule" | "rules"))
                .is_some();
        if !has_rules {
            anchors.push(section);
            continue;
        }
        while let Some(word) = words.next() {
            let number = word.trim_end_matches([';', ')']);
            if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
                break;
            }
            anchors.push(format!("{section}-rule-{number}"));
            if number != word || words.next_if_eq(&"and").is_none() {
                break;
            }
        }
    }
    anchors
}

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn pages() -> Vec<Document> {
    let pages = files_in(&root().join(PAGES), "md").into_iter();
    pages.map(|path| Document::read(&path)).collect()
}

/// All that a person reads in the repository.
fn markdown() -> Vec<PathBuf> {
    let mut files = files_in(&root().join(PAGES), "md");
    let others = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "benches/README.md",
        "benches/results.md",
        "llms.txt",
        "tests/README.md",
        "crates/admin/README.md",
        "crates/console/README.md",
        "crates/receiver/README.md",
        "crates/sandbox/README.md",
        "examples/README.md",
        "examples/payloads/README.md",
        "fuzz/README.md",
    ];
    files.extend(others.iter().map(|name| root().join(name)));
    files
}

fn documents() -> Vec<Document> {
    markdown().iter().map(|path| Document::read(path)).collect()
}

fn sources() -> Vec<PathBuf> {
    [sources_in("src"), sources_in("crates")].concat()
}

fn sources_in(directory: &str) -> Vec<PathBuf> {
    files_in(&root().join(directory), "rs")
}

fn files_in(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_in(&path, extension));
        } else if path.extension().is_some_and(|it| it == extension) {
            files.push(path);
        }
    }
    files
}
