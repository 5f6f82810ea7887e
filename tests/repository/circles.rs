//! No circle of imports between the files of a package.
//!
//! A file imports the files that define the items it names, in `use` or by a path in its code. A module that only re-exports
//! an item is passed over, so `mod.rs` may gather what its children define.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

use super::documents::files;

/// The words before the name of an item. A macro is found as the name that follows a `!` outside of all braces.
const ITEMS: [&str; 8] = ["!", "const", "enum", "fn", "static", "struct", "trait", "type"];

type Path = Vec<String>;

#[derive(Default)]
struct Module {
    file: String,
    /// Items and macros.
    defined: BTreeSet<String>,
    /// The paths that `use` brings in, by their names here.
    imported: BTreeMap<String, Path>,
    /// Paths in code, and those in `use` that are not re-exported.
    named: BTreeSet<Path>,
}

/// The modules of one crate, by their paths. Modules for tests are left out.
#[derive(Default)]
pub(crate) struct Modules(BTreeMap<Path, Module>);

impl Modules {
    /// Reads the files of a folder, in which `lib.rs` or `main.rs` is the root. Programs in `bin` are separate crates.
    pub(crate) fn read(folder: &str) -> Self {
        let mut modules = Self::default();
        for (file, text) in files(folder) {
            let name = file[folder.len() + 1..].to_owned();
            if name.ends_with(".rs") && !name.ends_with("tests.rs") && !name.starts_with("bin/") {
                modules.add_file(&file, &name, &text);
            }
        }
        modules
    }

    fn add_file(&mut self, file: &str, name: &str, text: &str) {
        let mut path: Path = name.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        path.pop_if(|name| ["lib", "main", "mod"].contains(&&**name));
        let mut code = Vec::new();
        flatten(text.parse().unwrap(), &mut code);
        self.add(file, path, &code);
    }

    fn add(&mut self, file: &str, path: Path, code: &[String]) {
        let mut module = Module {
            file: file.to_owned(),
            ..Module::default()
        };
        let (mut at, mut depth) = (0, 0);
        while at < code.len() {
            let (before, rest) = (at.checked_sub(1).map_or("", |before| &code[before]), &code[at..]);
            depth += i32::from(rest[0] == "{") - i32::from(rest[0] == "}");
            let is_defined = depth == 0 && ITEMS.contains(&before);
            module.defined.extend(is_defined.then(|| rest[0].clone()));
            at += match &*rest[0] {
                "#" if is_for_tests(rest) => length_of_item(rest),
                "mod" if rest.get(2).is_some_and(|word| word == "{") => {
                    let length = length_of_item(rest);
                    self.add(file, child(&path, &rest[1]), &rest[3..length]);
                    length
                }
                "use" => {
                    let length = rest.iter().position(|word| word == ";").unwrap();
                    module.import(&[], &rest[1..length], ["pub", ")"].contains(&before));
                    length
                }
                _ => module.name(before, rest),
            };
        }
        self.0.insert(path, module);
    }

