//! Rooms import downwards only. A room is a top-level module of the crate, with all files in it.
//!
//! The sources are read as tokens, so comments and strings are skipped and macros are seen. Modules
//! and other items under `#[cfg(test)]` may import from anywhere.
//!
//! SQL has layers, too: a table is named in the room whose schema creates it, and there not in the engine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

#[test]
fn rooms_import_downwards_only() {
    let circles = Crate::of_this_repository().rooms().circles();
    assert!(circles.is_empty(), "{}", describe("rooms", &circles));
}

/// The products, and the crates below each that it may use.
const PRODUCTS: [(&str, &[&str]); 4] = [
    ("admin", &[]),
    ("console", &["tower_webhook"]),
    ("receiver", &["tower_webhook", "tower_webhook_console"]),
    ("sandbox", &["tower_webhook"]),
];

/// What a product misses in the public API, users of the library miss, too. Its tests may wrap queues.
#[test]
fn products_use_the_public_api_of_the_crates_below_them() {
    let folders = sources("crates", "toml").into_iter();
    let folders = folders.filter_map(|(file, _)| Some(file.split('/').nth(1)?.to_owned()));
    let products = PRODUCTS.map(|(product, _)| product.to_owned());
    assert_eq!(folders.collect::<BTreeSet<_>>(), products.into());
    for (product, below) in PRODUCTS {
        for (file, text) in sources(&format!("crates/{product}/src"), "rs") {
            let wrong = beyond(product, below, &text);
            assert!(wrong.is_empty(), "{file} uses {wrong:?}");
        }
    }
}

#[test]
fn planted_use_of_what_is_not_below_is_reported() {
    let text = "use tower_webhook::inbox::internal::Seen; use tower_webhook_console::Console;
        /// `tower_webhook_sandbox`, and `internal`
        #[cfg(test)] mod tests { use tower_webhook_sandbox::Sandbox; }
        fn f(it: tower_webhook_admin::Token) -> tower_webhook::Secret { g!(tower_webhook_receiver::h) }";
    let wrong = beyond("receiver", PRODUCTS[2].1, text);
    assert_eq!(
        wrong,
        ["internal", "tower_webhook_admin"]
            .map(str::to_owned)
            .into()
    );
}

