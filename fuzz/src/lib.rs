//! The functions of the fuzz targets: each reads an input and asserts what must hold.
//!
//! `tests/repository/fuzz_seeds.rs` does the same with the seeds, without a fuzzer.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
    sync::LazyLock,
    task::{Context, Poll, Waker},
    time::{Duration, Instant, UNIX_EPOCH},
};

use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, WWW_AUTHENTICATE},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::{
    AbnormalUsage, MemoryStore, QuotaPolicy, RateLimitLayer,
    fields::{
        Hints, LayerFields, MAX_ITEMS, MAX_LENGTH, RetryAfter, draft06, draft07, draft11, in_between, merge_into,
    },
    key::{self, ForwardingField, Host, KeyExtractor, PeerAddress},
};
use tower_quota_anonymous::{
    Challenge, CredentialError, CredentialRequest, Directory, IssuerKey, Profile, Token, TokenChallenge,
    token_from_headers, token_to_header_value,
};
use tower_quota_fleet::{FleetErrorKind, RulesDocument};
use tower_ratelimit_client::{self as client, Acquire, Advice, Caps, Exchange, Pacing, Problem, Strategy};

/// The field `RateLimit` in all its dialects, and what an intermediary makes of it.
///
/// A field near the bound may be written a little longer than it was read, with a space after each comma.
pub fn rate_limit(input: &[u8]) {
    if let Ok(field) = draft11::RateLimit::parse(lines(input)) {
        let value = field.to_header_value();
        assert!(value.len() > MAX_LENGTH || draft11::RateLimit::parse([value]) == Ok(field));
    }
    if let Ok(field) = in_between::RateLimit::parse(lines(input)) {
        let value = field.to_header_value();
        assert!(value.len() > MAX_LENGTH || in_between::RateLimit::parse([value]) == Ok(field));
    }
    if let Ok(field) = draft07::RateLimit::parse(lines(input)) {
        assert_eq!(draft07::RateLimit::parse([field.to_header_value()]), Ok(field));
    }
    if let Ok(field) = draft06::RateLimitRemaining::parse(lines(input)) {
        assert_eq!(draft06::RateLimitRemaining::parse([field.to_header_value()]), Ok(field));
    }

    let mut headers = fields(&draft11::RateLimit::NAME, input);
    let before = Hints::read(&headers);
    assert!(before.limits().len() <= MAX_ITEMS);
    merge_into(&mut headers, &own(), UNIX_EPOCH);
    let after = Hints::read(&headers);
    for (before, after) in before.limits().iter().zip(after.limits()) {
        // The dictionary of draft-07 comes to have a name.
        assert!(before.name() == after.name() || (before.name().is_none() && after.name() == Some("upstream")));
        assert_eq!(before.partition_key(), after.partition_key());
        assert!(before.remaining() >= after.remaining());
        assert!(before.reset() <= after.reset());
    }
    assert!(after.limits().len() >= before.limits().len());
}

/// The field `RateLimit-Policy` in all its dialects, and what an intermediary makes of it.
pub fn rate_limit_policy(input: &[u8]) {
    if let Ok(field) = draft11::RateLimitPolicy::parse(lines(input)) {
        let value = field.to_header_value();
        assert!(value.len() > MAX_LENGTH || draft11::RateLimitPolicy::parse([value]) == Ok(field));
    }
    if let Ok(field) = in_between::RateLimitPolicy::parse(lines(input)) {
        let value = field.to_header_value();
        assert!(value.len() > MAX_LENGTH || in_between::RateLimitPolicy::parse([value]) == Ok(field));
    }
    if let Ok(field) = draft06::RateLimitPolicy::parse(lines(input)) {
        let value = field.to_header_value();
        assert!(value.len() > MAX_LENGTH || draft06::RateLimitPolicy::parse([value]) == Ok(field));
    }

    let mut headers = fields(&draft11::RateLimitPolicy::NAME, input);
    let before = Hints::read(&headers);
    assert!(before.policies().len() <= MAX_ITEMS);
    merge_into(&mut headers, &own(), UNIX_EPOCH);
    let after = Hints::read(&headers);
    for (before, after) in before.policies().iter().zip(after.policies()) {
        assert_eq!(before.name(), after.name());
        assert_eq!(before.partition_key(), after.partition_key());
        assert_eq!(before.unit(), after.unit());
        assert!(before.quota() >= after.quota());
        assert!(before.window() <= after.window());
    }
    assert!(after.policies().len() >= before.policies().len());
}

