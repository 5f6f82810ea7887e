//! What the documents say is what the crate is.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../examples/algorithms.rs"]
#[allow(dead_code, reason = "what an example prints is not looked at here")]
mod algorithms;

use std::{collections::BTreeSet, fs, path::Path};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Names on the left side of a section of the manifest.
fn names(section: &str) -> Vec<String> {
    let manifest = read("Cargo.toml");
    let section = manifest
        .split(&format!("\n[{section}]\n"))
        .nth(1)
        .unwrap()
        .split("\n[")
        .next()
        .unwrap();
    section
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name.to_owned())
        .collect()
}

#[test]
fn the_readme_names_this_version_and_this_minimum_of_rust() {
    let readme = read("README.md");
    let version = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap().0;
    assert!(
        readme.contains(&format!("tower-quota = {{ version = \"{version}\"")),
        "{version}"
    );
    let rust = env!("CARGO_PKG_RUST_VERSION");
    assert!(
        readme.contains(&format!("minimum supported Rust version is {rust}")),
        "{rust}"
    );
}

/// A user of the ACL who is given less than the scripts call is not limited, and one who is given more could do harm.
#[test]
fn the_permissions_that_the_guide_for_production_gives_are_the_commands_of_the_scripts() {
    let scripts = ["quota", "renew"]
        .map(|name| read(&format!("src/store/redis/{name}.lua")))
        .concat();
    let calls = scripts.split("redis.").skip(1);
    let called = calls.filter_map(|call| call.strip_prefix("call('").or(call.strip_prefix("pcall('")));
    let mut commands: BTreeSet<String> = called
        .map(|call| call.split('\'').next().unwrap().to_lowercase())
        .collect();
    // How the scripts are called, and what a reset sends.
    commands.extend(["eval", "evalsha", "unlink"].map(str::to_owned));
    let guide = read("docs/PRODUCTION.md");
    let (_, rule) = guide.split_once("ACL SETUSER ").unwrap();
    let rule = rule.split("```").next().unwrap();
    let given = rule.split_whitespace().filter_map(|word| word.strip_prefix('+'));
    assert_eq!(given.map(str::to_owned).collect::<BTreeSet<_>>(), commands);
    let named = read("src/store/redis/builder.rs");
    for command in commands {
        assert!(named.contains(&format!("`{}`", command.to_uppercase())), "{command}");
    }
}

#[test]
fn every_feature_is_explained_in_the_readme_and_in_the_documentation() {
    for document in [read("README.md"), read("src/lib.rs")] {
        for feature in names("features").iter().filter(|feature| *feature != "default") {
            assert!(document.contains(&format!("| `{feature}` |")), "{feature}");
        }
    }
}

/// The documentation shows it, and has it in the middle of a text, where a blank line would end it.
#[tokio::test]
async fn the_chart_of_algorithms_is_the_one_that_the_example_draws() {
    let rows = algorithms::rows().await.unwrap();
    let drawn = algorithms::svg(&rows).unwrap();
    assert!(
        read("docs/algorithms.svg") == drawn,
        "run `cargo run --example algorithms` and look at the chart"
    );
    assert!(drawn.lines().all(|line| !line.trim().is_empty()));
}

/// Features only add: what a function does must not depend on them, so `cfg` stands where names are brought in or in
/// functions that do nothing else.
#[test]
fn conditional_compilation_stays_at_the_edges() {
    let allowed = [
        "src/key/client_ip/peer.rs",
        "src/key/mod.rs",
        "src/layer/mod.rs",
        "src/lib.rs",
        "src/policy/mod.rs",
        "src/rejection/grpc.rs",
        "src/store/mod.rs",
        "src/store/redis/client.rs",
        "src/telemetry/macros.rs",
        "src/telemetry/meters.rs",
        "src/telemetry/mod.rs",
        "src/telemetry/no_meters.rs",
    ];
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().to_str().unwrap();
            let source = fs::read_to_string(&path).unwrap();
            let is_test = name.ends_with("/tests.rs");
            // Examples in the documentation say which feature they need.
            let mut code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
            assert!(
                is_test || allowed.contains(&name) || !code.any(|line| line.contains("cfg(feature")),
                "{name}"
            );
        }
    }
}

#[test]
fn continuous_integration_runs_what_a_developer_runs() {
    assert!(
        read(".ci/run").lines().any(|line| line == "exec make test"),
        "{}",
        read(".ci/run")
    );
}
