//! All example values of these fields in the documents, without duplicates, followed by a few
//! others. If a value changes when it is parsed and serialized, the result is behind `=>`. Draft-07 has the
//! same policies as draft-06.

use ratelimit_fields::{draft06, draft11, in_between};

/// Parses and serializes each value of a text, and compares the result with the value, or with what is behind `=>`.
macro_rules! assert_read_and_written {
    ($field:ty, $values:expr) => {
        for value in $values.split('|') {
            let (read, written) = value.split_once("=>").unwrap_or((value, value));
            let (read, written) = (read.trim(), written.trim());
            let field = <$field>::parse([read]).unwrap_or_else(|error| panic!("{read}: {error}"));
            assert_eq!(field.to_string(), written);
            assert_eq!(field.to_header_value(), written);
            assert_eq!(<$field>::parse([written]), Ok(field));
        }
    };
}

/// A3, A4, A6, A7, A9, A10, A12, A13, A14, A16, A17, A18, A19, A22, D6, D12, D13, E9
#[test]
fn every_policy_in_the_examples_of_draft_11_is_read_and_written() {
    assert_read_and_written!(
        draft11::RateLimitPolicy,
        r#"
        "burst";q=100;w=60,"daily";q=1000;w=86400 => "burst";q=100;w=60, "daily";q=1000;w=86400 |
        "default";q=100;w=10 |
        "permin";q=50;w=60,"perhr";q=1000;w=3600 => "permin";q=50;w=60, "perhr";q=1000;w=3600 |
        "peruser";q=100;w=60;pk=:cHsdsRa894==: => "peruser";q=100;w=60;pk=:cHsdsRa89w==: |
        "peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:
            => "peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUA==: |
        "fixedwindow";q=100;w=60 | "dynamic";q=100;w=60 | "dynamic";q=15;w=20 | "basic";q=100;w=60 |
        "somepolicy";q=10000;w=1000 | "hour";q=1000;w=3600, "day";q=5000;w=86400 | "sliding";q=100;w=60;burst=1000 |
        "fixed";q=5000;w=3600;burst=0 | "sliding";q=12;w=1 | "par";q=8;qu="concurrent-requests" |
        "x";q=5;qu="tokens" | "d";q=0
        "#
    );
    // X1: kept from the dialect before it, in which names were Tokens.
    assert!(draft11::RateLimitPolicy::parse(["quota;q=100;w=1"]).is_err());
    assert!(draft11::RateLimitPolicy::parse(["quota;q=10"]).is_err());
}

/// B1, B5, B7, B8, B10, B13, B14, B15, D2, D3, D6, D7, D10, D12, D13, D16, E9, F7, F9, F12, F13, F15, F19, G3, G4, K17
#[test]
fn every_limit_in_the_examples_of_draft_11_is_read_and_written() {
    // Here `q` is a comment, and comments come last.
    assert_read_and_written!(
        draft11::RateLimit,
        r#"
        "default";r=50;t=30 | "default";r=999;pk=:dHJpYWwxMjEzMjM=: | "default";r=300000000;t=60;pk=:QXBwLTk5OQ==: |
        "default";r=1;t=7 | "problemPolicy";r=0;t=10 | "daily";r=1;t=36400 | "daily";r=1;t=86400 |
        "default";r=50;t=60 | "default";r=0;t=48 | "default";r=0;t=50 | "default";r=0;t=5 |
        "fixedwindow";r=99;t=50 | "dynamic";r=9;t=50 | "dynamic";r=15;t=40 | "dynamic";r=0;t=20 |
        "basic";r=60;t=58 | "basic";r=20;t=56 | "somepolicy";r=10000;t=10 | "day";r=100;t=36000 |
        "dayLimit";r=100;t=36000 | "sliding";r=50;t=44 | "sliding";q=12;r=1;t=1 => "sliding";r=1;t=1;q=12 |
        "sliding";q=12;r=6;t=1 => "sliding";r=6;t=1;q=12 | "p";r=500 |
        "u";r=1;pk=:YQ==:, "u";r=9;pk=:Yg==: | "default";r=999999999999999;t=1000000
        "#
    );
    // X1: as above.
    assert!(draft11::RateLimit::parse(["quota;t=1"]).is_err());
}

