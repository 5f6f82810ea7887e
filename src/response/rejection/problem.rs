//! Problem types of draft-ietf-httpapi-ratelimit-headers-11, as problem details of RFC 9457.

use std::fmt::Write;

use serde_json::Value;

use super::notice::{Notice, ProblemType};

pub(super) fn write_problem(notice: &Notice<'_>, text: &mut String) {
    let detail = match notice.problem {
        ProblemType::Blocked => Some("The client is blocked."),
        ProblemType::Forbidden => Some("The request cannot be attributed to a caller."),
        ProblemType::QuotaExceeded if notice.is_closed => Some("The limit is closed."),
        _ if notice.is_final() => Some("The request cost exceeds the capacity of the quota."),
        _ => None,
    };
    // These texts need no escaping, and writing to a string cannot fail.
    text.push('{');
    if let Some(detail) = detail {
        let _ = write!(text, r#""detail":"{detail}","#);
    }
    let (status, title, uri) = (notice.status.as_str(), notice.problem.title(), notice.problem.uri());
    for piece in [
        r#""status":"#,
        status,
        r#","title":""#,
        title,
        r#"","type":""#,
        uri,
        "\"",
    ] {
        text.push_str(piece);
    }
    if notice.problem.is_about_policies() {
        text.push_str(r#","violated-policies":["#);
        for (index, name) in notice.names().enumerate() {
            text.push_str(if index > 0 { "," } else { "" });
            write_text(name, text);
        }
        text.push(']');
    }
    text.push('}');
}

/// Writes a JSON string.
fn write_text(name: &str, text: &mut String) {
    if name
        .bytes()
        .all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
    {
        text.push('"');
        text.push_str(name);
        text.push('"');
    } else {
        let _ = write!(text, "{}", Value::from(name));
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use serde_json::json;

    use super::*;
    use crate::response::rejection::notice::{Subject, Violation};

    fn written(problem: ProblemType, names: &[&str], wait: Option<std::time::Duration>) -> String {
        let violation = |name| Violation {
            policy: name,
            quota: None,
            subject: Subject::Scope("api"),
            is_final: false,
        };
        let notice = Notice {
            problem,
            status: StatusCode::TOO_MANY_REQUESTS,
            violated: names.iter().copied().map(violation).collect(),
            is_closed: false,
            wait,
        };
        let mut text = String::new();
        write_problem(&notice, &mut text);
        text
    }

    #[test]
    fn any_name_is_written_as_json_has_it() {
        for names in [
            vec![],
            vec!["day"],
            vec!["a\"b\\c", "ä\n\u{1}", "", "~ {}"],
            vec!["\u{7f}", "\u{2028}"],
        ] {
            let text = written(ProblemType::TemporaryReducedCapacity, &names, None);
            let expected = json!({
                "status": 429,
                "title": ProblemType::TemporaryReducedCapacity.title(),
                "type": ProblemType::TemporaryReducedCapacity.uri(),
                "violated-policies": names,
            });
            assert_eq!(text, expected.to_string());
        }
    }

    #[test]
    fn a_detail_comes_first_and_only_problems_about_policies_name_them() {
        let text = written(ProblemType::QuotaExceeded, &["day"], None);
        assert!(text.starts_with(r#"{"detail":"The request cost exceeds"#), "{text}");
        assert!(text.ends_with(r#","violated-policies":["day"]}"#), "{text}");
        let text = written(ProblemType::TooManyRequests, &["day"], None);
        assert_eq!(
            text,
            r#"{"status":429,"title":"Too Many Requests","type":"about:blank"}"#
        );
    }
}