/// The field `Retry-After`, read at several moments, and what an intermediary makes of it.
pub fn retry_after(input: &[u8]) {
    let Ok(field) = RetryAfter::parse(lines(input)) else {
        return;
    };
    if lines(input).count() == 1 {
        assert_eq!(RetryAfter::parse([field.to_header_value()]), Ok(field));
    }
    for now in [0, 784_111_777, 253_402_300_799] {
        let now = UNIX_EPOCH + Duration::from_secs(now);
        let wait = field.wait(now);
        assert!(field.date().is_none_or(|date| date <= now + wait));

        let mut headers = fields(&RetryAfter::NAME, input);
        // Some bytes cannot be in a field.
        if RetryAfter::read(&headers) != Ok(Some(field)) {
            continue;
        }
        merge_into(&mut headers, &own(), now);
        let merged = RetryAfter::read(&headers)
            .expect("the value was good")
            .expect("and is not removed");
        assert!(merged.wait(now) >= wait);
    }
}

/// The field `Forwarded` as a client and a trusted proxy have written it.
pub fn forwarded(input: &[u8]) {
    client_ip(ForwardingField::Forwarded, HeaderName::from_static("forwarded"), input);
}

/// The field `X-Forwarded-For` as a client and a trusted proxy have written it.
pub fn x_forwarded_for(input: &[u8]) {
    client_ip(
        ForwardingField::XForwardedFor,
        HeaderName::from_static("x-forwarded-for"),
        input,
    );
}

/// The field `X-Real-IP` as a client and a trusted proxy have written it.
pub fn one_address(input: &[u8]) {
    let name = HeaderName::from_static("x-real-ip");
    client_ip(
        ForwardingField::SingleAddress(name.as_str().to_owned().into()),
        name,
        input,
    );
}

fn client_ip(field: ForwardingField, name: HeaderName, input: &[u8]) {
    let is_list = !matches!(field, ForwardingField::SingleAddress(_));
    let reported = match field {
        ForwardingField::Forwarded => "for=203.0.113.9",
        _ => "203.0.113.9",
    };
    let by_address = key::client_ip().trusted_proxies(field, ["10.0.0.0/8", "fd00::/8", "::1"]);
    let mut request = Request::new(());
    *request.headers_mut() = fields(&name, input);

    let proxy = IpAddr::from([10, 0, 0, 1]);
    request
        .extensions_mut()
        .insert(PeerAddress(SocketAddr::new(proxy, 4711)));
    let (mut request, ()) = request.into_parts();
    let client = by_address.resolve(&request);
    assert!(client.is_none_or(|client| client == client.to_canonical()));
    assert_eq!(by_address.extract(&request).is_some(), client.is_some());
    // The proxy's own entry identifies the client, regardless of earlier entries. A single-address field must have no
    // other line.
    let is_alone = !request.headers.contains_key(&name);
    request.headers.append(&name, HeaderValue::from_static(reported));
    let client = (is_list || is_alone).then_some(IpAddr::from([203, 0, 113, 9]));
    assert_eq!(by_address.resolve(&request), client);

    let stranger = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
    request.extensions.insert(PeerAddress(SocketAddr::new(stranger, 4711)));
    assert_eq!(by_address.resolve(&request), Some(stranger));
}