/// K1, K2, K3, K5, K11, X3: what has `l` is written with `q`.
#[test]
fn every_policy_in_the_examples_in_between_is_read_and_written() {
    assert_read_and_written!(
        in_between::RateLimitPolicy,
        r#"
        burst;q=100;w=60,daily;q=1000;w=86400 => burst;q=100;w=60, daily;q=1000;w=86400 |
        default;l=100;w=10 => default;q=100;w=10 | peruser;l=100;w=60;pk=user123 => peruser;q=100;w=60;pk=user123 |
        permin;l=50;w=60,perhr;l=1000;w=3600,perday;l=5000;w=86400
            => permin;q=50;w=60, perhr;q=1000;w=3600, perday;q=5000;w=86400 |
        peruser;l=65535;w=10;pk=user123;qu=bytes => peruser;q=65535;w=10;pk=user123;qu=bytes |
        fixedwindow;l=100;w=60 => fixedwindow;q=100;w=60 | dynamic;l=100;w=60 => dynamic;q=100;w=60 |
        dynamic;l=15;w=20 => dynamic;q=15;w=20 | basic;l=100;w=60 => basic;q=100;w=60 |
        somepolicy;l=10000;w=1000 => somepolicy;q=10000;w=1000 |
        hour;l=1000;w=3600, day;l=5000;w=86400 => hour;q=1000;w=3600, day;q=5000;w=86400 |
        quota;l=100;w=1 => quota;q=100;w=1 | quota;l=10 => quota;q=10 | sliding;l=12;w=1 => sliding;q=12;w=1 |
        sliding;l=100;w=60;burst=1000;comment="sliding window", fixed;l=5000;w=3600;burst=0;comment="fixed window"
            => sliding;q=100;w=60;burst=1000;comment="sliding window", fixed;q=5000;w=3600;burst=0;comment="fixed window"
        "#
    );
}

/// K5, K6, K7, K11, K13
#[test]
fn every_limit_in_the_examples_in_between_is_read_and_written() {
    assert_read_and_written!(
        in_between::RateLimit,
        "
        default;r=50;t=30 | default;r=999;pk=trial-121323 | default;r=300000000;pk=App-999;t=60;qu=bytes |
        default;r=1;t=7 | daily;r=1;t=36400 | default;r=50;t=60 | default;r=0;t=48 | default;r=0;t=50 |
        default;r=0;t=5 | fixedwindow;r=99;t=50 | dynamic;r=9;t=50 | dynamic;r=15;t=40 | dynamic;r=0;t=20 |
        basic;r=60;t=58 | basic;r=20;t=56 | somepolicy;r=10000;t=10 | day;r=100;t=36000 | dayLimit;r=100;t=36000 |
        quota;t=1 | sliding;r=50;t=44 |
        sliding;l=12;r=1;t=1 => sliding;r=1;t=1;l=12 | sliding;l=12;r=6;t=1 => sliding;r=6;t=1;l=12
        "
    );
    assert!(in_between::RateLimit::parse(["problemPolicy;r=0, t=10"]).is_err());
}

/// J1, J5, J7, J8, J9, J10, J12, J14, J15, J17, J18, J20, J23, J26, J28, J31, A18, N5
#[test]
fn every_example_of_draft_06_is_read_and_written() {
    assert_read_and_written!(
        draft06::RateLimitPolicy,
        r#"
        100;w=10 | 10;w=1, 50;w=60, 1000;w=3600, 5000;w=86400 | 10;w=1;burst=1000, 1000;w=3600 | 100;w=60 |
        15;w=20 | 10000;w=1000 | 1000;w=3600, 5000;w=86400 | 12;w=1 | 12;w=1;acme-burst=1000 |
        100;w=60;burst=1000;comment="sliding window", 5000;w=3600;burst=0;comment="fixed window" |
        12;w=1;burst=1000;policy="leaky bucket"
        "#
    );
    // The document's own example of what is not valid.
    assert!(draft06::RateLimitPolicy::parse(["10;w=1, 10;w=60"]).is_err());
    assert_read_and_written!(draft06::RateLimitLimit, "0|10|12|15|100|5000|10000");
    assert_read_and_written!(draft06::RateLimitRemaining, "0|1|6|9|15|20|50|60|99|100|10000");
    assert_read_and_written!(draft06::RateLimitReset, "1|5|7|10|20|40|48|50|56|58|60|36000");
}
