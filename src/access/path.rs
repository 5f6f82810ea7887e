use http::uri::PathAndQuery;

#[derive(Clone, Debug)]
pub(super) struct PathPrefix(String);

impl PathPrefix {
    pub(super) fn new(path: &str) -> Self {
        Self(path.strip_suffix('/').unwrap_or(path).to_owned())
    }

    pub(super) fn contains(&self, path: &str) -> bool {
        let below = path.strip_prefix(&self.0);
        below.is_some_and(|below| (below.is_empty() || below.starts_with('/')) && is_plain(below))
    }
}

/// Every server interprets a sound path in the same way.
pub(super) fn is_sound(path: &str) -> bool {
    // Parsing removes everything that is not part of the path.
    let parsed = path
        .parse()
        .map(|parsed: PathAndQuery| parsed.path() == path && parsed.query().is_none());
    path.starts_with('/') && parsed.unwrap_or(false) && is_plain(path)
}

/// Servers differ in how they treat empty segments, `.` and `..`, text after a semicolon, and percent-encoded
/// delimiters.
fn is_plain(path: &str) -> bool {
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let name = segment.split(';').next().unwrap_or_default();
        let is_last = segments.peek().is_none();
        if matches!(name, "." | "..") || name.is_empty() && !(is_last && segment.is_empty()) {
            return false;
        }
    }
    let mut encoded = path.split('%').skip(1).filter_map(|rest| rest.get(..2));
    !path.contains('\\') && !encoded.any(|code| ["25", "2e", "2f", "3b", "5c"].contains(&&*code.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::random::{Sequence, for_many};

    #[test]
    fn a_prefix_ends_between_segments() {
        for prefix in ["/health", "/health/"] {
            let prefix = PathPrefix::new(prefix);
            for inside in ["/health", "/health/", "/health/live", "/health/a/b/", "/health/%20"] {
                assert!(prefix.contains(inside), "{inside}");
            }
            for outside in [
                "/",
                "/healthy",
                "/Health",
                "/healt",
                "/x/health",
                "/%68ealth",
                "health",
                "/health;a",
                "*",
            ] {
                assert!(!prefix.contains(outside), "{outside}");
            }
        }
        assert!(PathPrefix::new("/").contains("/anything/at/all"));
    }

    #[test]
    fn what_others_may_take_for_another_path_is_below_no_prefix() {
        let prefix = PathPrefix::new("/health");
        for trick in [
            "/health/../admin",
            "/health/..",
            "/health/./x",
            "/health//admin",
            "/health//",
            "/health/%2e%2e/admin",
            "/health/%2E./admin",
            "/health/..%2fadmin",
            "/health/..;/admin",
            "/health/..;x=1/admin",
            "/health/..%3b/admin",
            "/health/;/admin",
            "/health/;",
            "/health/..\\admin",
            "/health/%5c..",
            "/health/%252e%252e/admin",
        ] {
            assert!(!prefix.contains(trick), "{trick}");
        }
        for plain in [
            "/health/...",
            "/health/.well-known",
            "/health/a;b",
            "/health/%",
            "/health/%2",
            "/health/%é",
        ] {
            assert!(prefix.contains(plain), "{plain}");
        }
    }

    #[test]
    fn only_paths_that_a_request_can_have_are_sound() {
        for sound in ["/", "/health", "/health/", "/a/b;c/%20", "/grpc.health.v1.Health/Check"] {
            assert!(is_sound(sound), "{sound}");
        }
        for unsound in [
            "",
            "health",
            "*",
            "/a?b",
            "/a#b",
            "/a b",
            "/a\n",
            "/a//b",
            "/a/../b",
            "/%2e",
            "http://a/b",
        ] {
            assert!(!is_sound(unsound), "{unsound}");
        }
    }

    /// Decodes repeatedly and treats everything as a delimiter.
    fn as_read_by_the_laxest_server(path: &str) -> Vec<String> {
        let mut decoded = path.to_owned();
        for code in ["%25", "%2e", "%2E", "%2f", "%2F", "%3b", "%5c"].repeat(4) {
            let byte = u8::from_str_radix(&code[1..], 16).unwrap();
            decoded = decoded.replace(code, &char::from(byte).to_string());
        }
        let mut read = Vec::new();
        for segment in decoded.split(['/', '\\']) {
            match segment.split(';').next().unwrap() {
                "" | "." => {}
                ".." => drop(read.pop()),
                name => read.push(name.to_owned()),
            }
        }
        read
    }

    fn path(random: &mut Sequence) -> String {
        let delimiters = ["/", "/", "//", "\\", "%2f", "%2F", "%5c", "%252f", ""];
        let dots = [
            "..", ".", "%2e%2e", ".%2E", "%252e.", "", "health", "admin", "x%20", "%",
        ];
        let parameters = ["", "", "", ";", ";a=b", "%3b"];
        let segments = random.list(0..4, |random| {
            [
                random.any_of(&delimiters),
                random.any_of(&dots),
                random.any_of(&parameters),
            ]
            .concat()
        });
        format!("/health{}", segments.concat())
    }

    #[test]
    fn what_is_below_a_prefix_is_below_it_for_all_who_read_the_path() {
        for_many(8_192, |random| {
            let path = path(random);
            if PathPrefix::new("/health").contains(&path) {
                let read = as_read_by_the_laxest_server(&path);
                assert_eq!(read.first().map(String::as_str), Some("health"), "{path} {read:?}");
            }
        });
    }
}