    /// The files, each with a path that it names or re-exports: from the root of this crate, unless it leads to another crate.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&str, Path)> {
        self.0.iter().flat_map(|(module, content)| {
            let paths = content.named.iter().chain(content.imported.values());
            paths.filter_map(|path| Some((&*content.file, self.absolute(module, path)?)))
        })
    }

    fn absolute(&self, module: &[String], path: &[String]) -> Option<Path> {
        let supers = path.iter().take_while(|name| *name == "super").count();
        let start = match &*path[0] {
            "crate" => &[],
            "self" => module,
            "super" => &module[..module.len() - supers],
            name => {
                let content = &self.0[module];
                let is_here = content.defined.contains(name) || content.imported.contains_key(name);
                let is_local = is_here || self.0.contains_key(&child(module, name));
                return is_local.then(|| [module, path].concat());
            }
        };
        Some([start, &path[supers.max(1)..]].concat())
    }

    /// The file that defines an item; `None` for a module and for items of other crates.
    fn definer(&self, path: &[String], depth: usize) -> Option<&str> {
        let mut module = Path::new();
        for (index, name) in path.iter().enumerate() {
            let (content, rest) = (&self.0[&module], &path[index + 1..]);
            let child = child(&module, name);
            let is_module = self.0.contains_key(&child);
            // An item may have the name of a module.
            if is_module && !rest.is_empty() {
                module = child;
                continue;
            }
            return match content.imported.get(name) {
                // `use name;` would lead to itself.
                Some(import) if !content.defined.contains(name) && depth < 8 => {
                    let import = self.absolute(&module, import)?;
                    self.definer(&[&import, rest].concat(), depth + 1)
                }
                // A module within a file is an item of it.
                None if is_module && self.0[&child].file != content.file => None,
                _ => Some(&content.file),
            };
        }
        None
    }

    /// Returns each set of files that import each other, with the imports among them.
    fn circles(&self) -> Vec<BTreeMap<&str, BTreeSet<&str>>> {
        let mut imports = BTreeMap::<_, BTreeSet<_>>::new();
        for (module, content) in &self.0 {
            let paths = content.named.iter().filter_map(|path| self.absolute(module, path));
            let definers = paths.filter_map(|path| self.definer(&path, 0));
            let others = definers.filter(|definer| *definer != content.file);
            imports.entry(&*content.file).or_default().extend(others);
        }
        let reached: BTreeMap<_, _> = imports.keys().map(|file| (*file, reached(&imports, file))).collect();
        let circle = |file: &&str| {
            let mutual = |other: &&str| reached[file].contains(other) && reached[other].contains(file);
            let members = imports.iter().filter(|(other, _)| mutual(other));
            let among = |used: &BTreeSet<_>| used.iter().copied().filter(mutual).collect();
            members.map(|(member, used)| (*member, among(used))).collect()
        };
        let circles: BTreeSet<BTreeMap<_, _>> = imports.keys().map(circle).collect();
        circles.into_iter().filter(|circle| !circle.is_empty()).collect()
    }
}

/// The files that a file imports, and those that these import, and so on.
fn reached<'a>(imports: &BTreeMap<&'a str, BTreeSet<&'a str>>, file: &'a str) -> BTreeSet<&'a str> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![file]);
    while let Some(file) = next.pop() {
        let new = imports
            .get(file)
            .into_iter()
            .flatten()
            .copied()
            .filter(|used| reached.insert(*used));
        next.extend(new);
    }
    reached
}

impl Module {
    /// Reads the words after `use`, without the semicolon.
    fn import(&mut self, parents: &[String], tree: &[String], is_reexport: bool) {
        let names = tree.iter().take_while(|word| *word != "{" && *word != "as");
        let mut path: Path = parents
            .iter()
            .chain(names.filter(|word| *word != "::"))
            .cloned()
            .collect();
        if let Some(open) = tree.iter().position(|word| word == "{") {
            let (mut depth, group) = (0, &tree[open + 1..tree.len() - 1]);
            let branches = group.split(|word| {
                depth += i32::from(word == "{") - i32::from(word == "}");
                depth == 0 && word == ","
            });
            for branch in branches.filter(|branch| !branch.is_empty()) {
                self.import(&path, branch, is_reexport);
            }
            return;
        }
        if path.len() > 1 {
            path.pop_if(|name| name == "self");
        }
        let name = if tree.contains(&"as".to_owned()) {
            tree.last()
        } else {
            path.last()
        };
        self.imported.insert(name.unwrap().clone(), path.clone());
        self.named.extend((!is_reexport).then_some(path));
    }

    /// Reads a path or a single word, and returns its length.
    fn name(&mut self, before: &str, code: &[String]) -> usize {
        let is_name = |word: &String| word.starts_with(|first: char| first.is_alphabetic() || first == '_');
        let pairs = code[1..].chunks_exact(2);
        let names = pairs
            .take_while(|pair| pair[0] == "::" && is_name(&pair[1]))
            .map(|pair| &pair[1]);
        let path: Path = iter::once(&code[0]).chain(names).cloned().collect();
        let length = path.len() * 2 - 1;
        // Fields and methods are no paths, and a path may begin with a type in angle brackets. `pub(super)` names no item.
        let is_visibility = length == 1 && ["crate", "self", "super"].contains(&&*code[0]);
        let is_path = is_name(&code[0]) && ![".", "::"].contains(&before) && !is_visibility;
        self.named.extend(is_path.then_some(path));
        length
    }
}

fn child(module: &[String], name: &str) -> Path {
    [module, &[name.to_owned()]].concat()
}

