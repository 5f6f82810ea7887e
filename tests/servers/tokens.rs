//! Origins and issuers of anonymous tokens: what a gRPC client sees of them, and what their operators count.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::Full;
use tonic::{Code, Status, transport::server::TcpIncoming};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::{
    QuotaPolicy,
    clock::{Clock, Timestamp},
    key::PeerAddress,
};
use tower_quota_anonymous::{
    CredentialRequest, IssuanceDecision, IssuanceRequest, Issuer, IssuerKey, KeySet, OriginLayer, OriginLayerBuilder,
    Profile, Token, token_to_header_value,
};

use crate::{
    grpc::client_of,
    holder::{self, challenge_in, challenged, forged, with_token},
    limits, listener,
    metrics::{Page, samples},
};

/// The middle of a window of a minute.
const MIDDLE: Timestamp = Timestamp::from_micros(1_700_000_070_000_000);

/// An origin whose verifier is half full as soon as it has a proof.
fn origin(key: &IssuerKey) -> OriginLayerBuilder {
    OriginLayer::builder("issuer.example", &[7; 32])
        .origin("api.example")
        .key(key.clone())
        .policy("anonymous", 5, Duration::from_secs(60))
        .verifier_threads(1)
        .max_queued(1)
        .clock(Clock::manual(MIDDLE))
}

fn new_key() -> IssuerKey {
    IssuerKey::generate(Profile::P256).unwrap()
}