/// The field `grpc-timeout` of a call that is rejected with a wait of one minute.
pub fn grpc_timeout(input: &[u8]) {
    static LAYER: LazyLock<RateLimitLayer> = LazyLock::new(|| {
        let minute = Duration::from_secs(60);
        RateLimitLayer::builder(MemoryStore::new())
            .scope("calls")
            .key(key::header("x-user-id"))
            .policy(QuotaPolicy::per_minute("minute", 1))
            .abnormal_usage(move |_| Some(AbnormalUsage::new().with_retry_after(minute)))
            .build()
            .expect("the settings are valid")
    });
    let Ok(timeout) = HeaderValue::from_bytes(input) else {
        return;
    };
    let mut request = Request::new(String::new());
    let content_type = HeaderValue::from_static("application/grpc");
    request.headers_mut().insert(CONTENT_TYPE, content_type);
    request.headers_mut().insert("grpc-timeout", timeout);
    let service = LAYER.layer(service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let response = pin!(service.oneshot(request)).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Ok(response)) = response else {
        panic!("a memory store completes immediately");
    };
    let is_over = nanos_of_timeout(input).is_some_and(|nanos| nanos <= 60_000_000_000);
    let pushback = if is_over { "-1" } else { "60000" };
    assert_eq!(response.headers()["grpc-retry-pushback-ms"], pushback);
}

fn nanos_of_timeout(field: &[u8]) -> Option<u128> {
    let field = std::str::from_utf8(field).ok()?;
    let units = [
        ("H", 3_600_000_000_000),
        ("M", 60_000_000_000),
        ("S", 1_000_000_000),
        ("m", 1_000_000),
        ("u", 1_000),
        ("n", 1),
    ];
    let (number, nanos) = units
        .iter()
        .find_map(|(unit, nanos)| Some((field.strip_suffix(unit)?, nanos)))?;
    let is_number = number.len() <= 8 && !number.starts_with('+');
    Some(number.parse::<u128>().ok().filter(|_| is_number)? * nanos)
}

/// The host of a request, in the field `Host` and in the URI.
pub fn host(input: &[u8]) {
    let extract = |uri: Uri, hosts: HeaderMap| {
        let (mut request, ()) = Request::new(()).into_parts();
        (request.uri, request.headers) = (uri, hosts);
        key::Host.extract(&request)
    };
    let (path, hosts) = (Uri::from_static("/"), fields(&HOST, input));
    let host = extract(path.clone(), hosts.clone());
    assert!(host.is_none() || hosts.len() == 1);
    let Ok(text) = str::from_utf8(input) else { return };
    if HeaderValue::from_str(text).is_err() {
        return;
    }
    for same in [text.to_owned(), text.to_ascii_lowercase(), text.to_ascii_uppercase()] {
        assert_eq!(Host::key_of(&same), host);
    }
    // The rest of the text must not become a path.
    let Ok(uri) = format!("https://{text}/").parse::<Uri>() else {
        return;
    };
    if uri.authority().is_none_or(|authority| authority != text) {
        return;
    }
    assert_eq!(extract(uri.clone(), HeaderMap::new()), host);
    assert_eq!(extract(uri.clone(), hosts.clone()), host);
    let other = HeaderMap::from_iter([(HOST, HeaderValue::from_static("other.example"))]);
    if host != extract(path, other.clone()) {
        assert_eq!(extract(uri.clone(), other), None);
    }
    let mut twice = hosts;
    twice.append(HOST, HeaderValue::from_static("other.example"));
    assert_eq!(extract(uri, twice), None);
}

