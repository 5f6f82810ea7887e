//! A gateway to a language model: requests and tokens per minute, two concurrent responses, and streaming.
//!
//! ```sh
//! cargo run --example llm_gateway --features axum
//! ```
//!
//! The keys of this example are `alice` and `bob`. Get a streamed response, a complete response, and the remaining
//! units:
//!
//! ```sh
//! ask() { curl -iN -H 'authorization: Bearer alice' http://127.0.0.1:3000/v1/chat/completions -d "$1"; }
//! ask '{"stream": true, "max_tokens": 500, "messages": [{"role": "user", "content": "Say a few words, please."}]}'
//! ask '{"max_tokens": 500, "messages": [{"role": "user", "content": "Say a few words, please."}]}'
//! curl -s -H 'authorization: Bearer alice' http://127.0.0.1:3000/v1/usage
//! ```
//!
//! The first response contains `"tokens";r=1494`: the prompt of 6 tokens and a response of up to 500 were charged
//! before the model was called. The second response contains `"tokens";r=1977`, because it was complete before its
//! fields were written. Send five requests at once (`ask … & ask … &`): two responses are generated concurrently, and
//! the other requests are rejected. If you stop a request with Ctrl-C, only the generated tokens are charged.
//!
//! With `REDIS_URL`, the limits are in Redis and apply to all processes together. `PORT` sets the port; 0 selects a
//! free one.
//!
//! ```toml
//! [dependencies]
//! axum = "0.8"
//! futures-util = "0.3"
//! serde_json = "1.0"
//! tokio = { version = "1.47", features = ["macros", "net", "rt-multi-thread", "time"] }
//! tower-quota = { version = "0.1.0", features = ["axum"] }
//! ```

use std::{convert::Infallible, env, error::Error, fmt::Write, io, time::Duration};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
    routing::{get, post},
};
use futures_util::stream::{self, Stream, StreamExt};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};
use tower_quota::{
    ConfigError, Limiter, LimiterBuilder, MemoryStore, MissingKey, PartitionKey, Permit, QuotaPolicy, RateLimitLayer,
    RedisStore, ToPartitionKey, WeakPermit, key,
};

/// The maximum body length. Keep it small, because bodies are read before the requests are charged.
const MAX_BODY: usize = 64 * 1_024;
/// The maximum time for receiving a body.
const LONGEST_UPLOAD: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = match env::var("REDIS_URL") {
        Ok(url) => limits(Limiter::builder(RedisStore::new(url)?))?,
        Err(_) => limits(Limiter::builder(MemoryStore::new()))?,
    };
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.map_err(|error| format!("port {port}: {error}; PORT sets another one"))?;
    let url = format!("http://{}/v1", listener.local_addr()?);
    println!("Listening on {url}");
    println!();
    println!("The keys are alice and bob; an answer that is streamed, and what is left:");
    let body =
        r#"{"stream": true, "max_tokens": 500, "messages": [{"role": "user", "content": "Say a few words, please."}]}"#;
    println!("  curl -iN -H 'authorization: Bearer alice' {url}/chat/completions -d '{body}'");
    println!("  curl -s -H 'authorization: Bearer alice' {url}/usage");
    serve(listener, limits, Duration::from_millis(200)).await?;
    Ok(())
}

/// Limits requests, tokens and concurrent responses in one decision.
pub(crate) fn limits(limiter: LimiterBuilder) -> Result<RateLimitLayer, ConfigError> {
    let limiter = limiter
        .scope("llm gateway")
        .on_missing_key(MissingKey::Reject)
        .policy(QuotaPolicy::per_minute("requests", 20))
        .policy(QuotaPolicy::per_minute("tokens", 2_000).with_unit("tokens"))
        .policy(QuotaPolicy::concurrent("at once", 2))
        .build()?;
    RateLimitLayer::with_limiter(limiter)
        .key(key::extension::<User>())
        // Returns the estimated cost. The actual cost is reported at the end of the response.
        .unit_cost("tokens", |request| {
            request.extensions.get().map_or(0, Prompt::most_tokens)
        })
        .build()
}

/// Runs the gateway. Its model pauses after each word.
pub(crate) async fn serve(listener: TcpListener, limits: RateLimitLayer, pause: Duration) -> io::Result<()> {
    let model = Model { pause };
    let completions = post(complete)
        .with_state(model)
        .layer(limits.clone())
        // Outside the limits, which use the parsed prompt for the estimate, and inside the authentication.
        .layer(middleware::from_fn(read_prompt));
    let app = Router::new()
        .route("/v1/chat/completions", completions)
        .route("/v1/usage", get(usage).with_state(limits.limiter().clone()))
        .layer(middleware::from_fn(authenticate));
    axum::serve(listener, app).await
}

#[derive(Clone)]
struct User(&'static str);

impl ToPartitionKey for User {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("user", self.0)
    }
}

