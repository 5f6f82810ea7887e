//! `examples/README.md` names each example. The dependencies of those of the root are those they are built with.

use std::collections::BTreeMap;

use super::documents::{files, read, section};

/// The source of an example, its command, and the lines under `[dependencies]`.
type Example = (String, String, BTreeMap<String, String>);

const PACKAGES: &str = "\n## Examples with more dependencies\n";

fn documented() -> Vec<Example> {
    let readme = read("examples/README.md");
    let (examples, _) = readme.split_once(PACKAGES).unwrap();
    let examples = examples.split("\n## ").skip(1);
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

/// The source and the command of each example that is a package.
fn packages() -> Vec<(String, String)> {
    let readme = read("examples/README.md");
    let (_, table) = readme.split_once(PACKAGES).unwrap();
    let commands = table
        .lines()
        .filter_map(|row| row.split('`').nth(1)?.strip_prefix("cargo "));
    let packages = commands.map(|command| {
        let (_, name) = command.split_once("-p example-")?;
        Some((format!("{name}/src/main.rs"), format!("cargo {command}")))
    });
    packages.flatten().collect()
}

#[test]
fn every_example_has_its_command() {
    let commands = documented().into_iter().map(|(source, command, _)| (source, command));
    let commands: BTreeMap<_, _> = commands.chain(packages()).collect();
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
    for (source, command, dependencies) in documented() {
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