/// Reads the head of a response, one field per line, as a client does, in each profile.
pub fn response(input: &[u8]) {
    let headers: HeaderMap = lines(input)
        .filter_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let name = HeaderName::from_bytes(&line[..colon]).ok()?;
            Some((name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?))
        })
        .collect();
    let now = moment();
    let profiles = [
        client::Profile::new(),
        client::Profile::github(),
        client::Profile::open_ai(),
        client::Profile::anthropic(),
        client::Profile::x_rate_limit(),
        client::Profile::new()
            .with_limit(
                client::LimitFields::new()
                    .with_used("x-used")
                    .with_reset_ms("x-reset-ms"),
            )
            .with_retry_after("x-retry-after")
            .with_rejection(StatusCode::OK)
            .with_default_wait(Duration::from_secs(7)),
    ];
    let cases = [(StatusCode::OK, false), (StatusCode::TOO_MANY_REQUESTS, true)];
    for (profile, (status, trusts_dates)) in profiles.iter().flat_map(|profile| cases.map(|case| (profile, case))) {
        let caps = Caps::default().trust_dates(trusts_dates);
        let exchange = Exchange {
            received: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            elapsed: Duration::from_millis(1_500),
        };
        let advice = Advice::read_as(profile, status, &headers, exchange, &caps);
        // The limits of a list, the limit of draft-06, and the limits of a profile.
        assert!(advice.limits().len() <= MAX_ITEMS + 1 + 4);
        for limit in advice.limits() {
            assert!(limit.remaining().is_none_or(|remaining| remaining <= caps.max_units()));
            assert!(limit.quota().is_none_or(|quota| quota <= caps.max_units()));
            assert!(limit.reset().is_none_or(|reset| reset <= caps.max_wait()));
        }
        assert!(advice.retry_after().is_none_or(|wait| wait <= caps.max_wait()));
        for strategy in [Strategy::Greedy, Strategy::pace(), Strategy::Observe] {
            obey(&advice, Pacing::new(strategy, caps), now + caps.max_wait(), now);
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "any moment will do")]
fn moment() -> Instant {
    Instant::now()
}

/// No wait exceeds its cap, and memory stays bounded, for arbitrary responses.
fn obey(advice: &Advice, mut pacing: Pacing, latest: Instant, now: Instant) {
    for _ in 0..3 {
        match pacing.try_acquire(now) {
            Acquire::Ready(dispatch) => pacing.record_response(dispatch, advice, now),
            Acquire::Wait(wait) => assert!(now < wait.until() && wait.until() <= latest),
        }
    }
    assert!(pacing.limits(now).len() <= 32);
    assert!(matches!(pacing.try_acquire(latest), Acquire::Ready(_)));
}

/// The content of a rejection.
pub fn problem(input: &[u8]) {
    let Some(problem) = Problem::parse(input) else {
        return;
    };
    let written = serde_json::json!({
        "type": problem.kind().uri(),
        "violated-policies": problem.violated_policies(),
    });
    let written = written.to_string();
    // Escapes can be longer than the characters that they represent.
    assert!(written.len() > 64 * 1024 || Problem::parse(written.as_bytes()) == Some(problem));
}

/// The rules of a fleet, which another program may have written.
pub fn rules_document(input: &[u8]) {
    let document = match RulesDocument::parse(input) {
        Ok(document) => document,
        Err(error) => return assert!(error.to_string().starts_with("rules document: ")),
    };
    // A valid document is limited in number and size, and the error of an invalid one names the policy.
    let checked = document.check();
    // Line breaks and escapes may take more room, and the name of a unit may be too long.
    match document.to_json() {
        Ok(json) => {
            let read = RulesDocument::parse(json.as_bytes()).expect("it was written to be read");
            assert_eq!(read, document);
            assert_eq!(read.check(), checked);
        }
        Err(error) => assert!(error.kind() == FleetErrorKind::TooLong || checked.is_err()),
    }
}

/// A `WWW-Authenticate` field with challenges, from an untrusted origin.
pub fn token_challenge(input: &[u8]) {
    let challenges = Challenge::from_headers(&fields(&WWW_AUTHENTICATE, input));
    assert!(challenges.len() <= Challenge::MAX_COUNT);
    for challenge in challenges {
        let written = HeaderMap::from_iter([(WWW_AUTHENTICATE, challenge.to_header_value())]);
        // Padding that was missing is written.
        let is_longer = written[WWW_AUTHENTICATE].len() > Challenge::MAX_LENGTH;
        assert!(is_longer || Challenge::from_headers(&written) == std::slice::from_ref(&challenge));
        structure(challenge.as_bytes());
    }
    structure(input);
}

fn structure(bytes: &[u8]) {
    if let Ok(challenge) = TokenChallenge::parse(bytes) {
        assert_eq!(challenge.to_bytes(), bytes);
        assert!(challenge.origins().all(|origin| challenge.is_for(origin)));
    }
}

