//! The documents agree with the crate.

#[path = "../../examples/algorithms.rs"]
#[allow(dead_code, reason = "what an example prints is not looked at here")]
pub(crate) mod algorithms;
#[path = "../../src/store/redis/scripts/mod.rs"]
#[allow(dead_code, reason = "only the texts are of interest here")]
mod scripts;

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use super::{circles::Modules, conformance::mistake_in_tests};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

/// The path and the text of each file in a folder and in the folders below it, without the results of builds.
pub(crate) fn files(folder: &str) -> Vec<(String, String)> {
    let root = Path::new(ROOT);
    let (mut folders, mut files) = (vec![root.join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.extend((!path.ends_with("target")).then_some(path));
            } else if let Ok(text) = fs::read_to_string(&path) {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                files.push((name.to_owned(), text));
            }
        }
    }
    files
}

/// The path and the text of each file of the crate.
fn sources() -> Vec<(String, String)> {
    let files = files("src").into_iter();
    files.filter(|(name, _)| name.ends_with(".rs")).collect()
}

/// The lines `name = value` of a section of a manifest.
pub(crate) fn section(manifest: &str, section: &str) -> Vec<(String, String)> {
    let manifest = read(manifest);
    let (_, section) = manifest.split_once(&format!("[{section}]\n")).unwrap();
    let lines = section.split("\n[").next().unwrap().lines();
    lines
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn names(manifest: &str, of: &str) -> Vec<String> {
    section(manifest, of).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn the_readme_names_this_version_and_this_minimum_of_rust() {
    let readme = read("README.md");
    let sections = [
        section("Cargo.toml", "package"),
        section("Cargo.toml", "workspace.package"),
    ];
    let value = |name: &str| {
        let (_, value) = sections.iter().flatten().find(|(own, _)| own == name).unwrap();
        value.trim_matches('"').to_owned()
    };
    let version = value("version");
    let version = version.rsplit_once('.').unwrap().0;
    assert!(
        readme.contains(&format!("tower-quota = {{ version = \"{version}\"")),
        "{version}"
    );
    let rust = value("rust-version");
    assert!(
        readme.contains(&format!("minimum supported Rust version is {rust}")),
        "{rust}"
    );
}

/// The first thing that a newcomer meets must not be "Address already in use" without a way out.
#[test]
fn programs_that_listen_say_which_port_is_taken_and_how_to_set_another() {
    let mut listening = 0;
    for (path, program) in files("examples").iter().chain(&files("apps")) {
        if program.contains("env::var(\"PORT\")") {
            let message = r#"format!("port {port}: {error}; PORT sets another one")"#;
            assert!(program.contains(message), "{path}");
            listening += 1;
        }
    }
    assert!(listening >= 7, "{listening}");
}

/// `--features` at the root is for the crate and for its tests.
#[test]
fn the_tests_have_the_features_of_the_crate() {
    assert_eq!(names("tests/Cargo.toml", "features"), names("Cargo.toml", "features"));
}

/// A user of the ACL who is given less than the scripts call is not limited, and one who is given more could do harm.
#[test]
fn the_permissions_that_the_guide_for_production_gives_are_the_commands_of_the_scripts() {
    let texts = scripts::Script::texts(Duration::ZERO);
    let scripts: String = texts.iter().map(|text| text.source.as_str()).collect();
    let calls = scripts.split("redis.").skip(1);
    let called = calls.filter_map(|call| call.strip_prefix("call('").or(call.strip_prefix("pcall('")));
    let mut commands: BTreeSet<String> = called
        .map(|call| call.split('\'').next().unwrap().to_lowercase())
        .collect();
    // These call the scripts, and are sent by a reset.
    commands.extend(["eval", "evalsha", "unlink"].map(str::to_owned));
    let guide = read("docs/PRODUCTION.md");
    let (_, rule) = guide.split_once("ACL SETUSER ").unwrap();
    let rule = rule.split("```").next().unwrap();
    let given = rule.split_whitespace().filter_map(|word| word.strip_prefix('+'));
    assert_eq!(given.map(str::to_owned).collect::<BTreeSet<_>>(), commands);
}

#[test]
fn the_guide_for_production_names_the_versions_of_servers_that_were_measured() {
    let (guide, figures) = (read("docs/PRODUCTION.md"), read("benches/README.md"));
    let (_, tested) = guide.split_once("Tested are Redis ").unwrap();
    let (redis, valkey) = tested.split_once(", and Valkey ").unwrap();
    let numbers = |text: &str| -> Vec<String> {
        let words = text.split([' ', '\n', ',']).map(|word| word.trim_end_matches('.'));
        let numbers = words.filter(|word| word.starts_with(|first: char| first.is_ascii_digit()));
        numbers.map(str::to_owned).collect()
    };
    let (valkey, _) = valkey.split_once(". ").unwrap();
    let (_, table) = figures.split_once("## Versions of Redis and Valkey").unwrap();
    let measured = |name: &str| -> Vec<String> {
        let lines = table.split("\n## ").next().unwrap().lines();
        let versions = lines.filter_map(|line| line.strip_prefix(&format!("| {name} "))?.split(' ').next());
        versions.map(str::to_owned).collect()
    };
    assert_eq!(numbers(redis), measured("Redis"));
    assert_eq!(numbers(valkey), measured("Valkey"));
}

#[test]
fn every_feature_is_explained_in_the_readme_and_in_the_documentation() {
    let document = read("src/lib.rs");
    for feature in names("Cargo.toml", "features")
        .iter()
        .filter(|feature| *feature != "default")
    {
        assert!(document.contains(&format!("| `{feature}` |")), "{feature}");
    }
}

/// The rooms of `src` with their rungs, from the table in `docs/DESIGN.md`.
fn rooms() -> Vec<(usize, String)> {
    let design = read("docs/DESIGN.md");
    let (_, table) = design.split_once("## The rooms of `src`").unwrap();
    let rows = table.split("\n## ").next().unwrap().lines();
    rows.filter_map(|row| {
        let (rung, room) = row.strip_prefix("| ")?.split_once(" | `")?;
        Some((rung.parse().ok()?, room.split('`').next()?.to_owned()))
    })
    .collect()
}

#[test]
fn a_room_uses_only_rooms_on_higher_rungs() {
    let rooms = rooms();
    let rung = |room: &str| rooms.iter().find(|(_, name)| name == room).map(|(rung, _)| *rung);
    for (path, used) in Modules::read("src").paths() {
        let room = path.strip_prefix("src/").unwrap().split(['/', '.']).next().unwrap();
        if ["docs", "guide", "lib"].contains(&room) {
            continue;
        }
        let own = rung(room).unwrap_or_else(|| panic!("{room} is not in the table"));
        // Types that are re-exported at the root are not rooms.
        let is_room = |name: &&String| name.starts_with(char::is_lowercase) && *name != room;
        if let Some(used) = used.first().filter(is_room) {
            assert!(rung(used).is_some_and(|used| used < own), "{path} uses {used}");
        }
    }
    let root = read("src/lib.rs");
    for (_, room) in rooms {
        let is_declared = [";", " {"]
            .iter()
            .any(|end| root.contains(&format!("mod {room}{end}\n")));
        assert!(is_declared, "there is no room {room}");
    }
}

/// The rows of the invariants name tests; all else in backticks with a path names a file.
#[test]
fn the_design_names_tests_and_files_that_exist() {
    let design = read("docs/DESIGN.md");
    let (_, table) = design.split_once("## Invariants").unwrap();
    let rows = table.split("\n## ").next().unwrap().lines();
    let tests: Vec<_> = rows
        .filter_map(|row| row.rsplit_once(" | `")?.1.strip_suffix("` |"))
        .collect();
    assert!(tests.len() > 20, "{tests:?}");
    for test in tests {
        assert_eq!(mistake_in_tests(&format!("`{test}`")), None);
    }
    let text = design + &read("docs/decisions.md");
    let quoted = text.split('`').skip(1).step_by(2);
    let is_path = |word: &&str| word.contains('/') && word.ends_with(".rs") && !word.contains(['{', ' ']);
    for path in quoted.filter(is_path).filter(|path| !path.contains("NAME")) {
        let folders = ["", "src/", "src/limiter/guard/", "crates/ratelimit-fields/src/"];
        let exists = folders
            .iter()
            .any(|folder| Path::new(ROOT).join(folder).join(path).is_file());
        assert!(exists, "there is no {path}");
    }
}

/// The name of a page in `docs`, as rustdoc has it, and the anchors of its headings.
fn pages() -> Vec<(String, BTreeSet<String>)> {
    let module = read("src/docs.rs");
    let included = module.split("include_str!(\"../docs/").skip(1);
    let names = included.map(|rest| rest.split('"').next().unwrap());
    let is_anchor = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
    let anchor = |title: &str| -> String { title.to_lowercase().chars().filter(is_anchor).collect() };
    names
        .filter(|name| name.ends_with(".md"))
        .map(|name| {
            let page = read(&format!("docs/{name}"));
            let titles = page.lines().filter(|line| line.starts_with('#'));
            let titles = titles.map(|line| anchor(line.trim_start_matches('#').trim()).replace(' ', "-"));
            let module = name.trim_end_matches(".md").to_lowercase();
            (module, titles.collect())
        })
        .collect()
}

/// rustdoc does not check what follows the `#` of a link.
#[test]
fn links_to_sections_of_pages_lead_to_headings() {
    let pages = pages();
    let folders = ["src", "docs", "crates", "apps", "ops", "examples"].map(files);
    let more =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| (name.to_owned(), read(name)));
    let mut checked = 0;
    for (path, text) in folders.iter().flatten().chain(&more) {
        for (start, separator) in [
            ("crate::docs::", "#"),
            ("/latest/tower_quota/docs/", "/"),
            ("](docs/", "#"),
        ] {
            for link in text.split(start).skip(1) {
                let link = link.split([')', '"', '>', '\'', ' ', '\n', '$', '`']).next().unwrap();
                let (page, section) = link.split_once(separator).unwrap_or((link, ""));
                let page = page.trim_end_matches(".md").to_lowercase();
                let section = section.trim_start_matches("index.html").trim_start_matches('#');
                let found = pages.iter().find(|(name, _)| *name == page);
                // Pages for contributors are linked by their file.
                if found.is_none() && start == "](docs/" {
                    continue;
                }
                let (_, sections) = found.unwrap_or_else(|| panic!("{path}: there is no page {page}"));
                assert!(
                    section.is_empty() || sections.contains(section),
                    "{path}: {page}#{section}"
                );
                checked += 1;
            }
        }
    }
    assert!(checked > 100, "{checked}");
}

/// The documentation shows it, and has it in the middle of a text, where a blank line would end it.
#[tokio::test]
async fn the_chart_of_algorithms_is_the_one_that_the_example_draws() {
    let rows = algorithms::rows().await.unwrap();
    let drawn = algorithms::svg(&rows);
    assert!(
        read("docs/algorithms.svg") == drawn,
        "run `cargo run --example algorithms` and look at the chart"
    );
    assert!(drawn.lines().all(|line| !line.trim().is_empty()));
}

/// Features are additive: the behavior of a function must not depend on them, so `cfg` is only used on imports or in
/// functions that do nothing else.
#[test]
fn conditional_compilation_stays_at_the_edges() {
    let allowed = [
        "src/docs.rs",
        "src/decision/mod.rs",
        "src/key/client_ip/peer.rs",
        "src/key/mod.rs",
        "src/layer/builder.rs",
        "src/layer/mod.rs",
        "src/lib.rs",
        "src/rules/mod.rs",
        "src/response/rejection/grpc.rs",
        "src/store/mod.rs",
        "src/store/redis/mod.rs",
        "src/store/redis/net/opener.rs",
        "src/store/redis/net/stream.rs",
        "src/telemetry/facade.rs",
        "src/telemetry/layer.rs",
        "src/telemetry/mod.rs",
        "src/telemetry/process.rs",
        "src/telemetry/series.rs",
    ];
    for (name, source) in sources() {
        let is_test = name.ends_with("/tests.rs");
        // Comments are skipped, because examples in the documentation specify the feature that they need.
        let mut code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
        assert!(
            is_test || allowed.contains(&name.as_str()) || !code.any(|line| line.contains("cfg(feature")),
            "{name}"
        );
    }
}

#[test]
fn the_dependencies_of_all_published_packages_are_checked_before_a_release() {
    let script = read("scripts/release-check");
    let checks: Vec<_> = script
        .lines()
        .filter(|line| line.contains("\"$deny\" ") && line.contains(" check "))
        .collect();
    assert_eq!(checks.len(), 2, "{checks:#?}");
    assert!(
        checks.iter().all(|check| check.contains(" --workspace ")),
        "{checks:#?}"
    );

    let list = |list: &str| -> Vec<String> {
        let items = list.trim_matches(['[', ']']).split(", ");
        items.map(|item| item.trim_matches('"').to_owned()).collect()
    };
    let workspace = section("Cargo.toml", "workspace");
    let (_, members) = workspace.iter().find(|(name, _)| name == "members").unwrap();
    // The packages in `crates` are published.
    let others = list(members).into_iter().filter(|member| member != "crates/*");
    let unpublished: BTreeSet<_> = others
        .map(|member| {
            let manifest = section(&format!("{member}/Cargo.toml"), "package");
            assert!(
                manifest.contains(&("publish".to_owned(), "false".to_owned())),
                "{member}"
            );
            manifest[0].1.trim_matches('"').to_owned()
        })
        .collect();
    let graph = section("deny.toml", "graph");
    let (_, excluded) = graph.iter().find(|(name, _)| name == "exclude").unwrap();
    assert_eq!(list(excluded).into_iter().collect::<BTreeSet<_>>(), unpublished);
}

#[test]
fn each_surviving_mutant_is_in_a_function_that_exists() {
    let survivors = read("scripts/mutants.survivors");
    for line in survivors.lines().filter(|line| !line.starts_with('#')) {
        let (file, mutant) = line.split_once(": ").unwrap();
        let names = mutant.split_whitespace().find_map(|word| word.split_once("::"));
        let (_, function) = names.unwrap();
        assert!(read(file).contains(&format!("fn {function}(")), "{line}");
    }
}

#[test]
fn continuous_integration_runs_what_a_developer_runs() {
    let (run, workflow) = (read(".ci/run"), read(".github/workflows/ci.yml"));
    for step in ["test-all", "browser-test", "ops-test", "release-check"] {
        let line = format!("make {step} || failed+=({step})");
        assert!(run.lines().any(|own| own == line), "{run}");
        assert!(workflow.contains(&format!("make {step}\n")), "{step}");
    }
    // Unpublished packages are left out of the check with the oldest versions of dependencies.
    let members = read("Cargo.toml");
    let members = members.lines().find(|line| line.starts_with("members = ")).unwrap();
    assert!(
        members.starts_with(r#"members = ["crates/*", "#) && members.ends_with(']'),
        "{members}"
    );
    assert!(workflow.contains(r#"'s/^members = .*/members = ["crates\/*"]/'"#));
}
