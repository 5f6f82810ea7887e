//! gRPC: limits per method and per message of a stream, and a client that retries after the delay of the server.
//!
//! ```sh
//! cargo run -p example-grpc
//! ```
//!
//! The program runs both the server and the client, and prints the results of the client. The API is the standard
//! health service: `Check` is unary, and `Watch` is a server stream. A rejected call, and a stream that ends because
//! its messages exceed a limit, have the status `RESOURCE_EXHAUSTED` with two details: `QuotaFailure` lists the
//! exhausted policies, and `RetryInfo` contains the delay after which the same call passes.
//!
//! tonic has no retry policy, so this client reads `RetryInfo`. gRPC clients with a retry policy need no code: they obey
//! `grpc-retry-pushback-ms`, which rejected calls have, too.
//!
//! `PORT` sets the port. Default: a free one.

use std::{env, error::Error, time::Duration};

use futures_util::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{interval, sleep},
};
use tonic::{
    Code, Request, Response, Status,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_client::HealthClient,
    health_server::{Health, HealthServer},
};
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};
use tower_quota::{
    Caller, ConfigError, Decision, Limiter, MemoryStore, QuotaPolicy, RateLimitLayer, Store, Tiers,
    key::{self, ClientIp},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let port = env::var("PORT").map_or(Ok(0), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.map_err(|error| format!("port {port}: {error}; PORT sets another one"))?;
    let url = format!("http://{}", listener.local_addr()?);
    let (health, changes) = watch::channel(ServingStatus::Serving);
    tokio::spawn(serve(listener, MemoryStore::new(), changes)?); // `RedisStore` for several instances
    tokio::spawn(flap(health));

    let mut client = PatientClient::connect(url)?;
    println!("Six checks; four per second are allowed:");
    for _ in 0..6 {
        println!("  {:?}", client.check().await?);
    }
    println!("Twelve messages of a stream; five per second are allowed:");
    client.watch(12, |status| println!("  {status:?}")).await?;
    Ok(())
}

/// Changes the health ten times per second.
async fn flap(health: watch::Sender<ServingStatus>) {
    let mut interval = interval(Duration::from_millis(100));
    loop {
        interval.tick().await;
        health.send_modify(flip);
    }
}

pub(crate) fn flip(status: &mut ServingStatus) {
    *status = match status {
        ServingStatus::Serving => ServingStatus::NotServing,
        _ => ServingStatus::Serving,
    };
}

// The server.

pub(crate) fn serve(
    listener: TcpListener,
    store: impl Store + Clone,
    health: watch::Receiver<ServingStatus>,
) -> Result<impl Future<Output = Result<(), tonic::transport::Error>>, ConfigError> {
    let messages = Limiter::builder(store.clone())
        .scope("messages")
        .policy(QuotaPolicy::per_second("messages", 5))
        .build()?;
    Ok(Server::builder()
        // Limits all services. Use `tonic::service::LayerExt::named_layer` to limit a single service.
        .layer(calls(store)?)
        .add_service(HealthServer::new(HealthOfAll { health, messages }))
        .serve_with_incoming(TcpIncoming::from(listener)))
}

/// The path of a request is `/package.Service/Method`.
fn calls(store: impl Store) -> Result<RateLimitLayer, ConfigError> {
    RateLimitLayer::builder(store)
        .scope("calls")
        .key(caller_key())
        .tiers(
            Tiers::from_fn(|request| match request.uri.path() {
                "/grpc.health.v1.Health/Check" => Some("check"),
                "/grpc.health.v1.Health/Watch" => Some("watch"),
                _ => None,
            })
            // The first tier is the default, for all other methods.
            .tier("others", [QuotaPolicy::per_second("others", 1)])
            .tier("check", [QuotaPolicy::per_second("checks", 4)])
            // A stream holds its slot until it ends.
            .tier(
                "watch",
                [
                    QuotaPolicy::per_minute("watches", 20),
                    QuotaPolicy::concurrent("open streams", 2),
                ],
            ),
        )
        .build()
}

fn caller_key() -> ClientIp {
    key::client_ip()
}

/// The health of all services together.
struct HealthOfAll {
    health: watch::Receiver<ServingStatus>,
    messages: Limiter,
}

#[tonic::async_trait]
impl Health for HealthOfAll {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(message(*self.health.borrow())))
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let peer = request.remote_addr().ok_or(Status::internal("no peer address"))?;
        let caller = self.messages.caller(&caller_key().key_of(peer.ip()));
        let mut health = self.health.clone();
        // A stream starts with the current status.
        health.mark_changed();
        let statuses = stream::unfold(health, async |mut health| {
            health.changed().await.ok()?;
            let status = *health.borrow_and_update();
            Some((status, health))
        });
        // A stream ends with its first error.
        let messages = statuses
            .map(Ok)
            .and_then(move |status| admit(caller.clone(), message(status)));
        Ok(Response::new(messages.boxed()))
    }
}