/// The names of a source that are of crates which are not below its own, and of what is hidden in the library.
fn beyond(product: &str, below: &[&str], text: &str) -> BTreeSet<String> {
    let own = format!("tower_webhook_{product}");
    let mut found = BTreeSet::new();
    let mut rest = vec![text.parse::<TokenStream>().unwrap()];
    while let Some(tokens) = rest.pop() {
        for token in without_tests(tokens) {
            match token {
                TokenTree::Group(group) => rest.push(group.stream()),
                TokenTree::Ident(name) => {
                    let name = name.to_string();
                    let is_crate = name.starts_with("tower_webhook") && name != own;
                    if name == "internal" || is_crate && !below.contains(&&*name) {
                        found.insert(name);
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// Whoever writes another queue has a small trait for each verb, and finds it in the same file of each other queue.
#[test]
fn each_verb_is_a_small_trait_and_a_file_of_each_queue() {
    const VERBS: [&str; 9] = [
        "accept", "claim", "settle", "change", "forget", "list", "count", "purge", "measure",
    ];
    let files: BTreeMap<_, _> = sources("src", "rs").into_iter().collect();
    let traits = traits_in(&files["src/inbox/queue.rs"]);
    let small = traits.iter().all(|(_, methods)| (1..=5).contains(methods));
    let methods: usize = traits.iter().map(|(_, methods)| methods).sum();
    assert!(small && methods == 24, "{methods}: {traits:?}");
    assert_eq!(traits.len(), VERBS.len());
    for ((name, _), verb) in traits.iter().zip(VERBS) {
        assert!(name.to_lowercase().starts_with(verb), "{name}");
        for room in ["memory", "postgres", "sqlite"] {
            let file = format!("src/{room}/queue/{verb}.rs");
            let implements = format!("impl {name} for ");
            let text = files.get(&file).map_or("", String::as_str);
            assert!(text.contains(&implements), "{file}: {implements}");
        }
    }
}

/// The names of traits, and how many methods each has.
fn traits_in(text: &str) -> Vec<(String, usize)> {
    let tokens: Vec<_> = text.parse::<TokenStream>().unwrap().into_iter().collect();
    let is_word = |at: usize, word: &str| ident(&tokens, at).is_some_and(|found| found == word);
    let traits = (0..tokens.len()).filter(|at| is_word(*at, "trait"));
    let traits = traits.map(|at| {
        let body = (at..tokens.len()).find_map(|at| group(&tokens, at, Delimiter::Brace));
        let body = body.unwrap().into_iter();
        let methods = body.filter(|token| matches!(token, TokenTree::Ident(it) if it == "fn"));
        (ident(&tokens, at + 1).unwrap(), methods.count())
    });
    traits.collect()
}

/// The largest number of lines of a file of tests. A longer one has several topics: each of them gets a file.
const MOST_LINES: usize = 1_000;

#[test]
fn files_of_tests_are_short() {
    let mut long = sources("tests", "rs");
    long.retain(|(_, text)| text.lines().count() > MOST_LINES);
    let long: Vec<_> = long.into_iter().map(|(file, _)| file).collect();
    assert!(long.is_empty(), "more than {MOST_LINES} lines: {long:?}");
}

/// What several files use is in `support`, or in a file of their folder without tests.
#[test]
fn tests_import_nothing_from_a_neighbour_with_tests() {
    let files: BTreeMap<_, _> = sources("tests", "rs").into_iter().collect();
    let mut imports = Vec::new();
    for (file, text) in &files {
        for line in text.lines() {
            let import = ["use super::", "use crate::"];
            let import = import.iter().find_map(|path| line.strip_prefix(path));
            let Some((neighbour, _)) = import.and_then(|path| path.split_once("::")) else {
                continue;
            };
            let folders = file.match_indices('/').map(|(end, _)| &file[..end]);
            let mut neighbours = folders.map(|folder| format!("{folder}/{neighbour}.rs"));
            let has_tests =
                |text: &String| text.contains("#[test]") || text.contains("#[tokio::test");
            if neighbours.any(|file| files.get(&file).is_some_and(has_tests)) {
                imports.push(format!("{file}: {line}"));
            }
        }
    }
    assert!(imports.is_empty(), "move it to `support`: {imports:#?}");
}

/// The largest share of files that import each other, in percent.
const MOST_IN_CIRCLES: usize = 15;

/// Prints the circles: `bash tests/run --test layering -- --nocapture few_files`.
#[test]
fn few_files_are_in_circles() {
    let sources = Crate::of_this_repository();
    let files = sources.files();
    let circles = files.circles();
    let inside: usize = circles.iter().map(|circle| circle.members.len()).sum();
    let all = files.nodes.len();
    let circles = describe("files", &circles);
    println!("files in circles: {inside} of {all}\n{circles}");
    assert!(
        100 * inside <= MOST_IN_CIRCLES * all,
        "{inside} of {all} files import each other, more than {MOST_IN_CIRCLES} %:\n{circles}"
    );
}

#[test]
fn tables_are_named_in_their_rooms_only() {
    let sources = sources("src", "rs")
        .into_iter()
        .chain(sources("src", "sql"));
    let (tables, statements) = read_sql(&sources.collect::<Vec<_>>());
    let rooms: BTreeSet<_> = tables.values().flatten().map(String::as_str).collect();
    assert_eq!(rooms, ["postgres", "sqlite"].into());
    let strangers = strangers(&tables, &statements);
    assert!(strangers.is_empty(), "{strangers:#?}");
}

#[test]
fn planted_table_outside_its_room_is_reported() {
    let source = |file: &str, text: &str| (file.to_owned(), text.to_owned());
    let sources = [
        source(
            "src/postgres/schema.sql",
            "CREATE TABLE {schema}.keys (key uuid);\nCREATE TABLE {schema}.head (lane bigint);",
        ),
        source(
            "src/postgres/queue/claim.rs",
            "const A: &str = \"SELECT 1 FROM {schema}.head JOIN {schema}.keys ON true\";",
        ),
        source(
            "src/postgres/engine/tables.rs",
            "/// `SELECT * FROM {schema}.keys`\nconst A: &str = \"SELECT oid FROM pg_class\";\n\
             const B: &str = r\"DELETE FROM {schema}.head\";",
        ),
        source(
            "src/inbox/queue.rs",
            "const A: &str = \"UPDATE keys SET a = 1\";",
        ),
        source("src/inbox/event.rs", "const A: &str = \"taken from keys\";"),
    ];
    let (tables, statements) = read_sql(&sources);
    assert_eq!(
        strangers(&tables, &statements),
        [
            "src/inbox/queue.rs:1: `keys` is a table of postgres",
            "src/postgres/engine/tables.rs:3: `head` is a table of postgres, and an engine knows no table",
        ]
    );
}

/// The rooms of each table.
type Tables = BTreeMap<String, BTreeSet<String>>;

/// A table that a statement names.
struct Named {
    file: String,
    line: usize,
    table: String,
}

/// The engines, which know no table.
const ENGINES: [&str; 2] = ["src/sqlite/engine/", "src/postgres/engine/"];

/// Reads which tables a `schema.sql` creates, and which tables the statements in all sources name.
fn read_sql(sources: &[(String, String)]) -> (Tables, Vec<Named>) {
    let (mut tables, mut statements) = (Tables::new(), Vec::new());
    for (file, text) in sources {
        let mut texts = Vec::new();
        match file.ends_with(".sql") {
            true => texts.push((1, text.clone())),
            false => literals(text.parse().unwrap(), &mut texts),
        }
        for (first, text) in texts {
            for (line, keyword, table) in tables_in(&text) {
                let file = file.clone();
                if keyword == "TABLE" && file.ends_with("/schema.sql") {
                    let room = file.split('/').nth(1).unwrap().to_owned();
                    tables.entry(table.clone()).or_default().insert(room);
                }
                let line = first + line;
                statements.push(Named { file, line, table });
            }
        }
    }
    (tables, statements)
}

/// The string literals that are SQL, with their lines. Tests may name what they want.
fn literals(tokens: TokenStream, found: &mut Vec<(usize, String)>) {
    for token in without_tests(tokens) {
        match token {
            TokenTree::Group(group) => literals(group.stream(), found),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                let statements = [
                    "SELECT ", "INSERT ", "UPDATE ", "DELETE ", "CREATE ", "ALTER ",
                ];
                if statements.iter().any(|statement| text.contains(statement)) {
                    found.push((literal.span().start().line, text));
                }
            }
            _ => {}
        }
    }
}

/// Leaves out the items of tests, and all attributes.
fn without_tests(tokens: TokenStream) -> Vec<TokenTree> {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if is(&tokens, at, '#')
            && let Some(attribute) = group(&tokens, at + 1, Delimiter::Bracket)
        {
            at += 2;
            if is_test(&attribute) {
                at = skip_item(&tokens, at);
            }
            continue;
        }
        kept.push(tokens[at].clone());
        at += 1;
    }
    kept
}

/// The tables that SQL names: their lines, counted from 0, and the keywords before them.
fn tables_in(sql: &str) -> Vec<(usize, String, String)> {
    const BEFORE: [&str; 5] = ["FROM", "INTO", "JOIN", "TABLE", "UPDATE"];
    let mut found = Vec::new();
    let mut keyword = None;
    for (line, text) in sql.lines().enumerate() {
        let text = text.split("--").next().unwrap_or_default();
        let is_part = |letter: char| letter.is_alphanumeric() || "_.{}".contains(letter);
        for word in text
            .split(|letter| !is_part(letter))
            .filter(|word| !word.is_empty())
        {
            if BEFORE.contains(&word) {
                keyword = Some(word.to_owned());
            } else if !["IF", "NOT", "EXISTS", "ONLY"].contains(&word)
                && let Some(keyword) = keyword.take()
            {
                let table = word.rsplit('.').next().unwrap_or(word);
                found.push((line, keyword, table.to_owned()));
            }
        }
    }
    found
}

fn strangers(tables: &Tables, statements: &[Named]) -> Vec<String> {
    let mut found = BTreeSet::new();
    for Named { file, line, table } in statements {
        let Some(rooms) = tables.get(table) else {
            continue;
        };
        let names = rooms
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(" and ");
        let is_inside = rooms
            .iter()
            .any(|room| file.starts_with(&format!("src/{room}/")));
        if ENGINES.iter().any(|engine| file.starts_with(engine)) {
            found.insert(format!(
                "{file}:{line}: `{table}` is a table of {names}, and an engine knows no table"
            ));
        } else if !is_inside {
            found.insert(format!("{file}:{line}: `{table}` is a table of {names}"));
        }
    }
    found.into_iter().collect()
}

#[test]
fn planted_circle_is_reported_with_file_and_line_of_each_edge() {
    let sources = Crate::new(&[
        ("src/lib.rs", "mod low; mod middle; mod high;"),
        ("src/low.rs", "\n\nuse crate::high::Top;"),
        ("src/middle/mod.rs", "mod part;"),
        ("src/middle/part.rs", "\nuse crate::low::Bottom;"),
        ("src/high.rs", "use crate::middle::part::Part;"),
    ]);
    let report = describe("rooms", &sources.rooms().circles());
    assert_eq!(
        report,
        "3 rooms import each other: high, low, middle\n\
         \x20 high -> middle: src/high.rs:1\n\
         \x20 low -> high: src/low.rs:3\n\
         \x20 middle -> low: src/middle/part.rs:2\n"
    );
}

#[test]
fn each_circle_is_reported_alone() {
    let sources = Crate::new(&[
        ("src/lib.rs", ""),
        ("src/a.rs", "use crate::b::B; use crate::d::D;"),
        ("src/b.rs", "use crate::a::A;"),
        ("src/c.rs", "use crate::d::D;"),
        ("src/d.rs", "use crate::c::C; use crate::e::E;"),
        ("src/e.rs", ""),
    ]);
    let circles = sources.rooms().circles();
    let members: Vec<_> = circles.iter().map(|circle| &circle.members).collect();
    assert_eq!(members, [&["a", "b"], &["c", "d"]]);
}

#[test]
fn every_form_of_import_is_seen() {
    let forms = [
        "use crate::target::Item;",
        "use crate::{elsewhere::A, target::B};",
        "use crate::{elsewhere::{A, B}, target::{self, C as D}};",
        "use ::std::fmt; pub(crate) use crate::target::*;",
        "pub(in crate::here) use crate::target;",
        "use super::super::target::Item;",
        "use super::super::{elsewhere, target as t};",
        "mod inner { use super::super::super::target::Item; }",
        "fn f() { crate::target::g(); }",
        "fn f() -> Vec<super::super::target::Item> { Vec::new() }",
        "fn f() { println!(\"{}\", crate::target::g()); }",
        "macro_rules! m { () => { $crate::target::g() } }",
        "#[derive(crate::target::Derive)] struct S;",
        "struct S { #[serde(with = \"crate::target\")] field: u8 }",
        "impl crate::target::Trait for S {}",
        "pub(crate) fn f(_: &impl crate::target::Trait) {}",
        "#[cfg(not(test))] use crate::target::Item;",
        "#[cfg(any(test, feature = \"x\"))] mod m { use crate::target::Item; }",
        "#[cfg(test)] mod tests; use crate::target::Item;",
        "#[cfg(test)] mod tests {} fn f() { crate::target::g() }",
        "use crate::AtTheRoot;",
        "fn f(_: crate::Renamed) {}",
    ];
    for form in forms {
        assert_eq!(rooms_imported_by(form), ["target"], "{form}");
    }
}

#[test]
fn comments_strings_tests_and_own_room_are_no_imports() {
    let forms = [
        "//! [`Item`](crate::target::Item)",
        "/// `crate::target::Item`\n// use crate::target::Item;\nstruct S;",
        "const TEXT: &str = \"crate::target::Item\";",
        "#[cfg(test)] mod tests { use crate::target::Item; }",
        "#[cfg(all(test, feature = \"x\"))] mod tests { use crate::target::Item; }",
        "#[cfg(test)] use crate::target::{A, B};",
        "#[cfg(test)] #[allow(unused)] pub(crate) fn f() { crate::target::g() }",
        "#![cfg(test)] use crate::target::Item;",
        "use target::Item;",
        "use other::target::Item;",
        "pub(crate) struct S; pub(super) struct T; pub(in crate::here) struct U;",
        "use super::Item; use self::x::Y; use crate::here::Item;",
        "fn f<'a>() -> impl Sized + use<'a> {}",
    ];
    for form in forms {
        let imported = rooms_imported_by(form);
        assert!(imported.is_empty(), "{form}: {imported:?}");
    }
}

#[test]
#[should_panic = "src/here.rs:2: `crate::Nowhere` is neither a room nor re-exported by lib.rs"]
fn unknown_name_at_the_root_is_an_error() {
    let source = "\nuse crate::Nowhere;";
    Crate::new(&[("src/lib.rs", ""), ("src/here.rs", source)]).rooms();
}

#[test]
fn file_is_the_one_that_defines_the_name() {
    let sources = Crate::new(&[
        ("src/lib.rs", "pub use self::a::Deep;"),
        (
            "src/a/mod.rs",
            "mod b; mod c; pub use self::b::Deep; pub struct Own;",
        ),
        ("src/a/b.rs", "use super::Own;"),
        ("src/a/c.rs", "use super::Deep; use crate::Deep as Same;"),
    ]);
    let edges = sources.files().edges;
    let edges: Vec<_> = edges.keys().map(|(from, to)| (*from, *to)).collect();
    assert_eq!(
        edges,
        [("src/a/b.rs", "src/a/mod.rs"), ("src/a/c.rs", "src/a/b.rs"),]
    );
}

/// The rooms that a file `src/here/part.rs` of this text imports.
fn rooms_imported_by(text: &str) -> Vec<String> {
    let sources = Crate::new(&[
        (
            "src/lib.rs",
            "pub use self::target::{AtTheRoot, Other as Renamed};",
        ),
        ("src/here/mod.rs", "mod part;"),
        ("src/here/part.rs", text),
        ("src/elsewhere.rs", ""),
        ("src/target/mod.rs", ""),
    ]);
    let rooms = sources.rooms();
    let imported = rooms.edges.keys().map(|(from, to)| {
        assert_eq!(*from, "here", "{text}");
        to.to_string()
    });
    imported.filter(|room| room != "elsewhere").collect()
}

/// The names and texts of all files below a folder with this extension.
fn sources(folder: &str, extension: &str) -> Vec<(String, String)> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut sources = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                sources.push((name.replace('\\', "/"), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    sources
}

/// A path from the crate's root, or a module.
type Names = Vec<String>;

/// The sources of a crate, and which names each of them imports.
struct Crate {
    /// The file of each module.
    modules: BTreeMap<Names, String>,
    imports: Vec<Import>,
    /// What a name means that a module imports or re-exports.
    bindings: BTreeMap<(Names, String), Names>,
}

/// One path in the code, from the crate's root.
struct Import {
    from: Names,
    line: usize,
    path: Names,
    is_reexport: bool,
}

impl Crate {
    fn of_this_repository() -> Self {
        let sources = sources("src", "rs");
        let sources = sources.iter().map(|(name, text)| (&**name, &**text));
        Self::new(&sources.collect::<Vec<_>>())
    }

    fn new(sources: &[(&str, &str)]) -> Self {
        let modules: BTreeMap<_, _> = sources
            .iter()
            .map(|(file, _)| (module_of(file), file.to_string()))
            .collect();
        assert_eq!(modules.len(), sources.len(), "two files of one module");
        let mut this = Self {
            modules,
            imports: Vec::new(),
            bindings: BTreeMap::new(),
        };
        for (file, text) in sources {
            let tokens: TokenStream = text
                .parse()
                .unwrap_or_else(|error| panic!("{file}: {error}"));
            let module = module_of(file);
            let mut scanner = Scanner {
                sources: &mut this,
                file_module: module.clone(),
            };
            scanner.scan(tokens, &module);
        }
        this
    }

    fn rooms(&self) -> Graph<'_> {
        let rooms = self.modules.keys().filter_map(|module| module.first());
        let mut graph = Graph::new(rooms);
        for import in &self.imports {
            if let Some(from) = import.from.first() {
                graph.add(from, self.room(import), self.site(import));
            }
        }
        graph
    }

    /// A re-export is no import here: who imports the name depends on the file that defines it.
    fn files(&self) -> Graph<'_> {
        let mut graph = Graph::new(self.modules.values());
        for import in self.imports.iter().filter(|import| !import.is_reexport) {
            let from = &self.modules[&import.from];
            graph.add(from, self.defining_file(&import.path), self.site(import));
        }
        graph
    }

    fn room<'a>(&'a self, import: &'a Import) -> &'a str {
        let name = import.path.first().map_or("*", String::as_str);
        let mut rooms = self.modules.keys().filter_map(|module| module.first());
        if rooms.any(|room| room == name) {
            return name;
        }
        match self.bindings.get(&(Names::new(), name.to_owned())) {
            Some(meaning) => &meaning[0],
            None => panic!(
                "{}: `crate::{name}` is neither a room nor re-exported by lib.rs",
                self.site(import)
            ),
        }
    }

    /// Follows re-exports.
    fn defining_file(&self, path: &[String]) -> &str {
        let mut path = path.to_vec();
        for _ in 0..16 {
            let depth = (0..=path.len())
                .rev()
                .find(|depth| self.modules.contains_key(&path[..*depth]))
                .expect("the root is a module");
            let (module, rest) = path.split_at(depth);
            let meaning = rest
                .first()
                .and_then(|name| self.bindings.get(&(module.to_vec(), name.clone())));
            match meaning {
                Some(meaning) => path = [meaning, &rest[1..]].concat(),
                None => return &self.modules[module],
            }
        }
        panic!("{path:?} is re-exported in a circle")
    }

    fn site(&self, import: &Import) -> String {
        format!("{}:{}", self.modules[&import.from], import.line)
    }
}

fn module_of(file: &str) -> Names {
    let path = file.strip_prefix("src/").unwrap_or(file);
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let mut names: Names = path.split('/').map(str::to_owned).collect();
    if names == ["lib"] || names.last().is_some_and(|name| name == "mod") {
        names.pop();
    }
    names
}

/// Finds the imports of one file.
struct Scanner<'a> {
    sources: &'a mut Crate,
    file_module: Names,
}

impl Scanner<'_> {
    fn scan(&mut self, tokens: TokenStream, module: &[String]) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            at = self.step(&tokens, at, module);
        }
    }

    /// Reads what begins at a token, and returns where the next begins.
    fn step(&mut self, tokens: &[TokenTree], at: usize, module: &[String]) -> usize {
        if is(tokens, at, '#') {
            let inner = is(tokens, at + 1, '!');
            let after = at + 2 + usize::from(inner);
            if let Some(attribute) = group(tokens, after - 1, Delimiter::Bracket) {
                return match is_test(&attribute) {
                    true if inner => tokens.len(),
                    true => skip_item(tokens, after),
                    false => {
                        self.scan_attribute(attribute, module);
                        after
                    }
                };
            }
        }
        if let TokenTree::Group(group) = &tokens[at] {
            self.scan(group.stream(), module);
            return at + 1;
        }
        let Some(name) = ident(tokens, at) else {
            return at + 1;
        };
        if name == "mod"
            && let Some(child) = ident(tokens, at + 1)
            && let Some(body) = group(tokens, at + 2, Delimiter::Brace)
        {
            self.scan(body, &[module, &[child]].concat());
            return at + 3;
        }
        if name == "use" && !is(tokens, at + 1, '<') {
            let end = (at..tokens.len()).find(|at| is(tokens, *at, ';'));
            let end = end.unwrap_or(tokens.len());
            let known = self.sources.imports.len();
            self.use_tree(&tokens[at + 1..end], &[], module);
            let before = group(tokens, at.wrapping_sub(1), Delimiter::Parenthesis);
            let visibility = at.wrapping_sub(1 + usize::from(before.is_some()));
            for import in &mut self.sources.imports[known..] {
                import.is_reexport = ident(tokens, visibility).is_some_and(|word| word == "pub");
            }
            return end;
        }
        if is_separator(tokens, at + 1) && (at < 2 || !is_separator(tokens, at - 2)) {
            let (path, end) = path(tokens, at);
            self.import(tokens[at].span().start().line, &path, module);
            return end;
        }
        at + 1
    }

    /// Attributes name paths as tokens, and serde's name them as strings.
    fn scan_attribute(&mut self, attribute: TokenStream, module: &[String]) {
        let mut next: VecDeque<_> = attribute.clone().into_iter().collect();
        if matches!(&next[0], TokenTree::Ident(name) if name == "doc") {
            return;
        }
        self.scan(attribute, module);
        while let Some(token) = next.pop_front() {
            match token {
                TokenTree::Group(group) => next.extend(group.stream()),
                TokenTree::Literal(literal) => {
                    let text = literal.to_string();
                    let text = text.trim_matches('"');
                    if text.starts_with("crate::") || text.starts_with("super::") {
                        let path: Names = text.split("::").map(str::to_owned).collect();
                        self.import(literal.span().start().line, &path, module);
                    }
                }
                _ => {}
            }
        }
    }

    /// Reads `a::{b::C, d as e, self, *}`.
    fn use_tree(&mut self, tokens: &[TokenTree], prefix: &[String], module: &[String]) {
        for branch in
            tokens.split(|token| matches!(token, TokenTree::Punct(p) if p.as_char() == ','))
        {
            let start = if is_separator(branch, 0) { 2 } else { 0 };
            if start == branch.len() || start > 0 && prefix.is_empty() {
                continue; // a comma at the end, or `::krate`, another crate
            }
            if let Some(tree) = group(branch, start, Delimiter::Brace) {
                self.use_tree(&Vec::from_iter(tree), prefix, module);
                continue;
            }
            let line = branch[start].span().start().line;
            let is_glob = is(branch, start, '*');
            let (mut names, end) = if is_glob {
                (Names::new(), start + 1)
            } else {
                path(branch, start)
            };
            if !prefix.is_empty() && names == ["self"] {
                names.clear();
            }
            let names = [prefix, &names].concat();
            if is_separator(branch, end) && is(branch, end + 2, '*') {
                self.import(line, &names, module);
            } else if is_separator(branch, end) {
                let tree = group(branch, end + 2, Delimiter::Brace).expect("a tree of names");
                self.use_tree(&Vec::from_iter(tree), &names, module);
            } else {
                let path = self.import(line, &names, module);
                let renamed = ident(branch, end).filter(|word| word == "as");
                let name = match renamed {
                    Some(_) => ident(branch, end + 1),
                    None => names.last().cloned(),
                };
                if let (Some(path), Some(name), false) = (path, name, is_glob)
                    && [module, std::slice::from_ref(&name)].concat() != path
                {
                    let key = (module.to_vec(), name);
                    self.sources.bindings.insert(key, path);
                }
            }
        }
    }

    /// Notes a path of this crate, and returns it from the root.
    fn import(&mut self, line: usize, path: &[String], module: &[String]) -> Option<Names> {
        let mut base = module.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                base.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while let Some((name, after)) = rest.split_first()
                    && name == "super"
                {
                    base.pop().expect("fewer `super` than modules");
                    rest = after;
                }
            }
            child => {
                // A module beside, or else another crate or a local name.
                let child = [module, &[child.to_owned()]].concat();
                self.sources.modules.get(&child)?;
            }
        }
        let path = [&base, rest].concat();
        self.sources.imports.push(Import {
            from: self.file_module.clone(),
            line,
            path: path.clone(),
            is_reexport: false,
        });
        Some(path)
    }
}

