//! The issuer, and an origin with two instances.

use std::{net::SocketAddr, time::Duration};

use axum::{Router, extract::Request, http::header, middleware, routing::get};
use tokio::{net::TcpListener, task::JoinSet};
use tower::ServiceBuilder;
use tower_quota::{
    Exemption, MemoryStore, MissingKey, PartitionKey, QuotaPolicy, RateLimitLayer, RedisStore, Store, ToPartitionKey,
    key,
};
use tower_quota_anonymous::{AcceptedToken, Directory, Issuer, KeySet, OriginLayer, Profile};

use super::{Failure, listen};

/// Tokens per credential and hour.
pub(crate) const LIMIT: u32 = 3;

/// Requests without a token per address and hour.
pub(crate) const ADDRESS: u64 = 2;

const HOUR: Duration = Duration::from_secs(3_600);

/// All servers and their hosts, with ports.
pub(crate) struct Site {
    pub(crate) issuer: String,
    pub(crate) origins: [String; 2],
    /// The address of the store for spent tokens.
    pub(crate) store: String,
    pub(crate) keys: KeySet,
    servers: JoinSet<std::io::Result<()>>,
}

impl Site {
    /// Starts the servers. Counts are stored in this Redis, or in memory.
    pub(crate) async fn start(port: u16, redis_url: Option<String>) -> Result<Self, Failure> {
        let following = |offset| {
            if port == 0 {
                Ok(0)
            } else {
                port.checked_add(offset).ok_or("PORT is too large")
            }
        };
        let issuer = listen(port).await?;
        let instances = [listen(following(1)?).await?, listen(following(2)?).await?];
        let names =
            [&instances[0], &instances[1]].map(|listener| listener.local_addr().map(|address| address.to_string()));
        let [first, second] = names;
        let (name, names) = (issuer.local_addr()?.to_string(), [first?, second?]);

        // Issuer and origins need the same keys, and all instances the same secret. In production, load both from a
        // secret store.
        let mut keys = KeySet::new();
        keys.insert(keys.generate(Profile::P256)?, ..);
        let mut servers = JoinSet::new();
        serve(&mut servers, issuer, issuer_routes(keys.clone())?);
        // The instances share this store, the keys and the secret. In production, use a Redis without eviction.
        let in_memory = MemoryStore::new();
        for instance in instances {
            let routes = match &redis_url {
                Some(url) => origin_routes(&name, &names, keys.clone(), RedisStore::new(url.as_str())?)?,
                None => origin_routes(&name, &names, keys.clone(), in_memory.clone())?,
            };
            serve(&mut servers, instance, routes);
        }
        Ok(Self {
            issuer: name,
            origins: names,
            store: redis_url.unwrap_or_else(|| "in memory; REDIS_URL says where a Redis is".to_owned()),
            keys,
            servers,
        })
    }

    /// Runs the servers until one of them fails.
    pub(crate) async fn serve(mut self) -> Result<(), Failure> {
        while let Some(ended) = self.servers.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// The account that authentication inserts into a request to the issuer.
#[derive(Clone)]
struct Account(String);

impl ToPartitionKey for Account {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("account", &*self.0)
    }
}

/// The issuer grants each account one credential per day, and is the only server that knows the clients.
fn issuer_routes(keys: KeySet) -> Result<Router, Failure> {
    let ration = RateLimitLayer::builder(MemoryStore::new())
        .scope("credentials")
        .key(key::extension::<Account>())
        .on_missing_key(MissingKey::Reject)
        .policy(QuotaPolicy::per_day("credentials", 1))
        .build()?;
    let issuer = Issuer::builder(ration).keys(keys).build()?;
    Ok(Router::new()
        .route_service(Directory::PATH, issuer.clone())
        .route_service(issuer.request_path(), issuer.clone())
        .layer(middleware::map_request(log_in)))
}

/// A stand-in for authentication, which trusts any account name.
async fn log_in(mut request: Request) -> Request {
    let value = request.headers().get(header::AUTHORIZATION);
    let login = value.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    if let Some(account) = login.map(|login| Account(login.to_owned())) {
        request.extensions_mut().insert(account);
    }
    request
}

/// Counts requests with a token by the token, and others by address.
fn origin_routes(issuer: &str, names: &[String], keys: KeySet, store: impl Store + Clone) -> Result<Router, Failure> {
    let origin = OriginLayer::builder(issuer, b"thirty-two bytes that are secret").keys(keys);
    let origin = names.iter().fold(origin, |origin, name| origin.origin(name));
    let tokens = origin
        .policy("anonymous", LIMIT, HOUR)
        .optional()
        .store(store.clone())
        .build()?;
    let by_address = RateLimitLayer::builder(store)
        .scope("anonymous example")
        .key(key::client_ip())
        .policy(QuotaPolicy::per_hour("address", ADDRESS))
        .exempt(Exemption::when(|request| {
            request.extensions.get::<AcceptedToken>().is_some()
        }))
        .build()?;
    let layers = ServiceBuilder::new().layer(tokens).layer(by_address);
    Ok(Router::new().route("/", get(|| async { "Hello!\n" })).layer(layers))
}

fn serve(servers: &mut JoinSet<std::io::Result<()>>, listener: TcpListener, routes: Router) {
    let service = routes.into_make_service_with_connect_info::<SocketAddr>();
    servers.spawn(async { axum::serve(listener, service).await });
}