/// The field `Authorization` with a token of a client, and the token by itself.
pub fn token(input: &[u8]) {
    if let Ok(Some(token)) = token_from_headers(&fields(&AUTHORIZATION, input)) {
        let written = HeaderMap::from_iter([(AUTHORIZATION, token_to_header_value(&token))]);
        assert_eq!(token_from_headers(&written), Ok(Some(token)));
    }
    if let Ok(token) = Token::parse(input) {
        assert_eq!(token.to_bytes(), input);
    }
}

/// The directory of an issuer.
pub fn token_directory(input: &[u8]) {
    let Ok(directory) = Directory::parse(input) else {
        return;
    };
    assert!(directory.keys().count() <= Directory::MAX_KEYS);
    let json = directory.to_json();
    // Escapes can be longer than the characters that they represent.
    assert!(json.len() > Directory::MAX_LENGTH || Directory::parse(json.as_bytes()) == Ok(directory));
}

/// A client's request for a credential.
pub fn credential_request(input: &[u8]) {
    for key in issuer_keys() {
        match key.issue(input) {
            Ok(response) => assert_eq!(response.len(), key.profile().response_len()),
            Err(error) => assert_eq!(error, CredentialError::InvalidRequest),
        }
    }
}

/// The response of an untrusted issuer. Without the private key, no response is valid.
pub fn credential_response(input: &[u8]) {
    static REQUESTS: LazyLock<[CredentialRequest; 2]> = LazyLock::new(|| {
        issuer_keys()
            .each_ref()
            .map(|key| CredentialRequest::new(key.public_key(), b"request").expect("there are random numbers"))
    });
    for request in &*REQUESTS {
        assert!(request.finalize(input).is_err());
    }
}

/// A nonce and a presentation of a client.
pub fn presentation(input: &[u8]) {
    let Some((nonce, presentation)) = input.split_first_chunk() else {
        return;
    };
    let nonce = u32::from_be_bytes(*nonce);
    for key in issuer_keys() {
        if let Ok(tag) = key.verify(presentation, b"request", b"presentation", nonce, 10) {
            assert!(nonce < 10);
            assert_eq!(presentation.len(), key.profile().presentation_len());
            assert_eq!(
                presentation.chunks(key.profile().tag_len()).nth(3),
                Some(tag.as_bytes())
            );
        }
    }
}

/// The keys are the same in each run, so that seeds can contain valid messages.
fn issuer_keys() -> &'static [IssuerKey; 2] {
    static KEYS: LazyLock<[IssuerKey; 2]> = LazyLock::new(|| {
        Profile::ALL.map(|profile| {
            let bytes = vec![1; profile.private_key_len()];
            IssuerKey::from_bytes(profile, &bytes).expect("numbers below the order")
        })
    });
    &KEYS
}

/// The lines of an input are the lines of a field.
fn lines(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    input.split(|byte| *byte == b'\n')
}

/// Returns the lines that a server can receive.
fn fields(name: &HeaderName, input: &[u8]) -> HeaderMap {
    lines(input)
        .filter_map(|line| HeaderValue::from_bytes(line).ok())
        .map(|line| (name.clone(), line))
        .collect()
}

/// The fields that an intermediary adds: with a name that inputs are likely to have, and another one.
fn own() -> LayerFields {
    let limit = |name| draft11::LimitItem::new(name, 4).map(|item| item.with_reset(Duration::from_secs(20)));
    let limits = [limit("default"), limit("edge")].into_iter().flatten();
    let policy = |name| draft11::PolicyItem::new(name, 40)?.with_window(Duration::from_secs(20));
    let policies = [policy("default"), policy("edge")].into_iter().flatten();
    LayerFields::new()
        .with_rate_limit(&draft11::RateLimit::new(limits).expect("two items"))
        .with_rate_limit_policy(&draft11::RateLimitPolicy::new(policies).expect("two items"))
        .with_retry_after(RetryAfter::after(Duration::from_secs(10)))
}
