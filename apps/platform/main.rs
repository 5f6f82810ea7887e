//! A complete deployment: limits in Redis, tiers from a file that can change at run time, admin routes, and a
//! Prometheus endpoint.
//!
//! ```sh
//! ADMIN_TOKEN=secret cargo run -p tower-quota-apps --features metrics --bin platform
//! ```
//!
//! Users whose names start with `premium-` or `admin-` have other tiers:
//!
//! ```sh
//! curl -i -H 'x-user-id: alice' http://127.0.0.1:3000/
//! curl -i -H 'x-user-id: premium-bob' http://127.0.0.1:3000/
//! curl -i http://127.0.0.1:3000/health                        # costs nothing
//! curl -H 'authorization: Bearer secret' http://127.0.0.1:3000/metrics | grep tower_quota
//! curl -H 'authorization: Bearer secret' 'http://127.0.0.1:3000/admin/caller?user=alice'
//! ```
//!
//! The operators' page requires the same token: <http://127.0.0.1:3000/operators/>.
//!
//! After ten wrong tokens per hour, the requests of an address are rejected with 429. Behind proxies, set
//! `TRUSTED_PROXIES` to their networks, such as `10.0.0.0/8,127.0.0.1`, and `FORWARDING_FIELD` to the field that they
//! send: `X-Forwarded-For` (the default), `Forwarded`, or a field with a single address, such as `X-Real-IP`. By
//! default, no field is trusted.
//!
//! You can edit `apps/platform/rules.json` or stop Redis while the service runs. The other admin routes are in
//! `admin.rs`.
//!
//! `REDIS_URL` is the URL of Redis (by default `redis://127.0.0.1/`), and `RULES` the path of the rules file. With
//! `RULES_SET`, all instances follow the rule set of this name in Redis, and the page of any instance changes the rules
//! of all instances. The file applies until the first version of the rule set is read. Without `RULES_SET`, the rules
//! belong to this process. Without `ADMIN_TOKEN`, there are no admin routes and no metrics. `PORT` sets the port; 0
//! selects a free one.

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

const SCOPE: &str = "platform";

pub(crate) struct Settings {
    pub(crate) redis_url: String,
    /// The rule set in Redis that all instances follow. `None` if the rules belong to this process.
    pub(crate) rule_set: Option<String>,
    /// The rules file. With a rule set, it applies until the first version is read.
    pub(crate) rules: PathBuf,
    pub(crate) admin_token: Option<String>,
    pub(crate) client_ip: ClientIp,
    /// Requests that wait longer for Redis pass uncounted.
    pub(crate) deadline: Duration,
    /// Requests that wait longer for the user's tier are counted in the first tier.
    pub(crate) tier_wait: Duration,
}

impl Settings {
    /// `variable` returns the value of an environment variable.
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
    // Installed before the first request, because a layer registers its counters only once.
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

    // In order of execution: authentication, the record of rejections, the tier lookup, the limits.
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

    // Not rate-limited. In production, serve these routes on an internal port.
    if admin.token.is_some() {
        tokio::spawn(numbers.keep());
    }
    Ok(service
        .merge(page::router(admin.token.is_some()))
        .merge(admin::router(admin, prometheus)?))
}

/// The plans of users, and the contracts with individual quotas, shared by all instances with the same Redis.
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
    let store = RedisStore::new(&*settings.redis_url)?; // Redis need not be running yet
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