async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let field = request
        .headers()
        .get(header::AUTHORIZATION)
        .map(|field| field.as_bytes());
    let user = match field {
        Some(b"Bearer alice") => User("alice"),
        Some(b"Bearer bob") => User("bob"),
        _ => return Err(StatusCode::UNAUTHORIZED),
    };
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}

/// A parsed request to the model.
#[derive(Clone)]
struct Prompt {
    text: String,
    max_tokens: u64,
    is_streamed: bool,
}

impl Prompt {
    /// Returns `None` for invalid requests.
    fn parse(body: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        let messages = body["messages"].as_array()?;
        let text: Option<Vec<_>> = messages.iter().map(|message| message["content"].as_str()).collect();
        Some(Self {
            text: text?.join(" "),
            max_tokens: body["max_tokens"].as_u64().unwrap_or(500),
            is_streamed: body["stream"].as_bool().unwrap_or(false),
        })
    }

    fn most_tokens(&self) -> u64 {
        tokens(&self.text).saturating_add(self.max_tokens)
    }
}

/// Estimates one token per four bytes. In production, use the model's tokenizer or a similar estimate.
fn tokens(text: &str) -> u64 {
    text.len().div_ceil(4) as u64
}

/// Reads and parses the body once. The request keeps the bytes and the parsed prompt.
async fn read_prompt(request: Request, next: Next) -> Result<Response, StatusCode> {
    let (mut head, body) = request.into_parts();
    let body = timeout(LONGEST_UPLOAD, to_bytes(body, MAX_BODY)).await;
    let body = body.map_err(|_| StatusCode::REQUEST_TIMEOUT)?;
    let body = body.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
    head.extensions
        .insert(Prompt::parse(&body).ok_or(StatusCode::BAD_REQUEST)?);
    Ok(next.run(Request::from_parts(head, Body::from(body))).await)
}

async fn complete(State(model): State<Model>, permit: WeakPermit, Extension(prompt): Extension<Prompt>) -> Response {
    let answer = Answer::new(&prompt, permit.upgrade());
    if prompt.is_streamed {
        return Sse::new(model.stream(answer)).into_response();
    }
    let (text, used) = model.answer(answer).await;
    let answer = json!({"choices": [{"message": {"content": text}}], "usage": {"total_tokens": used}});
    ([(header::CONTENT_TYPE, "application/json")], answer.to_string()).into_response()
}

/// Returns the remaining units of the caller for each policy.
async fn usage(State(limits): State<Limiter>, Extension(user): Extension<User>) -> Result<String, StatusCode> {
    let decision = limits
        .caller(&user)
        .peek()
        .await
        .map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let mut text = String::new();
    for allowance in decision.iter().flat_map(|decision| decision.allowances()) {
        let _ = writeln!(text, "{}: {} left", allowance.policy().name(), allowance.remaining());
    }
    Ok(text)
}

/// A response that is generated word by word.
struct Answer {
    words: std::vec::IntoIter<String>,
    used: u64,
    max: u64,
    /// `None` if the request is uncounted because the store is unavailable.
    permit: Option<Permit>,
}

impl Answer {
    fn new(prompt: &Prompt, permit: Option<Permit>) -> Self {
        let words = prompt.text.split_inclusive(' ').map(str::to_owned);
        let used = tokens(&prompt.text);
        Self {
            words: words.collect::<Vec<_>>().into_iter(),
            used,
            max: used.saturating_add(prompt.max_tokens),
            permit,
        }
    }

    /// Returns the next word, unless the response is complete or has reached its maximum length.
    fn next(&mut self) -> Option<String> {
        let word = self.words.next()?;
        let used = self.used + tokens(&word);
        (used <= self.max).then(|| {
            self.used = used;
            word
        })
    }
}

/// At the end of the response or if the client disconnects, reports the generated tokens as the actual usage.
impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(permit) = &self.permit {
            permit.finish("tokens", self.used);
        }
    }
}

/// Repeats the prompt.
#[derive(Clone)]
struct Model {
    pause: Duration,
}

impl Model {
    async fn answer(&self, mut answer: Answer) -> (String, u64) {
        let mut text = String::new();
        while let Some(word) = self.next(&mut answer).await {
            text.push_str(&word);
        }
        (text, answer.used)
    }

    fn stream(self, answer: Answer) -> impl Stream<Item = Result<Event, Infallible>> {
        let words = stream::unfold((self, answer), async |(model, mut answer)| {
            let word = model.next(&mut answer).await?;
            let chunk = json!({"choices": [{"delta": {"content": word}}]});
            Some((chunk.to_string(), (model, answer)))
        });
        let done = stream::once(async { "[DONE]".to_owned() });
        words.chain(done).map(|data| Ok(Event::default().data(data)))
    }

    #[allow(clippy::disallowed_methods, reason = "a model takes its time")]
    async fn next(&self, answer: &mut Answer) -> Option<String> {
        sleep(self.pause).await;
        answer.next()
    }
}
