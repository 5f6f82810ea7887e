//! Generates a Rust program from the configuration.

use std::time::Duration;

use tower_quota::{Algorithm, QuotaPolicy};

use super::setup::{Outage, Setup, own_burst};

/// The `max_width` of rustfmt.
const LINE_WIDTH: usize = 100;
const NEVER_FAILS: &str = "// A store in memory does not fail. A `RedisStore` in its place can.\n";

/// Returns a complete program with these limits, formatted like rustfmt. `with_redis` selects a Redis store.
///
/// A test compiles 11 programs, which cover every branch of this module.
pub(crate) fn program(setup: &Setup, with_redis: bool) -> String {
    format!(
        r#"// Cargo.toml:
//
// [dependencies]
// axum = "0.8"
// tokio = {{ version = "1", features = ["full"] }}
// tower-quota = {{ version = "0.1", features = ["axum"] }}

use std::{{{standard}}};

use axum::{{Router, routing::get}};
use tokio::net::TcpListener;
use tower_quota::{{
    {crate_names}
    key::{{self, KeyExtractor}},
}};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {{
{limits}
        .scope("api")
        // Any client can send any header. If you authenticate users, take `key::extension`.
        .key(key::header("x-user-id").or_else(key::client_ip()))
{settings}        .build()?;

    let app = Router::new()
        .route("/", get(|| async {{ "Hello!\n" }}))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{{}}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}}
"#,
        standard = standard_names(setup),
        crate_names = filled(&crate_names(setup, with_redis)),
        limits = limits(setup, with_redis),
        settings = settings(setup, with_redis),
    )
}

/// Returns the start of the builder, preceded by a limiter if that has settings.
fn limits(setup: &Setup, with_redis: bool) -> String {
    let store = match with_redis {
        true => r#"RedisStore::new("redis://127.0.0.1/")?"#,
        false => "MemoryStore::new()",
    };
    if setup.outage != Outage::Fallback {
        return format!("    let limits = RateLimitLayer::builder({store})");
    }
    let mut limiter = format!("Limiter::builder({store}).fallback(MemoryStore::new());");
    if "    let limiter = ".len() + limiter.len() > LINE_WIDTH {
        limiter.insert_str(0, "\n        ");
    } else {
        limiter.insert(0, ' ');
    }
    let comment = if with_redis {
        String::new()
    } else {
        format!("    {NEVER_FAILS}")
    };
    format!("{comment}    let limiter ={limiter}\n    let limits = RateLimitLayerBuilder::from(limiter)")
}

/// Fills lines with names. rustfmt counts the space after the last one.
fn filled(names: &[&str]) -> String {
    const INDENT: usize = 4;

    let mut text = String::new();
    let mut width = INDENT;
    for name in names {
        let length = name.len() + ", ".len();
        if width + length > LINE_WIDTH {
            text += "\n    ";
            width = INDENT;
        } else if !text.is_empty() {
            text.push(' ');
        }
        width += length;
        text += name;
        text.push(',');
    }
    text
}

fn standard_names(setup: &Setup) -> &'static str {
    if setup.policies.iter().any(|policy| short_constructor(policy).is_none()) {
        "error::Error, net::SocketAddr, time::Duration"
    } else {
        "error::Error, net::SocketAddr"
    }
}

/// In the order of rustfmt.
fn crate_names(setup: &Setup, with_redis: bool) -> Vec<&'static str> {
    let code = setup.dialect.code;
    let has_algorithms = setup
        .policies
        .iter()
        .any(|policy| policy.algorithm() != Algorithm::default());
    let has_fallback = setup.outage == Outage::Fallback;
    let names = [
        ("Algorithm", has_algorithms),
        ("FailureMode", setup.outage == Outage::Closed),
        ("LegacyReset", code.contains("LegacyReset")),
        ("Limiter", has_fallback),
        ("MemoryStore", !with_redis || has_fallback),
        ("QuotaPolicy", true),
        ("RateLimitLayer", !has_fallback),
        ("RateLimitLayerBuilder", has_fallback),
        ("RedisStore", with_redis),
        ("ResponseFields", !is_default_dialect(setup)),
    ];
    names
        .iter()
        .filter(|(_, is_used)| *is_used)
        .map(|(name, _)| *name)
        .collect()
}

fn is_default_dialect(setup: &Setup) -> bool {
    setup.dialect.name == "draft-11"
}

/// Returns the builder calls between the key and `build`, each on separate lines.
fn settings(setup: &Setup, with_redis: bool) -> String {
    let mut lines: String = setup.policies.iter().map(policy).collect();
    if setup.cost != 1 {
        lines += &format!("        .cost({})\n", grouped(setup.cost));
    }
    if setup.outage == Outage::Closed {
        if !with_redis {
            lines += &format!("        {NEVER_FAILS}");
        }
        lines += "        .failure_mode(FailureMode::Closed)\n";
    }
    if !is_default_dialect(setup) {
        lines += &format!("        .response_fields({})\n", setup.dialect.code);
    }
    lines
}

fn policy(policy: &QuotaPolicy) -> String {
    let mut calls = vec![constructor(policy)];
    if policy.algorithm() != Algorithm::default() {
        calls.push(format!(".with_algorithm({})", algorithm(policy.algorithm())));
    }
    if let Some(burst) = own_burst(policy) {
        calls.push(format!(".with_burst_capacity({})", grouped(burst)));
    }
    let line = calls.concat();
    // rustfmt breaks chains of more than 60 characters, which these exceed with a third call.
    let fits = |around: &str| calls.len() < 3 && around.len() + line.len() <= LINE_WIDTH;
    if fits("        .policy()") {
        return format!("        .policy({line})\n");
    }
    let separator = if fits("            ,") {
        ""
    } else {
        "\n                "
    };
    format!("        .policy(\n            {},\n        )\n", calls.join(separator))
}

fn constructor(policy: &QuotaPolicy) -> String {
    let (name, quota) = (policy.name(), grouped(policy.quota()));
    match short_constructor(policy) {
        Some(short) => format!("QuotaPolicy::{short}({name:?}, {quota})"),
        None => {
            let window = grouped(policy.window().unwrap_or_default().as_secs());
            format!("QuotaPolicy::new({name:?}, {quota}, Duration::from_secs({window}))")
        }
    }
}

fn short_constructor(policy: &QuotaPolicy) -> Option<&'static str> {
    match policy.window().as_ref().map(Duration::as_secs)? {
        1 => Some("per_second"),
        60 => Some("per_minute"),
        3_600 => Some("per_hour"),
        86_400 => Some("per_day"),
        _ => None,
    }
}

fn algorithm(algorithm: Algorithm) -> String {
    match algorithm {
        Algorithm::LeakyBucketQueue { max_waiting } => {
            let max_waiting = grouped(max_waiting);
            format!("Algorithm::LeakyBucketQueue {{ max_waiting: {max_waiting} }}")
        }
        other => format!("Algorithm::{other:?}"),
    }
}

/// Formats a number like `86_400`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('_');
        }
        text.push(digit);
    }
    text
}