fn is(tokens: &[TokenTree], at: usize, char: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == char)
}

fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    is(tokens, at, ':') && is(tokens, at + 1, ':')
}

fn ident(tokens: &[TokenTree], at: usize) -> Option<String> {
    match tokens.get(at) {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

fn group(tokens: &[TokenTree], at: usize, delimiter: Delimiter) -> Option<TokenStream> {
    match tokens.get(at) {
        Some(TokenTree::Group(group)) if group.delimiter() == delimiter => Some(group.stream()),
        _ => None,
    }
}

/// Reads `a::b::C`, and returns where it ends.
fn path(tokens: &[TokenTree], mut at: usize) -> (Names, usize) {
    let mut names = Names::from_iter(ident(tokens, at));
    at += 1;
    while is_separator(tokens, at)
        && let Some(name) = ident(tokens, at + 2)
    {
        names.push(name);
        at += 3;
    }
    (names, at)
}

/// Whether an attribute leaves its item to tests.
fn is_test(attribute: &TokenStream) -> bool {
    let text = attribute.to_string().replace(char::is_whitespace, "");
    text == "cfg(test)" || text.starts_with("cfg(all(test,")
}

/// Returns where the item ends that an attribute is for, or `at` where it is for something else.
fn skip_item(tokens: &[TokenTree], at: usize) -> usize {
    let mut start = at;
    while is(tokens, start, '#') && group(tokens, start + 1, Delimiter::Bracket).is_some() {
        start += 2;
    }
    if ident(tokens, start).is_some_and(|word| word == "pub") {
        start += 1;
        start += usize::from(group(tokens, start, Delimiter::Parenthesis).is_some());
    }
    let keyword = ident(tokens, start).unwrap_or_default();
    match keyword.as_str() {
        "async" | "const" | "enum" | "fn" | "impl" | "macro_rules" | "mod" | "static"
        | "struct" | "trait" | "type" | "use" => {}
        _ => return at,
    }
    let ends = |at: &usize| {
        is(tokens, *at, ';') || keyword != "use" && group(tokens, *at, Delimiter::Brace).is_some()
    };
    (start..tokens.len())
        .find(ends)
        .map_or(tokens.len(), |end| end + 1)
}

/// Who imports from whom, and where.
struct Graph<'a> {
    nodes: BTreeSet<&'a str>,
    edges: BTreeMap<(&'a str, &'a str), BTreeSet<String>>,
}

/// Nodes that all reach each other.
struct Circle {
    members: Vec<String>,
    edges: Vec<String>,
}

impl<'a> Graph<'a> {
    fn new(nodes: impl Iterator<Item = &'a String>) -> Self {
        Self {
            nodes: nodes.map(String::as_str).collect(),
            edges: BTreeMap::new(),
        }
    }

    fn add(&mut self, from: &'a str, to: &'a str, site: String) {
        if from != to {
            self.edges.entry((from, to)).or_default().insert(site);
        }
    }

    fn circles(&self) -> Vec<Circle> {
        let reached: BTreeMap<_, _> = self
            .nodes
            .iter()
            .map(|node| (*node, self.reached_from(node)))
            .collect();
        let mut circles = Vec::new();
        let mut seen = BTreeSet::new();
        for node in &self.nodes {
            let is_member =
                |other: &&&str| reached[node].contains(**other) && reached[**other].contains(node);
            let members: BTreeSet<_> = self.nodes.iter().filter(is_member).copied().collect();
            if members.is_empty() || !seen.insert(members.clone()) {
                continue;
            }
            let inside = |(from, to): &(&str, &str)| members.contains(from) && members.contains(to);
            let edges = self.edges.iter().filter(|(edge, _)| inside(edge));
            circles.push(Circle {
                edges: edges
                    .map(|((from, to), sites)| {
                        let sites: Vec<_> = sites.iter().map(String::as_str).collect();
                        format!("{from} -> {to}: {}", sites.join(", "))
                    })
                    .collect(),
                members: members.iter().map(ToString::to_string).collect(),
            });
        }
        circles
    }

    fn reached_from(&self, node: &'a str) -> BTreeSet<&'a str> {
        let mut reached = BTreeSet::new();
        let mut next = VecDeque::from([node]);
        while let Some(node) = next.pop_front() {
            let targets = self.edges.keys().filter(|(from, _)| *from == node);
            for (_, to) in targets {
                if reached.insert(*to) {
                    next.push_back(to);
                }
            }
        }
        reached
    }
}

fn describe(what: &str, circles: &[Circle]) -> String {
    let mut text = String::new();
    for Circle { members, edges } in circles {
        let (count, members) = (members.len(), members.join(", "));
        writeln!(text, "{count} {what} import each other: {members}").unwrap();
        for edge in edges {
            writeln!(text, "  {edge}").unwrap();
        }
    }
    text
}
