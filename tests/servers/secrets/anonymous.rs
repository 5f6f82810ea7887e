//! Origins and issuers of anonymous tokens.

use super::*;

/// The middle of a window of a minute.
const MIDDLE: Timestamp = Timestamp::from_micros(1_700_000_070_000_000);

/// The decision of an issuer that logs each request.
async fn decide(request: IssuanceRequest) -> IssuanceDecision {
    assert_hidden(&secrets(), "a request for a credential", format!("{request:?}"));
    match request.parts().headers.contains_key("x-rejected") {
        true => IssuanceDecision::reject(),
        false => IssuanceDecision::issue(),
    }
}

/// Issues and rejects credentials, and returns what is seen of it.
async fn issue(key: &IssuerKey) -> String {
    let mut keys = KeySet::new();
    keys.insert(key.clone(), ..);
    let builder = Issuer::builder(decide).keys(keys.clone());
    let mut shown = format!("{builder:?} {keys:?}");
    let issuer = builder.build().unwrap();
    let message = CredentialRequest::new(key.public_key(), b"context")
        .unwrap()
        .to_message();
    let rejected = ["x-rejected"].iter().map(|name| (*name, message.clone()));
    let cases = [
        ("x-granted", message.clone()),
        ("x-broken", vec![7]),
        ("x-broken", vec![]),
    ];
    for (name, message) in cases.into_iter().chain(rejected) {
        let mut request = request().map(|_| Full::new(Bytes::from(message)));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = format!("/arc/request?key={QUERY}").parse().unwrap();
        request
            .headers_mut()
            .insert("content-type", Issuer::REQUEST_TYPE.parse().unwrap());
        request.headers_mut().insert(name, "1".parse().unwrap());
        let (head, body) = issuer.clone().oneshot(request).await.unwrap().into_parts();
        shown += &format!("{} {}", head.status, fields(&head.headers));
        if !head.status.is_success() {
            shown += &String::from_utf8_lossy(&body.collect().await.unwrap().to_bytes());
        }
    }
    format!("{shown} {issuer:?}")
}

/// An origin whose verifier is half full as soon as it has a proof.
fn origin(key: &IssuerKey) -> OriginLayerBuilder {
    OriginLayer::builder("issuer.example", &ORIGIN_SECRET)
        .origin("api.example")
        .key(key.clone())
        .policy("anonymous", 5, Duration::from_secs(60))
        .failed_proofs(QuotaPolicy::per_day("failed", 1))
        .verifier_threads(1)
        .max_queued(1)
        .deadline(HANG)
        .clock(Clock::manual(MIDDLE))
}

/// The response to a request, whose field with a token takes the place of the other authorization.
async fn judged(layer: &OriginLayer, token: Option<&Token>) -> Response<()> {
    let mut request = request();
    request.headers_mut().remove("authorization");
    let request = token.into_iter().fold(request, with_token);
    let inner = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    layer.layer(inner).oneshot(request).await.unwrap().map(drop)
}

/// The secret parts of presentations. Their tag is none: an origin knows a token again by it, and it is no use without the rest.
fn of_presentation(presentation: &[u8]) -> [Secret; 2] {
    let length = Profile::P256.tag_len();
    [
        Secret::new("a token", &presentation[..3 * length]),
        Secret::new("the proof of a token", &presentation[4 * length..]),
    ]
}

#[test]
fn keys_and_credentials_show_no_secret_when_they_are_printed() {
    let key = IssuerKey::generate(Profile::P256).unwrap();
    let request = CredentialRequest::new(key.public_key(), b"context").unwrap();
    let credential = request.finalize(&key.issue(request.as_bytes()).unwrap()).unwrap();
    let presented = credential.present(b"context", 1, 5).unwrap();
    let mut secrets = secrets();
    secrets.push(Secret::new("the private key", &*key.to_bytes()));
    // Without an element of the public key, which is as long as a tag.
    let bytes = credential.to_bytes();
    let own = &bytes[..bytes.len() - Profile::P256.tag_len()];
    secrets.push(Secret::new("the credential", own));
    secrets.extend(of_presentation(presented.as_bytes()));

    let cut = IssuerKey::from_bytes(Profile::P256, &key.to_bytes()[1..]);
    let without_name = origin(&key).policy("", 5, HANG).build();
    let shown = format!(
        "{request:?} {credential:?} {presented:?} {key:?} {:?} {:?}",
        origin(&key),
        origin(&key).build()
    );
    let shown = shown + &said_by(&cut.unwrap_err()) + &said_by(&without_name.unwrap_err());
    assert_hidden(&secrets, "`Debug` or an error", shown);
}

#[tokio::test]
async fn issuers_and_origins_show_neither_keys_nor_tokens_nor_accounts() {
    let (watch, Some(server)) = (Watch::start(), server()) else {
        return;
    };
    let key = IssuerKey::generate(Profile::P256).unwrap();
    let layer = origin(&key).store(store(&server)).build().unwrap();
    let challenge = challenged(&judged(&layer, None).await);
    let holder = holder::Issuer(key.clone()).holder(&challenge);
    let [first, second, third, last] = [0, 1, 2, 3].map(|nonce| holder.token(&challenge, nonce));
    let mut secrets = secrets();
    secrets.push(Secret::new("the private key", &*key.to_bytes()));
    for token in [&first, &second, &third, &last] {
        secrets.extend(of_presentation(token.presentation()));
    }

    let forged = forged(&third);
    let (mut statuses, mut shown) = (Vec::new(), format!("{layer:?} {first:?}"));
    for token in [&first, &first, &second, &forged, &third] {
        let response = judged(&layer, Some(token)).await;
        statuses.push(response.status().as_u16());
        shown += &fields(response.headers());
    }
    assert_eq!(statuses, [200, 429, 200, 401, 429]);
    shown += &said_by(&Token::parse(&first.to_bytes()[1..]).unwrap_err());
    shown += &issue(&key).await;
    assert_hidden(&secrets, "Redis", dump(&server));
    server.kill();
    shown += &fields(judged(&layer, Some(&last)).await.headers());
    assert_hidden(&secrets, "an origin or an issuer", shown);
    watch.assert_hidden(&secrets);
}