/// A call of the health service with a token, or without one.
async fn call(
    client: &mut HealthClient<tonic::transport::Channel>,
    token: Option<&Token>,
) -> Result<HeaderMap, Status> {
    let mut request = tonic::Request::new(HealthCheckRequest::default());
    if let Some(token) = token {
        let value = token_to_header_value(token);
        let value = value.to_str().unwrap().parse().unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    client
        .check(request)
        .await
        .map(|response| response.metadata().clone().into_headers())
}

fn assert_names_the_policy(rejected: &Status) {
    let violations = rejected.get_details_quota_failure().unwrap().violations;
    let violations = violations.iter().map(|violation| {
        let (subject, quota) = (&*violation.subject, &*violation.quota_id);
        (subject, quota, &*violation.quota_metric, violation.quota_value)
    });
    assert!(violations.eq([("scope:anonymous", "anonymous", "requests", 5)]));
}

#[tokio::test]
async fn a_grpc_client_reads_challenges_and_rejections_of_an_origin_as_a_status() {
    let key = new_key();
    let (listener, address) = listener().await;
    let (_, health) = tonic_health::server::health_reporter();
    let layer = origin(&key)
        .failed_proofs(QuotaPolicy::per_day("failed", 1))
        .build()
        .unwrap();
    let server = tonic::transport::Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let mut client = client_of(format!("http://{address}"));

    let rejected = call(&mut client, None).await.unwrap_err();
    assert_eq!(
        (rejected.code(), rejected.message()),
        (Code::Unauthenticated, "a valid token is required")
    );
    let fields = rejected.metadata().clone().into_headers();
    assert_eq!(fields["ratelimit-policy"], r#""anonymous";q=5;w=60"#);
    assert_eq!(fields["cache-control"], "no-store");
    let challenge = challenge_in(&fields).token_challenge().unwrap();

    let holder = holder::Issuer(key).holder(&challenge);
    let token = holder.token(&challenge, 0);
    let passed = call(&mut client, Some(&token)).await.unwrap();
    assert_eq!(passed["ratelimit-policy"], r#""anonymous";q=5;w=60"#);

    let rejected = call(&mut client, Some(&token)).await.unwrap_err();
    assert_eq!(rejected.code(), Code::ResourceExhausted);
    assert_eq!(rejected.message(), r#"quota exceeded: "anonymous""#);
    assert_eq!(rejected.metadata().get("retry-after").unwrap(), "30");
    let retry = rejected.get_details_retry_info().unwrap().retry_delay;
    assert_eq!(retry, Some(Duration::from_secs(30)));
    assert_names_the_policy(&rejected);
    assert_eq!(rejected.metadata().get("grpc-retry-pushback-ms").unwrap(), "-1");
    assert!(rejected.metadata().get("www-authenticate").is_none());

    // One proof may fail while the verifier is busy; the layer cannot know if the next one would.
    let rejected = call(&mut client, Some(&forged(&holder.token(&challenge, 1))))
        .await
        .unwrap_err();
    assert_eq!(rejected.code(), Code::Unauthenticated);
    let rejected = call(&mut client, Some(&holder.token(&challenge, 2))).await.unwrap_err();
    assert_eq!(
        (rejected.code(), rejected.message()),
        (Code::ResourceExhausted, "too many requests")
    );
}

/// The limit by address of the inner layer, which answers a gRPC call with status 200.
#[tokio::test]
async fn a_grpc_call_that_a_limit_by_address_rejects_is_told_of_the_challenge_and_passes_with_a_token() {
    let key = new_key();
    let (listener, address) = listener().await;
    let (_, health) = tonic_health::server::health_reporter();
    let by_address = limits(tower_quota::MemoryStore::new(), "api", 1);
    let layers = tower::ServiceBuilder::new()
        .layer(origin(&key).optional().build().unwrap())
        .layer(by_address);
    let server = tonic::transport::Server::builder().layer(layers).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let mut client = client_of(format!("http://{address}"));

    call(&mut client, None).await.unwrap();
    let rejected = call(&mut client, None).await.unwrap_err();
    assert_eq!(rejected.code(), Code::ResourceExhausted);
    let challenge = challenge_in(&rejected.metadata().clone().into_headers());
    assert_eq!(challenge.rate_limit(), Some(5));
}

async fn judged(layer: &OriginLayer, request: Request<String>) -> Response<()> {
    let inner = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    layer.layer(inner).oneshot(request).await.unwrap().map(drop)
}

fn request() -> Request<String> {
    let mut request = Request::new(String::new());
    let address = PeerAddress(([192, 0, 2, 1], 4711).into());
    request.extensions_mut().insert(address);
    request
}

/// Each outcome of an origin and of an issuer at least once, under the recorder of this thread.
pub(crate) async fn of_every_outcome() {
    of_an_origin().await;
    of_an_issuer().await;
}

async fn of_an_origin() {
    let key = new_key();
    let once = QuotaPolicy::per_day("failed", 1);
    let layer = origin(&key).failed_proofs(once.clone()).max_tags(1).build().unwrap();
    let challenge = challenged(&judged(&layer, request()).await);
    let holder = holder::Issuer(key.clone()).holder(&challenge);
    let tokens = [0, 1, 2].map(|nonce| with_token(request(), &holder.token(&challenge, nonce)));
    let forged = with_token(request(), &forged(&holder.token(&challenge, 3)));
    let [first, second, third] = tokens;
    for (request, status) in [
        (first.clone(), 200),
        (first, 429),
        // There is room for one tag only.
        (second, 503),
        (forged, 401),
        (third, 429),
    ] {
        assert_eq!(judged(&layer, request).await.status(), status);
    }
}

/// Sends `count` invalid tokens, all but the first of them from an address that is limited for it.
pub(crate) async fn of_forged_tokens(count: usize) {
    let key = new_key();
    let layer = origin(&key)
        .failed_proofs(QuotaPolicy::per_day("failed", 1))
        .build()
        .unwrap();
    let challenge = challenged(&judged(&layer, request()).await);
    let token = holder::Issuer(key).holder(&challenge).token(&challenge, 0);
    let request = with_token(request(), &forged(&token));
    for _ in 0..count {
        assert_ne!(judged(&layer, request.clone()).await.status(), 200);
    }
}

async fn decide(request: IssuanceRequest) -> IssuanceDecision {
    match request
        .parts()
        .headers
        .get("x-account")
        .map(|account| account.as_bytes())
    {
        Some(b"customer") => IssuanceDecision::issue(),
        Some(_) => IssuanceDecision::reject(),
        None => {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = http::StatusCode::BAD_GATEWAY;
            IssuanceDecision::respond_with(response)
        }
    }
}

async fn of_an_issuer() {
    let key = new_key();
    let mut keys = KeySet::new();
    keys.insert(key.clone(), ..);
    let issuer = Issuer::builder(decide).keys(keys).build().unwrap();
    let asked = CredentialRequest::new(key.public_key(), b"context")
        .unwrap()
        .to_message();
    let mut broken = asked.clone();
    *broken.last_mut().unwrap() ^= 1;
    for (account, message, status) in [
        (Some("customer"), &asked, 200),
        (Some("customer"), &broken, 422),
        (Some("customer"), &vec![7], 422),
        (Some("stranger"), &asked, 403),
        (None, &asked, 502),
    ] {
        let mut request = Request::post("/arc/request").header(header::CONTENT_TYPE, Issuer::REQUEST_TYPE);
        if let Some(account) = account {
            request = request.header("x-account", account);
        }
        let request = request.body(Full::new(Bytes::from(message.clone()))).unwrap();
        assert_eq!(issuer.clone().oneshot(request).await.unwrap().status(), status);
    }
}

#[tokio::test]
async fn what_an_origin_and_an_issuer_say_is_counted_by_its_name() {
    let page = Page::start();
    of_every_outcome().await;
    let page = page.text();
    let mut lines: Vec<_> = samples(&page)
        .into_iter()
        .filter(|line| line.contains("tokens_total") || line.contains("credentials_total"))
        .collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            r#"tower_quota_credentials_total{outcome="invalid"} 2"#,
            r#"tower_quota_credentials_total{outcome="issued"} 1"#,
            r#"tower_quota_credentials_total{outcome="rejected"} 1"#,
            r#"tower_quota_credentials_total{outcome="unavailable"} 1"#,
            r#"tower_quota_tokens_total{policy="anonymous",outcome="accepted"} 1"#,
            r#"tower_quota_tokens_total{policy="anonymous",outcome="invalid"} 1"#,
            r#"tower_quota_tokens_total{policy="anonymous",outcome="no_token"} 1"#,
            r#"tower_quota_tokens_total{policy="anonymous",outcome="spent"} 1"#,
            r#"tower_quota_tokens_total{policy="anonymous",outcome="too_many_failures"} 1"#,
            r#"tower_quota_tokens_total{policy="anonymous",outcome="unavailable"} 1"#,
        ]
    );
}
