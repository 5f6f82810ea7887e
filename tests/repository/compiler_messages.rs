//! The messages of the compiler where the crate is used in a wrong way: the first help that a newcomer gets.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::SystemTime,
};

/// The folder with the libraries that this program was linked from.
fn libraries() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// The files of a library, the newest first: the folder may have several, of other features.
fn files_of(library: &str) -> Vec<PathBuf> {
    let prefix = format!("lib{library}-");
    let is_one = |path: &Path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with(&prefix) && name.ends_with(".rlib")
    };
    let files = fs::read_dir(libraries()).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| is_one(path)).collect();
    files.sort_by_key(|path| {
        std::cmp::Reverse(
            path.metadata()
                .and_then(|file| file.modified())
                .unwrap_or(SystemTime::UNIX_EPOCH),
        )
    });
    files
}

/// The messages about a function with this body, where `settings` is a builder that lacks nothing but its end.
fn messages(body: &str, tower_layer: &Path) -> String {
    let source = format!(
        "use tower_quota::{{MemoryStore, QuotaPolicy, RateLimitLayer, key}};
         pub fn function() {{
             let settings = RateLimitLayer::builder(MemoryStore::new())
                 .scope(\"api\").key(key::client_ip()).policy(QuotaPolicy::per_minute(\"minute\", 60));
             {body}
         }}"
    );
    let folder = libraries().join("compiler_messages");
    fs::create_dir_all(&folder).unwrap();
    let name = format!(
        "{:x}.rs",
        source
            .bytes()
            .fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
    );
    let file = folder.join(name);
    fs::write(&file, source).unwrap();
    let output = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--out-dir"])
        .arg(&folder)
        .arg("-L")
        .arg(format!("dependency={}", libraries().display()))
        .arg("--extern")
        .arg(format!("tower_quota={}", files_of("tower_quota")[0].display()))
        .arg("--extern")
        .arg(format!("tower_layer={}", tower_layer.display()))
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8(output.stderr).unwrap()
}

/// Asserts that the compiler messages for `body` contain `texts`. If there are several files of the library that both
/// crates use, only the right one works.
fn assert_says(body: &str, texts: &[&str]) {
    let all: Vec<String> = files_of("tower_layer")
        .iter()
        .map(|file| messages(body, file))
        .collect();
    let says = |messages: &&String| texts.iter().all(|text| messages.contains(text));
    assert!(
        all.iter().any(|messages| says(&messages)),
        "{texts:?} are not in {all:#?}"
    );
}

#[test]
fn a_text_in_place_of_a_key_is_told_which_keys_there_are() {
    assert_says(
        "settings.key(\"x-user-id\");",
        &[
            "`&str` does not extract a key from requests",
            "key::header(\"x-user-id\")",
            "key::extension::<UserId>()",
            "key::client_ip()",
        ],
    );
}

#[test]
fn a_builder_in_place_of_a_layer_is_told_that_build_is_missing() {
    assert_says(
        "tower_layer::Layer::layer(&settings, ());",
        &[
            "`RateLimitLayerBuilder` is not a layer",
            "`.build()` is missing here",
            "call `.build()?`",
        ],
    );
}

#[test]
fn a_rejection_that_is_no_response_is_told_what_one_is_and_of_the_method_for_axum() {
    assert_says(
        "settings.respond_with(|_| \"Slow down.\");",
        &[
            "`&str` is not a response that `respond_with` can send",
            "the closure must return `http::Response<bytes::Bytes>`",
            "use `respond_with_axum`",
        ],
    );
}

/// Otherwise, the tests above would find any text that is in every message.
#[test]
fn the_right_way_has_no_message() {
    let right = "let layer = settings.build().unwrap(); let _ = tower_layer::Layer::layer(&layer, ());";
    let all: Vec<String> = files_of("tower_layer")
        .iter()
        .map(|file| messages(right, file))
        .collect();
    assert!(all.iter().any(String::is_empty), "{all:#?}");
}
