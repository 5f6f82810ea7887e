//! The dependencies that `examples/README.md` names are those an example is built with.

use std::collections::BTreeMap;

use super::documents::{files, read, section};

/// The source of an example, its command, and the lines under `[dependencies]`.
type Example = (String, String, BTreeMap<String, String>);

fn documented() -> Vec<Example> {
    let readme = read("examples/README.md");
    let examples = readme.split("\n## ").skip(1);
    examples
        .map(|example| {
            let (_, line) = example.split_once("\n`").unwrap();
            let (source, rest) = line.split_once("`: `").unwrap();
            let command = rest.split('`').next().unwrap();
            let (_, block) = rest.split_once("[dependencies]\n").unwrap();
            let lines = block.split("```").next().unwrap().lines();
            let dependencies = lines.map(|line| line.split_once(" = ").unwrap());
            let dependencies = dependencies.map(|(name, value)| (name.to_owned(), value.to_owned()));
            (source.to_owned(), command.to_owned(), dependencies.collect())
        })
        .collect()
}

/// The version and the features of a dependency, without its path.
fn version_and_features(value: &str) -> (String, Vec<String>) {
    let version = value.split('"').nth(1).unwrap().to_owned();
    let (_, features) = value.split_once("features = [").unwrap_or_default();
    let features = features.split(']').next().unwrap().split('"').skip(1).step_by(2);
    (version, features.map(str::to_owned).collect())
}

#[test]
fn every_example_has_its_command_and_its_dependencies() {
    let written: Vec<_> = documented().into_iter().map(|(source, ..)| source).collect();
    for (file, text) in files("examples") {
        let name = file.strip_prefix("examples/").unwrap();
        // Maintainers draw pictures with these two.
        let is_program = name.ends_with(".rs") && text.contains("fn main()") && !name.starts_with("results");
        let has_user = !["algorithms.rs", "pictures.rs"].contains(&name);
        assert_eq!(
            written.iter().any(|source| source == name),
            is_program && has_user,
            "{name}"
        );
    }
    for (source, command, _) in documented() {
        let text = read(&format!("examples/{source}"));
        assert!(text.contains(&command), "{source} does not say `{command}`");
    }
}

#[test]
fn the_dependencies_of_a_package_are_those_of_its_manifest() {
    let packages = documented()
        .into_iter()
        .filter(|(source, ..)| source.ends_with("/src/main.rs"));
    let mut count = 0;
    for (source, _, dependencies) in packages {
        let package = source.strip_suffix("/src/main.rs").unwrap();
        let manifest = section(&format!("examples/{package}/Cargo.toml"), "dependencies").into_iter();
        let without_path = manifest.map(|(name, value)| (name, value.replace(", path = \"../..\"", "")));
        let short = without_path.map(|(name, value)| match value.strip_prefix("{ version = ") {
            Some(rest) if !rest.contains(',') => (name, rest.trim_end_matches(" }").to_owned()),
            _ => (name, value),
        });
        assert_eq!(dependencies, short.collect(), "{source}");
        count += 1;
    }
    assert_eq!(count, 6);
}

fn code_of(example: &str) -> String {
    let text = read(&format!("examples/{example}"));
    let code = text.lines().filter(|line| !line.starts_with("//"));
    code.filter_map(|line| line.split("// ").next())
        .collect::<Vec<_>>()
        .join("\n")
}

/// In imports, only the first segment of a path is a dependency.
fn uses(code: &str, dependency: &str) -> bool {
    let path = format!("{}::", dependency.replace('-', "_"));
    let is_root = |text: &str| !text.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
    code.split(';')
        .any(|statement| match statement.trim_start().strip_prefix("use ") {
            Some(import) => import.starts_with(&path),
            None => statement.match_indices(&path).any(|(at, _)| is_root(&statement[..at])),
        })
}

#[test]
fn an_example_of_the_root_uses_the_dependencies_it_names_and_no_others() {
    let mut built_with: BTreeMap<_, _> = section("Cargo.toml", "dependencies").into_iter().collect();
    built_with.extend(section("Cargo.toml", "dev-dependencies"));
    let version = section("Cargo.toml", "package")
        .into_iter()
        .find(|(name, _)| name == "version")
        .unwrap()
        .1;
    for (source, command, dependencies) in documented() {
        if source.contains('/') {
            continue;
        }
        let code = code_of(&source);
        let crates = built_with.keys().map(String::as_str).chain(["tower-quota"]);
        for name in crates {
            assert_eq!(dependencies.contains_key(name), uses(&code, name), "{source}: {name}");
        }
        for (name, value) in dependencies {
            let (named, features) = version_and_features(&value);
            if name == "tower-quota" {
                assert_eq!(format!("\"{named}\""), version, "{source}");
                let enabled = command.split_once(" --features ").map_or("", |(_, enabled)| enabled);
                assert_eq!(features.join(","), enabled, "{source}");
                let has_redis = !value.contains("default-features = false");
                assert!(has_redis || !code.contains("RedisStore"), "{source}");
            } else if let Some(root) = built_with.get(&name) {
                let (built, enabled) = version_and_features(root);
                assert!(
                    built.starts_with(&named),
                    "{source}: {name} {named}, built with {built}"
                );
                for feature in features {
                    assert!(
                        enabled.contains(&feature) || feature == "time",
                        "{source}: {name}, {feature}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_handler_on_the_page_about_websockets_is_that_of_the_example() {
    let page = read("src/guide/websocket.rs");
    let (_, block) = page.split_once("//! ```ignore\n").unwrap();
    let block = block.split("//! ```").next().unwrap();
    let lines = block.lines().map(|line| line.strip_prefix("//!").unwrap());
    let code = lines
        .map(|line| line.strip_prefix(' ').unwrap_or(line))
        .collect::<Vec<_>>()
        .join("\n");
    assert!(code.starts_with("async fn connect(") && code.ends_with('}'));
    assert!(read("examples/websocket/src/main.rs").contains(&code));
}
