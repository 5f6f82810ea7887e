//! Invalid rules and their errors.

/// Invalid fields of a policy: the field, its value, which is omitted if it is empty, and the error's text about field,
/// value and bound.
pub(crate) const IN_FIELDS: &[(&str, &str, &str)] = &[
    ("quota", "", "missing field `quota`"),
    (
        "quota",
        "-1",
        "quota: invalid value: integer `-1`, expected a whole number in 0..=999999999999999",
    ),
    (
        "quota",
        "1.5",
        "quota: invalid type: floating point `1.5`, expected a whole number in 0..=",
    ),
    (
        "quota",
        r#""10""#,
        r#"quota: invalid type: string "10", expected a whole number in 0..="#,
    ),
    (
        "quota",
        "null",
        "quota: invalid type: null, expected a whole number in 0..=",
    ),
    (
        "quota",
        "[1]",
        "quota: invalid type: sequence, expected a whole number in 0..=",
    ),
    (
        "quota",
        "1000000000000000",
        r#"policy "a": quota 1000000000000000 is outside 0..=999999999999999"#,
    ),
    (
        "quota",
        "18446744073709551616",
        "expected a whole number in 0..=999999999999999",
    ),
    (
        "window_seconds",
        "",
        r#"policy "a": `window_seconds` or `calendar` is required"#,
    ),
    (
        "window_seconds",
        "0",
        r#"policy "a": window 0ns is not a whole number of seconds in 1..=1000000000"#,
    ),
    (
        "window_seconds",
        "-5",
        "window_seconds: invalid value: integer `-5`, expected a whole number in 1..=1000000000",
    ),
    (
        "window_seconds",
        "0.5",
        "window_seconds: invalid type: floating point `0.5`, expected a whole number in",
    ),
    (
        "window_seconds",
        "1000000001",
        "window 1000000001s is not a whole number of seconds in 1..=1000000000",
    ),
    ("window_seconds", "18446744073709551615", "in 1..=1000000000"),
    ("name", r#""""#, r#"policy "": the name is empty"#),
    (
        "name",
        r#""ü""#,
        "the name contains 'ü'; only printable ASCII is allowed",
    ),
    ("name", "5", "name: invalid type: integer `5`, expected a string"),
    ("burst_capacity", "0", "burst capacity 0 is outside 1..=999999999999999"),
    (
        "burst_capacity",
        "-1",
        "burst_capacity: invalid value: integer `-1`, expected a whole number in 1..=",
    ),
    (
        "algorithm",
        r#""magic""#,
        "algorithm: unknown variant `magic`, expected one of `fixed_window`",
    ),
    ("algorithm", "7", "algorithm: expected value"),
    (
        "algorithm",
        r#"{"leaky_bucket_queue": {"max_waiting": -1}}"#,
        "algorithm: max_waiting: invalid value: integer `-1`, expected a whole number in 1..=999999999999999",
    ),
    (
        "algorithm",
        r#"{"leaky_bucket_queue": {"max_waiting": 0}}"#,
        "max_waiting 0 is outside 1..=",
    ),
    (
        "unit",
        r#""bananas""#,
        r#"policy "a": unit "bananas" has no cost; `unit_cost` is set for []"#,
    ),
    (
        "unit",
        r#""concurrent_requests""#,
        r#"policy "a": a concurrency limit has no `window_seconds`"#,
    ),
    ("prefetch", "0", r#"policy "a": prefetch 0 is outside 1..=10"#),
    ("prefetch", "11", r#"policy "a": prefetch 11 is outside 1..=10"#),
    (
        "initial_units",
        "11",
        r#"policy "a": initial units 11 is outside 0..=10"#,
    ),
    (
        "overage_percent",
        "5",
        r#"policy "a": overage 5%: not supported for buckets"#,
    ),
    (
        "caller_quotas",
        "[5, 1]",
        r#"policy "a": caller quotas 5..=1: lower bound exceeds upper bound"#,
    ),
    (
        "caller_quotas",
        "[5]",
        "caller_quotas: invalid length 1, expected an array of length 2",
    ),
    (
        "lockout_seconds",
        "0",
        r#"policy "a": lockout 0ns is not a whole number of seconds in 1..=1000000000"#,
    ),
    (
        "lockout_seconds",
        "1.5",
        "lockout_seconds: invalid type: floating point `1.5`, expected a whole number in 1..=1000000000",
    ),
    (
        "prefetch",
        "-3",
        "prefetch: invalid value: integer `-3`, expected a whole number in 1..=",
    ),
    ("key", r#""planet""#, r#"policy "a": unknown key "planet""#),
    ("key", "5", "key: invalid type: integer `5`, expected a string"),
    (
        "hidden",
        r#""yes""#,
        r#"hidden: invalid type: string "yes", expected a boolean"#,
    ),
    ("shadow", "1", "shadow: invalid type: integer `1`, expected a boolean"),
    (
        "partition_key",
        r#""no""#,
        r#"partition_key: invalid type: string "no", expected a boolean"#,
    ),
    ("extensions", "[]", "extensions: invalid type: sequence, expected a map"),
    (
        "extensions",
        r#"{"acme-x": -1}"#,
        "extensions: invalid value: integer `-1`, expected a boolean, a text or a",
    ),
    (
        "extensions",
        r#"{"acme-x": 1.5}"#,
        "a whole number in 0..=999999999999999",
    ),
    (
        "extensions",
        r#"{"acme-x": 1000000000000000}"#,
        r#"policy "a": extension "acme-x": extension parameter: the value is 1000000000000000, outside 0..=999999999999999"#,
    ),
    (
        "extensions",
        r#"{"acme-x": "ü"}"#,
        r#"policy "a": extension "acme-x": "#,
    ),
    (
        "quotas",
        "1",
        "unknown field `quotas`, expected one of `name`, `quota`, `window_seconds`",
    ),
];

/// Mistakes in a set.
pub(crate) const IN_SETS: &[(&str, &str)] = &[
    ("", "EOF while parsing a value"),
    ("{}", "tiers: at least one is required"),
    (
        "null",
        "invalid type: null, expected rules: a map with `policies` or `tiers`",
    ),
    (r#"{"policies": {}}"#, "invalid type: map, expected a sequence"),
    (
        r#"{"policies": [1]}"#,
        "invalid type: integer `1`, expected a policy: a map with `name` and `quota`",
    ),
    (
        r#"{"polices": []}"#,
        "unknown field `polices`, expected `policies` or `tiers`",
    ),
    (r#"{"policies": [], "policies": []}"#, "duplicate field `policies`"),
    (
        r#"{"policies": [{"name": "a", "quota": 1, "quota": 2}]}"#,
        "duplicate field `quota`",
    ),
    (
        r#"{"tiers": [{"name": "free"}]}"#,
        r#"tier "free": either `policies` or `unlimited = true` is required"#,
    ),
    (
        r#"{"tiers": [{"name": "free", "policies": []}]}"#,
        r#"tier "free": number of policies 0 is outside 1..=16"#,
    ),
    (
        r#"{"tiers": [{"name": "", "unlimited": true}]}"#,
        r#"tier "": the name is empty"#,
    ),
    (r#"{"tiers": [{"unlimited": true}]}"#, "missing field `name`"),
    (
        r#"{"tiers": [{"name": "free", "unlimited": "x"}]}"#,
        r#"unlimited: invalid type: string "x", expected a boolean"#,
    ),
    (
        r#"{"tiers": [{"name": "free", "unlimited": true}, {"name": "free", "unlimited": true}]}"#,
        r#"tier "free": duplicate name; names must be unique"#,
    ),
    (
        r#"{"policies": [{"name": "a", "quota": 1, "window_seconds": 1}, {"name": "a", "quota": 2, "window_seconds": 1}]}"#,
        r#"policy "a": duplicate name; names must be unique"#,
    ),
    (
        r#"{"policies": [{"name": "a", "quota": 1, "window_seconds": 1}], "tiers": [{"name": "free", "unlimited": true}]}"#,
        "policies: `policy` and `tiers` cannot be combined",
    ),
    (
        r#"{"tiers": [{"name": "free", "policies": [], "unlimited": true}]}"#,
        r#"tier "free": either `policies` or `unlimited = true` is required"#,
    ),
    (
        r#"{"tiers": [{"name": "free", "policies": [{"name": "a", "quota": 1, "window_seconds": 0}]}]}"#,
        r#"tier "free": policy "a": window 0ns is not a whole number of seconds in 1..=1000000000"#,
    ),
];
