//! Properties of all values and of all texts.

use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::{collection::vec, option, prelude::*, sample::select};
use ratelimit_fields::{
    ExtensionValue, Hints, LayerFields, LimitHint, MAX_INTEGER, PolicyHint, RetryAfter, Unit, draft06, draft07,
    draft11, in_between, merge_into,
};

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..10_u64, 0..=MAX_INTEGER, Just(MAX_INTEGER)]
}

fn window() -> impl Strategy<Value = Duration> {
    number().prop_map(|seconds| Duration::from_secs(seconds.max(1)))
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 0..20), "[a-z]{1,8}".prop_map(String::into_bytes)]
}

fn unit() -> impl Strategy<Value = Unit> {
    let read = |text: String| {
        let field = draft11::RateLimitPolicy::parse([format!(r#""a";q=1;qu="{text}""#)]).unwrap();
        field.items()[0].unit().clone()
    };
    prop_oneof![
        Just(Unit::Requests),
        Just(Unit::ContentBytes),
        Just(Unit::ConcurrentRequests),
        "[ !#-\\[\\]-~]{0,9}"
            .prop_filter("in the older dialect this is known", |text| text != "bytes")
            .prop_map(read),
    ]
}

fn extension() -> impl Strategy<Value = (String, ExtensionValue)> {
    let value = prop_oneof![
        any::<bool>().prop_map(ExtensionValue::from),
        any::<u32>().prop_map(ExtensionValue::from),
        number().prop_map(|number| ExtensionValue::integer(number).unwrap()),
        "[ -~]{0,9}".prop_map(|text| ExtensionValue::string(&text).unwrap()),
        "[a-zA-Z*][!#$%&'*+.^_`|~:/a-z0-9-]{0,9}".prop_map(|token| ExtensionValue::token(&token).unwrap()),
        vec(any::<u8>(), 0..9).prop_map(|bytes| ExtensionValue::from(&*bytes)),
    ];
    ("[a-z*][a-z0-9_.*]{0,3}-[a-z0-9_.*-]{1,5}", value)
}

/// Names with frequent collisions, and arbitrary names.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![select(vec!["a", "b", "default"]).prop_map(str::to_owned), "[ -~]{0,12}"]
}

fn token() -> impl Strategy<Value = String> {
    prop_oneof![Just("a".to_owned()), "[a-zA-Z*][!#$%&'*+.^_`|~:/a-zA-Z0-9-]{0,12}"]
}

/// Items with any extensions.
macro_rules! extended {
    ($items:expr) => {
        ($items, vec(extension(), 0..3)).prop_map(|(item, extensions)| {
            let mut extensions = extensions.into_iter();
            extensions
                .try_fold(item, |item, (name, value)| item.with_extension(&name, value))
                .unwrap()
        })
    };
}

macro_rules! policies {
    ($dialect:ident, $name:expr) => {
        extended!(
            ($name, number(), unit(), option::of(window()), option::of(key())).prop_map(
                |(name, quota, unit, window, key)| {
                    let mut item = $dialect::PolicyItem::new(&name, quota).unwrap().with_unit(unit);
                    if let Some(window) = window {
                        item = item.with_window(window).unwrap();
                    }
                    match key {
                        Some(key) => item.with_partition_key(key),
                        None => item,
                    }
                }
            )
        )
    };
}

macro_rules! limits {
    ($items:expr) => {
        extended!(
            ($items, option::of(number()), option::of(key())).prop_map(|(mut item, reset, key)| {
                if let Some(reset) = reset {
                    item = item.with_reset(Duration::from_secs(reset));
                }
                match key {
                    Some(key) => item.with_partition_key(key),
                    None => item,
                }
            })
        )
    };
}

fn draft11_policy() -> impl Strategy<Value = draft11::PolicyItem> {
    policies!(draft11, name())
}

fn draft11_limit() -> impl Strategy<Value = draft11::LimitItem> {
    limits!((name(), number()).prop_map(|(name, remaining)| draft11::LimitItem::new(&name, remaining).unwrap()))
}

fn in_between_policy() -> impl Strategy<Value = in_between::PolicyItem> {
    policies!(in_between, token())
}

fn in_between_limit() -> impl Strategy<Value = in_between::LimitItem> {
    limits!((token(), option::of(number())).prop_map(|(name, remaining)| {
        let item = in_between::LimitItem::new(&name).unwrap();
        match remaining {
            Some(remaining) => item.with_remaining(remaining).unwrap(),
            None => item,
        }
    }))
}

fn draft06_policy() -> impl Strategy<Value = draft06::PolicyItem> {
    extended!((number(), window()).prop_map(|(quota, window)| draft06::PolicyItem::new(quota, window).unwrap()))
}

prop_compose! {
    fn draft07_limit()(limit in number(), remaining in option::of(number()), reset in number()) -> draft07::RateLimit {
        let field = draft07::RateLimit::new(limit, Duration::from_secs(reset)).unwrap();
        match remaining {
            Some(remaining) => field.with_remaining(remaining).unwrap(),
            None => field,
        }
    }
}

/// Bytes, and texts that look like fields.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let pieces =
        r#""a"|"b"|a|b|10|;|,| |;r=|;t=|;q=|;w=|;l=|;qu=|;pk=|1|0|-1|1.5|999999999999999|"tokens"|:YQ==:|:YR:|@1"#;
    let more = r#"%"a"|?0|(|)|\|limit=7, remaining=|3, reset=9|"|=|*|ü|Sun Nov  6 08:49:37 1994"#;
    let dates = "Sun, 06 Nov 1994 08:49:37 GMT|Sunday, 06-Nov-94 08:49:37 GMT";
    let pieces: Vec<_> = [pieces, more, dates]
        .into_iter()
        .flat_map(|pieces| pieces.split('|'))
        .collect();
    prop_oneof![
        vec(any::<u8>(), 0..40),
        vec(select(pieces), 0..16).prop_map(|pieces| pieces.concat().into_bytes()),
    ]
}

fn section() -> impl Strategy<Value = HeaderMap> {
    let names = "age ratelimit ratelimit-policy ratelimit-limit ratelimit-remaining ratelimit-reset retry-after";
    let names: Vec<_> = names.split(' ').collect();
    let field = (select(names), line()).prop_filter_map("bytes that no field can have", |(name, line)| {
        Some((HeaderName::from_static(name), HeaderValue::from_bytes(&line).ok()?))
    });
    vec(field, 0..6).prop_map(HeaderMap::from_iter)
}

/// The fields of an inner service, in well-formed lists of draft-11, with units that limits and policies share by name,
/// and in the numbers of draft-06.
fn inner() -> impl Strategy<Value = HeaderMap> {
    let limits = option::of(vec(draft11_limit(), 1..4));
    let policies = option::of(vec(draft11_policy(), 1..4));
    let numbers = option::of([number(), number(), number()]);
    let retry_after = option::of(0..100_u64);
    (limits, policies, numbers, retry_after).prop_map(|(limits, policies, numbers, retry_after)| {
        let mut headers = HeaderMap::new();
        let names = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
        for (name, number) in names.into_iter().zip(numbers.into_iter().flatten()) {
            headers.insert(name, HeaderValue::from(number));
        }
        // A line for each item.
        for item in limits.into_iter().flatten() {
            let field = draft11::RateLimit::new([item]).unwrap();
            headers.append(draft11::RateLimit::NAME, field.to_header_value());
        }
        for item in policies.into_iter().flatten() {
            let field = draft11::RateLimitPolicy::new([item]).unwrap();
            headers.append(draft11::RateLimitPolicy::NAME, field.to_header_value());
        }
        if let Some(seconds) = retry_after {
            headers.insert(RetryAfter::NAME, HeaderValue::from(seconds));
        }
        headers
    })
}

fn own() -> impl Strategy<Value = LayerFields> {
    let limits = vec(draft11_limit(), 1..4).prop_map(|items| draft11::RateLimit::new(items).unwrap());
    let policies = vec(draft11_policy(), 1..4).prop_map(|items| draft11::RateLimitPolicy::new(items).unwrap());
    (option::of(limits), option::of(policies), option::of(0..100_u64)).prop_map(|(limits, policies, seconds)| {
        let own = limits.iter().fold(LayerFields::new(), LayerFields::with_rate_limit);
        let own = policies.iter().fold(own, LayerFields::with_rate_limit_policy);
        let wait = seconds.map(|seconds| RetryAfter::after(Duration::from_secs(seconds)));
        wait.into_iter().fold(own, LayerFields::with_retry_after)
    })
}

fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a HeaderValue> {
    headers.get_all(name).iter().collect()
}

fn is_no_more_permissive_limit(after: &LimitHint, before: &LimitHint) -> bool {
    // A limit without a name may have been converted into an equivalent limit with a name.
    (before.name().is_none() || after.name() == before.name())
        && (before.name().is_none() || after.partition_key() == before.partition_key())
        && after.remaining() <= before.remaining()
        && after.reset().is_some() == before.reset().is_some()
        && after.reset() >= before.reset()
}

fn is_no_more_permissive_policy(after: &PolicyHint, before: &PolicyHint) -> bool {
    after.name() == before.name()
        && after.partition_key() == before.partition_key()
        && after.unit() == before.unit()
        && after.quota() <= before.quota()
        && (before.unit().is_known() || after == before)
        && after.window().is_some() == before.window().is_some()
        && after.window() >= before.window()
}

/// Writes a field and reads it again.
macro_rules! prop_assert_read_as_written {
    ($type:ty, $field:expr) => {
        let field = $field;
        prop_assert_eq!(<$type>::parse([field.to_header_value()]), Ok(field))
    };
}

/// Writes a field and reads it again if the lines are one.
macro_rules! prop_assert_written_if_read {
    ($lines:expr, $($type:ty),*) => {
        $(if let Ok(field) = <$type>::parse($lines) {
            prop_assert_read_as_written!($type, field);
        })*
    };
}

proptest! {
    /// A17, A24, B14: fields serialized in draft-11 are parsed to equal values.
    #[test]
    fn fields_of_draft_11_are_read_as_they_were_written(
        policies in vec(draft11_policy(), 1..5), limits in vec(draft11_limit(), 1..5),
    ) {
        prop_assert_read_as_written!(draft11::RateLimitPolicy, draft11::RateLimitPolicy::new(policies).unwrap());
        prop_assert_read_as_written!(draft11::RateLimit, draft11::RateLimit::new(limits).unwrap());
    }

    /// K1, K5, K6
    #[test]
    fn fields_of_the_in_between_dialect_are_read_as_they_were_written(
        policies in vec(in_between_policy(), 1..5), limits in vec(in_between_limit(), 1..5),
    ) {
        prop_assert_read_as_written!(in_between::RateLimitPolicy, in_between::RateLimitPolicy::new(policies).unwrap());
        prop_assert_read_as_written!(in_between::RateLimit, in_between::RateLimit::new(limits).unwrap());
    }

    /// J5, J26
    #[test]
    fn fields_of_draft_06_are_read_as_they_were_written(
        policies in vec(draft06_policy(), 1..5), limit in number(), remaining in number(), reset in number(),
    ) {
        // Equal quotas are rejected.
        if let Ok(field) = draft06::RateLimitPolicy::new(policies) {
            prop_assert_read_as_written!(draft06::RateLimitPolicy, field);
        }
        prop_assert_read_as_written!(draft06::RateLimitLimit, draft06::RateLimitLimit::new(limit).unwrap());
        prop_assert_read_as_written!(draft06::RateLimitRemaining, draft06::RateLimitRemaining::new(remaining).unwrap());
        prop_assert_read_as_written!(draft06::RateLimitReset, draft06::RateLimitReset::new(reset).unwrap());
    }

    /// N1 to N4
    #[test]
    fn fields_of_draft_07_are_read_as_they_were_written(field in draft07_limit()) {
        prop_assert_read_as_written!(draft07::RateLimit, field);
    }

    /// D18
    #[test]
    fn retry_after_is_read_as_it_was_written(wait in any::<Duration>(), moment in 0..253_402_300_799_000_u64) {
        let field = RetryAfter::after(wait);
        prop_assert_read_as_written!(RetryAfter, field);
        prop_assert!(field.wait(UNIX_EPOCH) >= wait || field.wait(UNIX_EPOCH) == Duration::from_secs(u64::MAX));

        let moment = UNIX_EPOCH + Duration::from_millis(moment);
        let field = RetryAfter::at(moment).unwrap();
        prop_assert_read_as_written!(RetryAfter, field);
        let late = field.wait(moment);
        prop_assert!(late < Duration::from_secs(1));
    }

    /// F1, F2, F12: no text makes a function panic, and what is read can be written.
    #[test]
    fn any_text_is_read_or_rejected(lines in vec(line(), 0..4)) {
        prop_assert_written_if_read!(
            &lines, draft11::RateLimit, draft11::RateLimitPolicy, in_between::RateLimit, in_between::RateLimitPolicy,
            draft07::RateLimit, draft06::RateLimitPolicy, draft06::RateLimitLimit
        );
        if let Ok(field) = RetryAfter::parse(&lines) {
            let waits = lines.iter().map(|line| {
                let field = RetryAfter::parse([line]).unwrap();
                assert_eq!(RetryAfter::parse([field.to_header_value()]), Ok(field));
                field.wait(UNIX_EPOCH)
            });
            prop_assert_eq!(Some(field.wait(UNIX_EPOCH)), waits.max());
        }
    }

    /// F1, G2, G9: with arbitrary fields from a server.
    #[test]
    fn any_header_section_is_read_and_merged(mut headers in section(), own in own()) {
        let before = headers.clone();
        let hints = Hints::read(&before);
        prop_assert!(hints.limits().is_empty() || hints.dialect().is_some());
        merge_into(&mut headers, &own, UNIX_EPOCH);

        for name in [draft11::RateLimit::NAME, draft11::RateLimitPolicy::NAME, RetryAfter::NAME] {
            let is_malformed = match name.as_str() {
                "ratelimit" => draft11::RateLimit::read(&before).is_err(),
                "retry-after" => RetryAfter::read(&before).is_err(),
                _ => draft11::RateLimitPolicy::read(&before).is_err(),
            };
            // A dictionary is written again, with the policies beside it.
            if is_malformed && draft07::RateLimit::read(&before).ok().flatten().is_none() {
                prop_assert_eq!(values(&headers, &name), values(&before, &name));
            } else if before.contains_key(&name) {
                prop_assert!(headers.contains_key(&name));
            }
        }
        for name in ["age", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"] {
            let name = HeaderName::from_static(name);
            prop_assert_eq!(values(&headers, &name), values(&before, &name));
        }
    }

    /// G1, G2, G4, G5, G8, and X37: of both dialects.
    #[test]
    fn merging_never_relaxes_and_never_removes(mut headers in inner(), own in own()) {
        let before = Hints::read(&headers);
        merge_into(&mut headers, &own, UNIX_EPOCH);
        let after = Hints::read(&headers);
        prop_assert!(after.ignored().is_empty());

        let is_list = |hints: &Hints| hints.limits().iter().filter(|limit| limit.name().is_some()).count();
        prop_assert!(is_list(&after) >= is_list(&before));
        for (index, before) in before.limits().iter().enumerate() {
            let mut rest = match before.name() {
                Some(_) => after.limits()[index..=index].iter(),
                None => after.limits().iter(),
            };
            let is_kept = rest.any(|after| is_no_more_permissive_limit(after, before));
            prop_assert!(is_kept, "{before:?} became one of {after:?}");
        }
        prop_assert!(after.policies().len() >= before.policies().len());
        for (after, before) in after.policies().iter().zip(before.policies()) {
            prop_assert!(is_no_more_permissive_policy(after, before), "{before:?} became {after:?}");
        }
        let wait = |hints: &Hints| hints.retry_after().map(|field| field.wait(UNIX_EPOCH));
        prop_assert!(wait(&after) >= wait(&before));
    }

    /// G1, G2, X39
    #[test]
    fn merging_into_a_dictionary_never_relaxes_and_never_removes(
        limit in draft07_limit(), policies in option::of(vec(draft06_policy(), 1..4)), own in own(),
    ) {
        let mut headers = HeaderMap::from_iter([(draft07::RateLimit::NAME, limit.to_header_value())]);
        // Equal quotas are rejected.
        if let Some(Ok(field)) = policies.map(draft06::RateLimitPolicy::new) {
            headers.insert(draft06::RateLimitPolicy::NAME, field.to_header_value());
        }
        let before = Hints::read(&headers);
        merge_into(&mut headers, &own, UNIX_EPOCH);
        let after = Hints::read(&headers);
        prop_assert!(after.ignored().is_empty());
        for before in before.limits() {
            let is_kept = after.limits().iter().any(|after| is_no_more_permissive_limit(after, before));
            prop_assert!(is_kept, "{before:?} became one of {after:?}");
        }
        for (after, before) in after.policies().iter().zip(before.policies()) {
            prop_assert_eq!((after.quota(), after.window(), after.unit()), (before.quota(), before.window(), before.unit()));
        }
        let quotas = after.limits().iter().filter_map(LimitHint::quota);
        let quotas = quotas.chain(after.policies().iter().map(PolicyHint::quota));
        prop_assert!(quotas.into_iter().any(|quota| quota == limit.limit()), "{after:?}");
    }

    /// G3, G4: what the intermediary enforces is shown, too.
    #[test]
    fn merging_shows_every_own_limit(mut headers in inner(), own in own()) {
        let mut alone = HeaderMap::new();
        merge_into(&mut alone, &own, UNIX_EPOCH);
        merge_into(&mut headers, &own, UNIX_EPOCH);
        let (alone, after) = (Hints::read(&alone), Hints::read(&headers));
        for own in alone.limits() {
            let is_shown = after.limits().iter().any(|limit| {
                limit.name() == own.name()
                    && limit.partition_key() == own.partition_key()
                    && limit.remaining() <= own.remaining()
            });
            prop_assert!(is_shown, "{own:?}");
        }
        for own in alone.policies() {
            let is_shown = after.policies().iter().any(|policy| {
                policy.name() == own.name() && policy.unit() == own.unit() && policy.quota() <= own.quota()
            });
            prop_assert!(is_shown, "{own:?}");
        }
        prop_assert!(after.retry_after().is_some() || alone.retry_after().is_none());
    }
}
