//! `examples/README.md` lists each example. Those of the root document the dependencies that they are built with.

use std::collections::BTreeMap;

use super::documents::{files, read, section};

/// The source and the command of each example in the list.
fn documented() -> BTreeMap<String, String> {
    let list = read("examples/README.md");
    let commands = list
        .lines()
        .filter_map(|row| row.split(" | `").nth(1)?.strip_suffix("` |"));
    let source = |command: &str| match command.split_once("--example ") {
        Some((_, rest)) => format!("{}.rs", rest.split(' ').next().unwrap()),
        None => format!("{}/src/main.rs", command.split_once("-p example-").unwrap().1),
    };
    commands.map(|command| (source(command), command.to_owned())).collect()
}

/// The lines under `[dependencies]` in the comments of an example.
fn dependencies(example: &str) -> BTreeMap<String, String> {
    let text = read(&format!("examples/{example}"));
    let (_, lines) = text.split_once(" [dependencies]\n").unwrap();
    let lines = lines
        .lines()
        .map_while(|line| line.trim_start_matches(['/', '!', ' ']).split_once(" = "));
    lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The version and the features of a dependency, without its path.
fn version_and_features(value: &str) -> (String, Vec<String>) {
    let version = value.split('"').nth(1).unwrap().to_owned();
    let (_, features) = value.split_once("features = [").unwrap_or_default();
    let features = features.split(']').next().unwrap().split('"').skip(1).step_by(2);
    (version, features.map(str::to_owned).collect())
}

#[test]
fn every_example_has_its_command() {
    let commands = documented();
    for (file, text) in files("examples") {
        let name = file.strip_prefix("examples/").unwrap();
        // Maintainers draw pictures with these two.
        let is_program = name.ends_with(".rs") && text.contains("fn main()") && !name.starts_with("results");
        let has_user = !["algorithms.rs", "pictures.rs"].contains(&name);
        assert_eq!(commands.contains_key(name), is_program && has_user, "{name}");
    }
    for (source, command) in commands {
        let text = read(&format!("examples/{source}"));
        assert!(text.contains(&command), "{source} does not say `{command}`");
    }
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
    let of_root = documented().into_iter().filter(|(source, _)| !source.contains('/'));
    for (source, command) in of_root {
        let dependencies = dependencies(&source);
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
