//! A service as a team would run it: limits in Redis, tiers from a file that may change, an administrator's routes, and
//! a page for Prometheus.
//!
//! ```sh
//! ADMIN_TOKEN=secret cargo run -p tower-quota-apps --features metrics --bin platform
//! ```
//!
//! Names that begin with `premium-` and `admin-` are those of other tiers:
//!
//! ```sh
//! curl -i -H 'x-user-id: alice' http://127.0.0.1:3000/
//! curl -i -H 'x-user-id: premium-bob' http://127.0.0.1:3000/
//! curl -i http://127.0.0.1:3000/health                        # costs nothing
//! curl http://127.0.0.1:3000/metrics | grep tower_quota
//! curl -H 'authorization: Bearer secret' 'http://127.0.0.1:3000/admin/caller?user=alice'
//! ```
//!
//! Operators have a page, which asks for the same token: <http://127.0.0.1:3000/operators/>.
//!
//! An address that sends ten wrong tokens in an hour is rejected with 429. Behind proxies, `TRUSTED_PROXIES` has
//! their networks, such as `10.0.0.0/8,127.0.0.1`, and `FORWARDING_FIELD` the field that they write: `X-Forwarded-For` (the
//! default), `Forwarded`, or one with a single address, such as `X-Real-IP`. Without proxies no field is believed.
//!
//! Change `apps/platform/rules.json` meanwhile, or stop Redis. `admin.rs` has the other routes of administrators.
//!
//! Redis is at `REDIS_URL`, by default at `redis://127.0.0.1/`. `RULES` is the path of the file of rules. With `RULES_SET`,
//! all instances follow the rule set of this name in Redis, and the page of any of them changes the rules of all: those of
//! the file hold until the first version of the rule set is read. Without it, rules are those of this process. Without
//! `ADMIN_TOKEN` there are no administrators. `PORT` sets the port; 0 takes a free one.

mod admin;
pub(crate) mod blocks;
pub(crate) mod callers;
pub(crate) mod fleet;
pub(crate) mod metrics;
pub(crate) mod numbers;
mod page;
pub(crate) mod rejected;
pub(crate) mod rules;
#[path = "../page/mod.rs"]
mod shared;
mod state;
pub(crate) mod users;

use std::{env, error::Error, net::SocketAddr, path::PathBuf, time::Duration};

use axum::{Router, middleware, routing::get};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_quota::{
    AccessList, Exemption, Limiter, RateLimitLayer, RateLimitLayerBuilder, RedisStore, Tiers,
    key::{self, ClientIp, KeyExtractor},
    tier::{OnUnknownTier, TierLayer},
};
use tower_quota_fleet::{Contracts, FleetError};

use self::{
    admin::{Admin, RulesOf},
    blocks::Blocks,
    fleet::Fleet,
    numbers::Numbers,
    rejected::Rejected,
    rules::{RuleBook, RulesFile},
    users::User,
};

/// The scope of the limits.
const SCOPE: &str = "platform";

pub(crate) struct Settings {
    pub(crate) redis_url: String,
    /// The rule set in Redis that all instances follow. `None` if the rules are those of this process.
    pub(crate) rule_set: Option<String>,
    /// The rules of this process: until the first version of the fleet was read, or for good.
    pub(crate) rules: PathBuf,
    pub(crate) admin_token: Option<String>,
    /// The address of a client, for all that goes by address.
    pub(crate) client_ip: ClientIp,
    /// The longest time that a request waits for Redis. Then it passes uncounted.
    pub(crate) deadline: Duration,
    /// The time that the first requests of a user wait for its tier before they are counted in the first one.
    pub(crate) tier_wait: Duration,
}