/// Adds words, brackets and signs of code; literals have no names in them.
fn flatten(code: TokenStream, words: &mut Vec<String>) {
    for token in code {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ("{", "}"),
                    _ => ("(", ")"),
                };
                words.push(open.to_owned());
                flatten(group.stream(), words);
                words.push(close.to_owned());
            }
            TokenTree::Punct(sign) if sign.as_char() == ':' && words.last().is_some_and(|word| word == ":-") => {
                *words.last_mut().unwrap() = "::".to_owned();
            }
            TokenTree::Punct(sign) if sign.as_char() == ':' && sign.spacing() == Spacing::Joint => {
                words.push(":-".to_owned());
            }
            TokenTree::Punct(sign) => words.push(sign.to_string()),
            TokenTree::Ident(name) => words.push(name.to_string()),
            TokenTree::Literal(_) => words.push("0".to_owned()),
        }
    }
}

/// Returns `true` for `#[cfg(test)]` and `#[cfg(all(test, …))]`.
fn is_for_tests(code: &[String]) -> bool {
    let code: Vec<&str> = code.iter().take(7).map(String::as_str).collect();
    code.starts_with(&["#", "(", "cfg", "(", "test"]) || code == ["#", "(", "cfg", "(", "all", "(", "test"]
}

/// The words up to the end of an item: its semicolon or its body.
fn length_of_item(code: &[String]) -> usize {
    let mut depth = 0;
    let end = code.iter().position(|word| {
        depth += match &**word {
            "{" | "(" => 1,
            "}" | ")" => -1,
            _ => 0,
        };
        depth < 0 || depth == 0 && [";", "}"].contains(&&**word)
    });
    // The bracket around an item is not a part of it.
    end.unwrap() + usize::from(depth == 0)
}

fn circles(files: &[(&str, &str)]) -> Vec<String> {
    let mut modules = Modules::default();
    for (name, text) in files {
        modules.add_file(name, name, text);
    }
    modules.circles().iter().map(describe).collect()
}

fn describe(circle: &BTreeMap<&str, BTreeSet<&str>>) -> String {
    let lines = circle.iter().map(|(file, used)| format!("{file} imports {used:?}"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn imports_are_found_in_groups_in_bodies_and_through_re_exports() {
    const LIB: (&str, &str) = ("lib.rs", "mod a; mod b; pub use self::{a::A, b::{deep::{C, D as E}}};");
    const DEEP: (&str, &str) = ("b/deep.rs", "pub struct C; pub struct D; fn f(_: crate::A) {}");
    let between = |a: &str| circles(&[LIB, ("a.rs", a), ("b/mod.rs", "pub mod deep; const F: u8 = 0;"), DEEP]);
    let imports = [
        "pub struct A; use super::E;",
        "pub struct A; use crate::{b::{self, deep::{C}}};",
        "pub struct A; fn f() { let _ = crate::b::deep::C; }",
        "pub struct A; fn f() -> super::C {}",
        "pub struct A; mod inner { use super::super::C as _; }",
        "pub struct A; pub use super::b::deep; fn f(_: deep::D) {}",
        "pub struct A; pub use super::C; fn f(_: C) {}",
        "pub struct A; struct B { a: u8, #[cfg(test)] b: u8 } use super::C;",
    ];
    for a in imports {
        let expected = r#"a.rs imports {"b/deep.rs"}
b/deep.rs imports {"a.rs"}"#;
        assert_eq!(between(a), [expected], "{a}");
    }
    let others = [
        "pub struct A; pub use super::C;",
        "pub struct A; use super::b::F;",
        "pub struct A; use std::C; fn f() { self.deep(\"crate::C\"); /* crate::C */ }",
        "pub struct A; #[cfg(test)] mod tests { use super::super::C; }",
        "pub struct A; #[cfg(all(test, unix))] use super::C;",
    ];
    for a in others {
        assert_eq!(between(a), [""; 0], "{a}");
    }
}

#[test]
fn files_do_not_import_each_other_in_a_circle() {
    let packages = files("crates").into_iter().filter_map(|(file, _)| {
        let root = file.strip_suffix("/lib.rs").or(file.strip_suffix("/main.rs"))?;
        root.contains("/src").then(|| root.to_owned())
    });
    let crates: Vec<Modules> = packages
        .chain(["src".to_owned()])
        .map(|folder| Modules::read(&folder))
        .collect();
    let circles: Vec<String> = crates
        .iter()
        .flat_map(Modules::circles)
        .map(|circle| describe(&circle))
        .collect();
    assert!(circles.is_empty(), "{}", circles.join("\n\n"));
}