fn message(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

/// Returns a message if the limit admits it. To slow down a stream instead of ending it, use `caller.wait(…)`. Charge
/// the messages of a client stream in the same way.
async fn admit<T>(caller: Caller, message: T) -> Result<T, Status> {
    let decision = caller.check().await;
    match decision.outcome().is_admitted() {
        true => Ok(message),
        false => Err(rejection(&decision)),
    }
}

/// Creates the status with which the layer rejects calls.
fn rejection(decision: &Decision) -> Status {
    let policies = decision.violated().map(|allowance| allowance.policy());
    let violations = policies.filter(|policy| !policy.is_hidden()).map(|policy| {
        let mut violation = QuotaViolation::new("scope:messages", "the quota of this policy is exceeded");
        violation.quota_id = policy.name().to_owned();
        violation.quota_value = i64::try_from(policy.quota()).unwrap_or(i64::MAX);
        violation
    });
    let mut details = ErrorDetails::with_quota_failure(violations.collect::<Vec<_>>());
    if let Some(wait) = decision.retry_after() {
        details.set_retry_info(Some(wait));
    }
    Status::with_error_details(Code::ResourceExhausted, "too many messages", details)
}

// The client.

/// Repeats rejected calls after the delay that the server specifies.
pub(crate) struct PatientClient {
    health: HealthClient<Channel>,
    /// The maximum total wait of all calls.
    patience: Duration,
    /// The policies that rejected a call, and the delays.
    pub(crate) rejections: Vec<(Vec<String>, Duration)>,
}

impl PatientClient {
    pub(crate) fn connect(url: String) -> Result<Self, tonic::transport::Error> {
        Ok(Self {
            health: HealthClient::new(Endpoint::new(url)?.connect_lazy()),
            patience: Duration::from_secs(60),
            rejections: Vec::new(),
        })
    }

    pub(crate) async fn check(&mut self) -> Result<ServingStatus, Status> {
        loop {
            match self.health.check(HealthCheckRequest::default()).await {
                Ok(response) => return Ok(response.into_inner().status()),
                Err(status) => self.wait(status).await?,
            }
        }
    }

    /// Reads `count` messages. If a stream ends with a rejection, the client opens another stream.
    pub(crate) async fn watch(&mut self, mut count: usize, mut read: impl FnMut(ServingStatus)) -> Result<(), Status> {
        while count > 0 {
            if let Err(status) = self.read(&mut count, &mut read).await {
                self.wait(status).await?;
            }
        }
        Ok(())
    }

    async fn read(&mut self, count: &mut usize, mut read: impl FnMut(ServingStatus)) -> Result<(), Status> {
        let stream = self.health.watch(HealthCheckRequest::default()).await?;
        let mut stream = stream.into_inner();
        while *count > 0 {
            let Some(message) = stream.message().await? else {
                return Err(Status::unavailable("the server has ended the stream"));
            };
            *count -= 1;
            read(message.status());
        }
        Ok(())
    }

    /// Waits until the call passes. Returns the status if it has no `RetryInfo`, because the call then never passes, or
    /// if the error does not concern limits.
    #[allow(clippy::disallowed_methods, reason = "this client waits")]
    async fn wait(&mut self, status: Status) -> Result<(), Status> {
        let delay = status.get_details_retry_info().and_then(|info| info.retry_delay);
        let (Some(delay), true) = (delay, status.code() == Code::ResourceExhausted) else {
            return Err(status);
        };
        let Some(patience) = self.patience.checked_sub(delay) else {
            return Err(status);
        };
        let failure = status.get_details_quota_failure();
        let violations = failure.into_iter().flat_map(|failure| failure.violations);
        let policies = violations.map(|violation| violation.quota_id).collect();
        println!("  {}: {policies:?}; the client waits {delay:?}", status.message());
        self.patience = patience;
        self.rejections.push((policies, delay));
        sleep(delay).await;
        Ok(())
    }
}
