//! Invalid rules and their errors, as tables for `test_kit::rows`.

/// Invalid fields of a policy: the field, its value, which is omitted if it is empty, and the error's text about field,
/// value and bound.
pub(crate) const IN_FIELDS: &str = r#"
    quota | | missing field `quota`
    quota | -1 | quota: invalid value: integer `-1`, expected a whole number in 0..=999999999999999
    quota | 1.5 | quota: invalid type: floating point `1.5`, expected a whole number in 0..=
    quota | "10" | quota: invalid type: string "10", expected a whole number in 0..=
    quota | null | quota: invalid type: null, expected a whole number in 0..=
    quota | [1] | quota: invalid type: sequence, expected a whole number in 0..=
    quota | 1000000000000000 | policy "a": quota 1000000000000000 is outside 0..=999999999999999
    quota | 18446744073709551616 | expected a whole number in 0..=999999999999999
    window_seconds | | policy "a": `window_seconds` or `calendar` is required
    window_seconds | 0 | policy "a": window 0ns is not a whole number of seconds in 1..=1000000000
    window_seconds | -5 | window_seconds: invalid value: integer `-5`, expected a whole number in 1..=1000000000
    window_seconds | 0.5 | window_seconds: invalid type: floating point `0.5`, expected a whole number in
    window_seconds | 1000000001 | window 1000000001s is not a whole number of seconds in 1..=1000000000
    window_seconds | 18446744073709551615 | in 1..=1000000000
    name | "" | policy "": the name is empty
    name | "ü" | the name contains 'ü'; only printable ASCII is allowed
    name | 5 | name: invalid type: integer `5`, expected a string
    burst_capacity | 0 | burst capacity 0 is outside 1..=999999999999999
    burst_capacity | -1 | burst_capacity: invalid value: integer `-1`, expected a whole number in 1..=
    algorithm | "magic" | algorithm: unknown variant `magic`, expected one of `fixed_window`
    algorithm | 7 | algorithm: expected value
    algorithm | {"leaky_bucket_queue": {"max_waiting": -1}} |
        algorithm: max_waiting: invalid value: integer `-1`, expected a whole number in 1..=
    algorithm | {"leaky_bucket_queue": {"max_waiting": 0}} | max_waiting 0 is outside 1..=
    unit | "bananas" | policy "a": unit "bananas" has no cost; `unit_cost` is set for []
    unit | "concurrent_requests" | policy "a": a concurrency limit has no `window_seconds`
    prefetch | 0 | policy "a": prefetch 0 is outside 1..=10
    prefetch | 11 | policy "a": prefetch 11 is outside 1..=10
    initial_units | 11 | policy "a": initial units 11 is outside 0..=10
    overage_percent | 5 | policy "a": overage 5%: not supported for buckets
    caller_quotas | [5, 1] | policy "a": caller quotas 5..=1: lower bound exceeds upper bound
    caller_quotas | [5] | caller_quotas: invalid length 1, expected an array of length 2
    lockout_seconds | 0 | policy "a": lockout 0ns is not a whole number of seconds in 1..=1000000000
    lockout_seconds | 1.5 | lockout_seconds: invalid type: floating point `1.5`, expected a whole number in 1..=
    prefetch | -3 | prefetch: invalid value: integer `-3`, expected a whole number in 1..=
    key | "planet" | policy "a": unknown key "planet"
    key | 5 | key: invalid type: integer `5`, expected a string
    hidden | "yes" | hidden: invalid type: string "yes", expected a boolean
    shadow | 1 | shadow: invalid type: integer `1`, expected a boolean
    partition_key | "no" | partition_key: invalid type: string "no", expected a boolean
    extensions | [] | extensions: invalid type: sequence, expected a map
    extensions | {"acme-x": -1} | extensions: invalid value: integer `-1`, expected a boolean, a text or a
    extensions | {"acme-x": 1.5} | a whole number in 0..=999999999999999
    extensions | {"acme-x": 1000000000000000} |
        policy "a": extension "acme-x": extension parameter: the value is 1000000000000000, outside 0..=999999999999999
    extensions | {"acme-x": "ü"} | policy "a": extension "acme-x":
    quotas | 1 | unknown field `quotas`, expected one of `name`, `quota`, `window_seconds`
"#;

/// Mistakes in a set: the text, and the error's.
pub(crate) const IN_SETS: &str = r#"
    | EOF while parsing a value
    {} | tiers: at least one is required
    null | invalid type: null, expected rules: a map with `policies` or `tiers`
    {"policies": {}} | invalid type: map, expected a sequence
    {"policies": [1]} | invalid type: integer `1`, expected a policy: a map with `name` and `quota`
    {"polices": []} | unknown field `polices`, expected `policies` or `tiers`
    {"policies": [], "policies": []} | duplicate field `policies`
    {"policies": [{"name": "a", "quota": 1, "quota": 2}]} | duplicate field `quota`
    {"tiers": [{"name": "free"}]} | tier "free": either `policies` or `unlimited = true` is required
    {"tiers": [{"name": "free", "policies": []}]} | tier "free": number of policies 0 is outside 1..=16
    {"tiers": [{"name": "", "unlimited": true}]} | tier "": the name is empty
    {"tiers": [{"unlimited": true}]} | missing field `name`
    {"tiers": [{"name": "free", "unlimited": "x"}]} | unlimited: invalid type: string "x", expected a boolean
    {"tiers": [{"name": "free", "unlimited": true}, {"name": "free", "unlimited": true}]} |
        tier "free": duplicate name; names must be unique
    {"policies": [{"name": "a", "quota": 1, "window_seconds": 1}, {"name": "a", "quota": 2, "window_seconds": 1}]} |
        policy "a": duplicate name; names must be unique
    {"policies": [{"name": "a", "quota": 1, "window_seconds": 1}], "tiers": [{"name": "free", "unlimited": true}]} |
        policies: `policy` and `tiers` cannot be combined
    {"tiers": [{"name": "free", "policies": [], "unlimited": true}]} |
        tier "free": either `policies` or `unlimited = true` is required
    {"tiers": [{"name": "free", "policies": [{"name": "a", "quota": 1, "window_seconds": 0}]}]} |
        tier "free": policy "a": window 0ns is not a whole number of seconds in 1..=1000000000
"#;
