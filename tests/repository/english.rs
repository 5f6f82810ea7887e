//! Comments and documents have one word a thing, and sentences whose subject comes first.

use super::documents::{files, read};

const FOLDERS: [&str; 11] = [
    "apps",
    "benches",
    "browser-tests",
    "crates",
    "docs",
    "examples",
    "fuzz",
    "ops",
    "scripts",
    "src",
    "tests",
];

const FILES: [&str; 6] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.toml",
    "Makefile",
    "README.md",
    "SECURITY.md",
];

/// No comment opens with these. Titles may: they are the questions of a reader.
const OPENINGS: [&str; 6] = ["How", "What", "Whatever", "Whether", "Who", "Whoever"];

/// Words and phrases, each with the ones to write in its place.
const BANNED: [(&str, &str); 23] = [
    ("are away", "are unavailable"),
    ("as good as new", "expired"),
    ("begin anew", "reset"),
    ("begins anew", "resets"),
    ("denied", "rejected"),
    ("denies", "rejects"),
    ("deny", "reject"),
    ("gave up", "cancelled, dropped"),
    ("give up", "cancel, drop"),
    ("given up", "cancelled, dropped"),
    ("gives up", "cancels, drops"),
    ("is away", "is unavailable"),
    ("nobody", "no client, no server, no instance"),
    ("refusal", "rejection"),
    ("refusals", "rejections"),
    ("refuse", "reject"),
    ("refused", "rejected"),
    ("refuses", "rejects"),
    ("somebody", "a client, a server, another instance"),
    ("sound", "valid"),
    ("takes in advance", "prefetches"),
    ("thrown out", "evicted"),
    ("was away", "was unavailable"),
];

/// A term of operating systems.
const TERM: &str = "connection refused";

/// The comment of a line, or its text in a document, without the marks before it.
fn prose<'a>(extension: &str, line: &'a str) -> Option<&'a str> {
    let trimmed = line.trim_start();
    let (mark, is_block) = match extension {
        "md" => return Some(trimmed),
        "rs" => ("//", false),
        "css" | "js" => ("//", true),
        "lua" => ("--", false),
        "" | "sh" | "toml" | "yml" => ("#", false),
        _ => return None,
    };
    if trimmed.starts_with(mark) || (is_block && trimmed.starts_with(['*', '/'])) {
        return Some(
            trimmed
                .trim_start_matches(mark)
                .trim_start_matches(['/', '*', '!', '-', ' ']),
        );
    }
    let (_, behind) = trimmed.rsplit_once(&format!(" {mark} "))?;
    Some(behind)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|char: char| !char.is_alphanumeric());
    words.filter(|word| !word.is_empty())
}

/// The text without code and quotations.
fn unquoted(text: &str) -> String {
    let without = |text: &str, mark: char| text.split(mark).step_by(2).collect::<Vec<_>>().join(" ");
    without(&without(text, '`'), '"')
}

/// A problem for each opening and each banned word of a file, with its place.
fn problems(path: &str, text: &str) -> Vec<String> {
    let name = path.rsplit('/').next().unwrap();
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let (mut problems, mut is_code, mut told) = (Vec::new(), false, Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        is_code ^= extension == "md" && line.trim_start().starts_with("```");
        let Some(prose) = prose(extension, line).filter(|_| !is_code) else {
            // A phrase does not go on behind code.
            told.push((number, String::new()));
            continue;
        };
        let opens = |opening: &&&str| {
            prose
                .strip_prefix(**opening)
                .is_some_and(|rest| rest.starts_with([' ', ',']))
        };
        if let Some(opening) = OPENINGS.iter().find(opens).filter(|_| extension != "md") {
            problems.push(format!(
                "{path}:{number}: it opens with {opening:?}; put the subject first"
            ));
        }
        let prose = unquoted(prose).to_lowercase().replace(TERM, "");
        told.extend(words(&prose).map(|word| (number, word.to_owned())));
    }
    let phrases = BANNED.map(|(banned, better)| (words(banned).collect::<Vec<_>>(), better));
    for (place, (number, first)) in told.iter().enumerate() {
        for (phrase, better) in phrases.iter().filter(|(phrase, _)| phrase[0] == first) {
            let told = told.iter().skip(place).take(phrase.len());
            if told.map(|(_, word)| word).eq(phrase) {
                problems.push(format!("{path}:{number}: {:?}; write {better:?}", phrase.join(" ")));
            }
        }
    }
    problems
}

#[test]
fn comments_and_documents_have_one_word_a_thing_and_the_subject_first() {
    let in_folders = FOLDERS.into_iter().flat_map(files);
    let at_the_root = FILES.into_iter().map(|path| (path.to_owned(), read(path)));
    let all: Vec<_> = in_folders.chain(at_the_root).collect();
    let problems: Vec<_> = all.iter().flat_map(|(path, text)| problems(path, text)).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_problem_is_found_in_each_kind_of_comment_and_told_with_its_line() {
    let found = |path: &str, text: &str| {
        let problems = problems(path, text).into_iter();
        problems
            .map(|problem| problem.split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let behind_code = ["//! Text.\n/// What it is.\nlet a = 1; //", "Nobody knows."].join(" ");
    assert_eq!(found("a.rs", &behind_code), ["a.rs:2:", "a.rs:3:"]);
    assert_eq!(found("a.js", "/**\n * Whether it is.\n */"), ["a.js:2:"]);
    assert_eq!(found("a.lua", "local a = 1 -- somebody"), ["a.lua:1:"]);
    assert_eq!(found("scripts/a", "# How it is.\n"), ["scripts/a:1:"]);
    assert_eq!(found("a.md", "How it is.\n\nThe store is\naway.\n"), ["a.md:3:"]);
    let fine = "//! However, `nobody` and \"deny\": connection refused.\n/// It is\nlet away = 1;\n// away\n";
    assert!(found("a.rs", fine).is_empty());
    assert!(found("a.md", "```text\nnobody\n```\n").is_empty());
}
