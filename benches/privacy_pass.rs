//! Anonymous credentials: what each step takes of one core, and what a saturated verifier does to other requests.
//!
//!     cargo bench -p tower-quota-tests --bench privacy_pass
//!
//! First the steps of both profiles, in operations per second and core, `ROUNDS` (15) times 20. `verify` is the work of
//! an origin for each token, and `issue` the work of an issuer for each credential; the other steps are the client's.
//! All are functions of the scheme alone, without HTTP and without threads.
//!
//! Then the p99 of requests without a token, in a process whose verifier is idle or saturated. Requests are due every
//! millisecond, whether or not earlier ones are done, and their latency counts from then. They pass through the same
//! `OriginLayer` as the tokens, on a runtime with a thread for each core. As many forged tokens as can be queued are
//! sent all the time, so that all verifier threads (one less than there are cores, and at least one) are always busy.
//! The sides are measured in turns, `ROUNDS` (15) times for `SECONDS` (2) each.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod rounds;

use std::{
    convert::Infallible,
    hint::black_box,
    num::NonZeroUsize,
    thread,
    time::{Duration, Instant},
};

use http::{HeaderValue, Request, Response};
use http_body_util::Empty;
use tokio::{runtime::Runtime, task::JoinSet, time::sleep_until};
use tower::{Layer, ServiceExt, service_fn};
use tower_quota_anonymous::{
    Challenge, CredentialRequest, IssuerKey, OriginLayer, Profile, Token, token_to_header_value,
};

use self::rounds::Side;

const REQUEST_CONTEXT: &[u8] = b"issuer.example";
const PRESENTATION_CONTEXT: &[u8] = b"window 7";
const LIMIT: u32 = 1_000;

const ROUNDS: usize = 15;

/// The time between two requests without a token.
const PERIOD: Duration = Duration::from_millis(1);

/// The most tokens that wait for a verifier thread.
const QUEUED: usize = 64;

/// Returns a side that measures operations per second.
fn step<'a, T>(name: &str, mut operation: impl FnMut() -> T + 'a) -> Side<'a> {
    const TIMES: u32 = 20;

    Side::new(name, move || {
        let start = Instant::now();
        for _ in 0..TIMES {
            black_box(operation());
        }
        f64::from(TIMES) / start.elapsed().as_secs_f64()
    })
}

fn steps() {
    for profile in Profile::ALL {
        let key = new_key(profile);
        let request = || CredentialRequest::new(key.public_key(), REQUEST_CONTEXT).expect("there are random numbers");
        let asked = request();
        let response = key.issue(asked.as_bytes()).expect("the request is valid");
        let credential = asked.finalize(&response).expect("the response is valid");
        let present = || credential.present(PRESENTATION_CONTEXT, LIMIT - 1, LIMIT);
        let presentation = present().expect("the nonce is below the limit");
        let verify = || {
            let bytes = presentation.as_bytes();
            key.verify(bytes, REQUEST_CONTEXT, PRESENTATION_CONTEXT, LIMIT - 1, LIMIT)
        };
        let mut sides = [
            step("verify", verify),
            step("issue", || key.issue(asked.as_bytes())),
            step("request", request),
            step("finalize", || asked.finalize(&response)),
            step("present", present),
        ];
        rounds::table(profile.name(), "per second", ROUNDS, &mut sides);
    }
}

fn new_key(profile: Profile) -> IssuerKey {
    IssuerKey::generate(profile).expect("there are random numbers")
}

/// The response to a request with this token, or without one.
async fn send(layer: OriginLayer, token: Option<HeaderValue>) -> Response<()> {
    let inner = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(Empty::new())));
    let mut request = Request::new(String::new());
    if let Some(token) = token {
        request.headers_mut().insert("authorization", token);
    }
    let Ok(response) = layer.layer(inner).oneshot(request).await;
    response.map(drop)
}

fn origin(key: &IssuerKey) -> OriginLayer {
    let origin = OriginLayer::builder("issuer.example", &[7; 32])
        .origin("api.example")
        .key(key.clone());
    let origin = origin
        .policy("anonymous", LIMIT, Duration::from_secs(86_400))
        .max_queued(QUEUED);
    origin.optional().build().expect("the settings are valid")
}

/// A token whose proof fails. It is as much work as one whose proof does not.
fn forged(runtime: &Runtime, key: &IssuerKey) -> HeaderValue {
    let malformed = HeaderValue::from_static("PrivateToken token=");
    let rejected = runtime.block_on(send(origin(key), Some(malformed)));
    let challenges = Challenge::from_headers(rejected.headers());
    let challenge = challenges[0].token_challenge().expect("the origin's own");
    let context = challenge.request_context(&key.key_id());
    let request = CredentialRequest::new(key.public_key(), &context).expect("there are random numbers");
    let response = key.issue(request.as_bytes()).expect("the request is valid");
    let credential = request.finalize(&response).expect("the response is valid");
    let presented = credential.present(&challenge.presentation_context(&key.key_id()), 0, LIMIT);
    let mut bytes = presented.expect("the nonce is below the limit").as_bytes().to_vec();
    *bytes.last_mut().expect("a proof") ^= 1;
    let token = Token::new(&challenge, key.key_id(), 0, bytes).expect("it has its length");
    token_to_header_value(&token)
}

/// The p99 of requests without a token, in milliseconds, while as many as this send a token without a pause.
fn p99(runtime: &Runtime, layer: &OriginLayer, token: &HeaderValue, senders: usize, length: Duration) -> f64 {
    runtime.block_on(async {
        let mut flood = JoinSet::new();
        for _ in 0..senders {
            let (layer, token) = (layer.clone(), token.clone());
            flood.spawn(async move {
                loop {
                    let status = send(layer.clone(), Some(token.clone())).await.status();
                    assert_eq!(status, 401, "the verifier has a place for each");
                }
            });
        }
        let start = Instant::now() + Duration::from_millis(200);
        let mut requests = JoinSet::new();
        let mut due = start;
        while due < start + length {
            sleep_until(due.into()).await;
            let (layer, asked) = (layer.clone(), due);
            requests.spawn(async move {
                assert_eq!(send(layer, None).await.status(), 200);
                asked.elapsed()
            });
            due += PERIOD;
        }
        let mut times = requests.join_all().await;
        flood.shutdown().await;
        rounds::millis_at(0.99, &mut times)
    })
}

fn neighbours() {
    let length = Duration::from_secs_f64(rounds::setting("SECONDS", 2.0));
    let runtime = Runtime::new().expect("the runtime starts");
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let keys = Profile::ALL.map(new_key);
    let tokens = keys.each_ref().map(|key| forged(&runtime, key));
    let layers = keys.each_ref().map(origin);
    let side = |name: String, profile: usize, senders: usize| {
        let (runtime, layer, token) = (&runtime, &layers[profile], &tokens[profile]);
        Side::new(name, move || p99(runtime, layer, token, senders, length))
    };
    let mut sides = vec![side("nobody sends a token".to_owned(), 0, 0)];
    for (index, profile) in Profile::ALL.into_iter().enumerate() {
        sides.push(side(format!("{} saturated", profile.name()), index, QUEUED));
    }
    rounds::table(&format!("p99 without a token, {cores} cores"), "ms", ROUNDS, &mut sides);
}

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    steps();
    neighbours();
}
