//! Rooms above the core use its public items only, so that each can become a package by a move.
//!
//! The root of this test includes the sources of each room. There, `crate::` has the public items of `tower_quota` and the
//! rooms themselves: a path to a private module, a private macro or a private method does not compile.

use super::documents::{files, read};

/// The rooms that are packages apart from their place. The root of this test includes each of them.
const ROOMS: [&str; 1] = ["fleet"];

#[test]
fn each_room_above_the_core_is_compiled_against_the_public_items_of_the_core() {
    let root = read("tests/repository/main.rs");
    for room in ROOMS {
        let included = format!("#[path = \"../../src/{room}/mod.rs\"]\n");
        let (_, included) = root.split_once(&included).unwrap_or_else(|| panic!("{room}"));
        assert!(included.contains(&format!("mod {room};\n")), "{room}");
    }
    assert!(root.contains("\nuse tower_quota::*;\n"));
}

#[test]
fn a_room_includes_no_file_from_elsewhere() {
    for (path, source) in ROOMS.iter().flat_map(|room| files(&format!("src/{room}"))) {
        for line in source.lines().filter(|line| line.contains("#[path")) {
            assert!(!line.contains("..") && !line.contains('/'), "{path}: {line}");
        }
        let includes = source
            .split("include")
            .skip(1)
            .filter(|rest| rest.starts_with(['!', '_']));
        assert!(
            includes
                .into_iter()
                .all(|rest| !rest.lines().next().unwrap().contains("..")),
            "{path}"
        );
    }
}
