//! Writes each Rust block of the documentation, as rendered, into a module of this package.

use std::{
    env,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

fn main() -> io::Result<()> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?)
        .join("../..")
        .canonicalize()?;
    let mut files = Vec::new();
    for place in ["README.md", "docs", "src", "crates", "apps"] {
        println!("cargo::rerun-if-changed={}", root.join(place).display());
        find(&root.join(place), &mut files)?;
    }
    files.sort();

    let mut modules = String::new();
    for file in files {
        let is_page = file.extension().is_some_and(|extension| extension == "md");
        let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        for (line, block) in blocks(&fs::read_to_string(&file)?, is_page) {
            writeln!(modules, "{}", module(&name, line, &block)).map_err(io::Error::other)?;
        }
    }
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?;
    fs::write(PathBuf::from(out).join("blocks.rs"), modules)
}

fn find(place: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if place.is_dir() {
        for entry in fs::read_dir(place)? {
            find(&entry?.path(), files)?;
        }
    } else if place
        .extension()
        .is_some_and(|extension| extension == "md" || extension == "rs")
    {
        files.push(place.to_owned());
    }
    Ok(())
}

/// Returns the Rust blocks of a file without their hidden lines, each with its line number.
fn blocks(text: &str, is_page: bool) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, bool, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let line = if is_page {
            line
        } else {
            let Some(comment) = ["///", "//!"]
                .iter()
                .find_map(|mark| line.trim_start().strip_prefix(mark))
            else {
                open = None;
                continue;
            };
            comment.strip_prefix(' ').unwrap_or(comment)
        };
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(info), None) => open = Some((number + 1, is_rust(info, is_page), String::new())),
            (Some(_), Some(_)) => {
                let (start, is_rust, block) = open.take().unwrap_or_default();
                if is_rust {
                    blocks.push((start, block));
                }
            }
            (None, Some((_, _, block))) => {
                let code = line.trim_start();
                // Only rustdoc hides lines: a reader of a page sees them.
                if is_page || (code != "#" && !code.starts_with("# ")) {
                    block.push_str(line);
                    block.push('\n');
                }
            }
            (None, None) => {}
        }
    }
    blocks
}

/// Only rustdoc takes a block without a language for Rust.
fn is_rust(info: &str, is_page: bool) -> bool {
    let mut words = info
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .peekable();
    (words.peek().is_some() || !is_page) && words.all(|word| matches!(word, "rust" | "no_run" | "should_panic"))
}

/// Statements become the body of a function, as they would in a reader's program. Programs and tests remain whole.
fn module(file: &str, line: usize, block: &str) -> String {
    let name: String = file
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' })
        .collect();
    let code = if block.contains("fn main(") || block.contains("#[tokio::test]") {
        block.to_owned()
    } else {
        format!("async fn example() -> Result<(), Box<dyn std::error::Error>> {{\nlet _ = {{\n{block}\n}};\nOk(())\n}}")
    };
    format!(
        "#[allow(warnings, clippy::all, clippy::pedantic, clippy::restriction)]\nmod {name}_line_{line} {{\n{code}\n}}\n"
    )
}