impl Settings {
    /// `variable` has the environment variables.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../apps/platform/rules.json");
        Ok(Self {
            redis_url: variable("REDIS_URL").unwrap_or_else(|| "redis://127.0.0.1/".to_owned()),
            rule_set: variable("RULES_SET").filter(|name| !name.is_empty()),
            rules: variable("RULES").unwrap_or_else(|| rules.to_owned()).into(),
            admin_token: variable("ADMIN_TOKEN"),
            client_ip: users::client_ip(&variable)?,
            deadline: Duration::from_millis(50),
            tier_wait: Duration::from_secs(1),
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt::init();
    // Before the first request: a layer asks for its counters once.
    let prometheus = metrics::prometheus()?.install_recorder()?;
    tokio::spawn(metrics::upkeep(prometheus.clone()));

    let app = app(Settings::read(|name| env::var(name).ok())?, prometheus).await?;
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.map_err(|error| format!("port {port}: {error}; PORT sets another one"))?;
    tracing::info!("listening on http://{}/", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

pub(crate) async fn app(settings: Settings, prometheus: PrometheusHandle) -> Result<Router, Box<dyn Error>> {
    let access = AccessList::new(settings.client_ip.clone());
    let (file, json) = RulesFile::open(settings.rules.clone()).await?;
    let limits = limits(&settings, &json, &access)?;
    let (contracts, tiers) = tiers(&settings)?;

    let rules = match &settings.rule_set {
        Some(set) => RulesOf::Fleet(follow(set, &settings, &limits, &access)?),
        None => RulesOf::Instance(RuleBook::watching(file, limits.limiter().rules(), json)),
    };
    let (blocks, rejected) = (Blocks::new(access), Rejected::new());
    tokio::spawn(blocks.clone().watch());
    let numbers = Numbers::new(SCOPE, prometheus.clone());
    let admin = Admin {
        token: settings.admin_token.filter(|token| !token.is_empty()),
        rules,
        client_ip: settings.client_ip.clone(),
        handle: limits.limiter().rules(),
        limits: limits.limiter().clone(),
        tiers: tiers.cache().clone(),
        contracts,
        blocks,
        rejected: rejected.clone(),
        numbers: numbers.clone(),
    };

    // The first one of these sees a request first: who is it, which tier is theirs, what is left for them?
    let layers = ServiceBuilder::new()
        .layer(middleware::map_request(users::authenticate))
        .layer(middleware::from_fn_with_state(
            (rejected, settings.client_ip),
            rejected::observe,
        ))
        .layer(tiers)
        .layer(limits);
    let service = Router::new()
        .route("/", get(|| async { "Hello!\n" }))
        .route("/health", get(|| async { "Fine.\n" }))
        .layer(layers);

    // Outside of the limits. In production all of this belongs on a port that clients do not reach.
    if admin.token.is_some() {
        tokio::spawn(numbers.keep());
    }
    Ok(service
        .merge(page::router(admin.token.is_some()))
        .nest("/admin", admin::router(admin)?)
        .route("/metrics", get(async move || prometheus.render())))
}

/// The plans of users, and the contracts of those who have numbers of their own, on all instances that share the Redis.
fn tiers(settings: &Settings) -> Result<(Contracts, TierLayer), Box<dyn Error>> {
    let contracts = Contracts::new(RedisStore::builder(&settings.redis_url), SCOPE)?;
    let contracts = contracts.with_author("the operators' page");
    let table = contracts.clone();
    let tiers = TierLayer::by_extension(move |user| users::plan_of(user, table.clone()))
        .on_unknown_tier(OnUnknownTier::wait(settings.tier_wait))
        .build()?;
    let (table, cache) = (contracts.clone(), tiers.cache().clone());
    tokio::spawn(async move { table.follow(&cache).await });
    Ok((contracts, tiers))
}

fn follow(set: &str, settings: &Settings, limits: &RateLimitLayer, access: &AccessList) -> Result<Fleet, FleetError> {
    let file = settings.rules.display();
    tracing::warn!(set, %file, "the file of rules holds only until the first version of the rule set is read");
    Fleet::follow(set, &settings.redis_url, limits, access)
}

fn limits(settings: &Settings, rules: &str, access: &AccessList) -> Result<RateLimitLayer, Box<dyn Error>> {
    let store = RedisStore::new(&*settings.redis_url)?; // Redis need not be up yet
    let limits = RateLimitLayerBuilder::from(Limiter::builder(store).deadline(settings.deadline))
        .scope(SCOPE)
        .key(key::extension::<User>().or_else(settings.client_ip.clone()))
        .named_key("address", settings.client_ip.clone())
        .tiers(Tiers::resolved())
        .rules(serde_json::from_str(rules)?)
        .access_list(access.clone())
        .exempt(Exemption::path("/health"))
        .build()?;
    Ok(limits)
}
