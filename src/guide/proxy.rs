//! Limit clients behind a proxy.
//!
//! Behind a proxy, the peer of each connection is the proxy, so all its clients share one quota until you configure
//! which machines are proxies and which field they write. [`docs::proxies`](crate::docs::proxies) has the configuration
//! of both sides for each supported proxy, load balancer and CDN.
//!
//! ```
//! use std::error::Error;
//!
//! use axum::{Router, body::Body, http::Request, routing::get};
//! use tower::ServiceExt;
//! use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key::{self, ForwardingField, PeerAddress}};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let client = key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["10.0.0.0/24"]);
//!     let limits = RateLimitLayer::builder(MemoryStore::new())
//!         .scope("api")
//!         .key(client)
//!         .policy(QuotaPolicy::per_minute("minute", 1))
//!         .build()?;
//!     let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limits);
//!
//!     let (proxy, outsider) = ([10, 0, 0, 7], [203, 0, 113, 66]);
//!     for (peer, field, status) in [
//!         (proxy, "192.0.2.1", 200),
//!         (proxy, "192.0.2.2", 200),           // each client has its own quota
//!         (proxy, "1.1.1.1, 192.0.2.1", 429),  // the first entry is forged by the client, and ignored
//!         (outsider, "192.0.2.3", 200),        // counts against 203.0.113.66
//!         (outsider, "192.0.2.4", 429),        // not a proxy, so its field is ignored
//!     ] {
//!         let peer = PeerAddress((peer, 50_000).into());
//!         let request = Request::get("/").header("x-forwarded-for", field).extension(peer);
//!         assert_eq!(app.clone().oneshot(request.body(Body::empty())?).await?.status(), status);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! - **Trust as little as possible.** List the proxies, not a network that they share with other machines. Never stop
//!   the event [`proxy-not-named`](crate::docs::mistakes#proxy-not-named) by trusting all networks.
//! - **The proxy must append to the field or overwrite it.** If it forwards the field unchanged, the client controls
//!   it. Test with a forged value: [`explain`](crate::RateLimitLayer::explain) shows which address the layer uses.
//! - **Name the one field that your proxy writes**, and [all proxies](crate::docs::mistakes#second-proxy) of a chain.
//!   Otherwise, clients share one quota; an [event](crate::docs::mistakes#other-forwarding-field) reports another
//!   field.
//! - **Unreadable fields leave the client unknown**, so the request has no key. Do not configure
//!   [`MissingKey::Allow`](crate::MissingKey::Allow): a client can make its `Forwarded` field unreadable, and would
//!   then pass uncounted.
//!
//! [`no-peer-address`](crate::docs::mistakes#no-peer-address) lists the sources of the peer address in each server. The
//! example `reverse-proxy` is a proxy with limits.
