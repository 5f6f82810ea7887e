//! A tonic server.

use tonic::{
    Request, Status,
    transport::{Channel, Server, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower_quota::{
    MemoryStore, RateLimitLayer,
    key::{self, ForwardingField},
};

use crate::{limits_by, limits_of_both_kinds, listener};

/// The health service behind a layer, and a client for it.
async fn health_behind(limits: RateLimitLayer) -> HealthClient<Channel> {
    let (listener, address) = listener().await;
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(limits).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Channel::from_shared(format!("http://{address}"))
        .unwrap()
        .connect_lazy();
    HealthClient::new(channel)
}

async fn check(client: &mut HealthClient<Channel>, forwarded_for: &str) -> Result<(), Status> {
    let mut request = Request::new(HealthCheckRequest::default());
    request
        .metadata_mut()
        .insert("x-forwarded-for", forwarded_for.parse().unwrap());
    client.check(request).await.map(drop)
}

/// L32: the key is the address that tonic shows, or the layer would refuse every call.
#[tokio::test]
async fn a_grpc_client_is_served_up_to_its_limit() {
    for limits in limits_of_both_kinds(2) {
        let mut client = health_behind(limits).await;
        check(&mut client, "192.0.2.1").await.unwrap();
        check(&mut client, "192.0.2.2").await.unwrap();
        check(&mut client, "192.0.2.3").await.unwrap_err();
    }
}

/// L31: only a peer that was found, and is 127.0.0.1, makes the forwarded addresses count.
#[tokio::test]
async fn the_peer_address_is_that_of_tcp_connect_info() {
    let by_address = key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["127.0.0.1"]);
    let limits = limits_by(by_address, MemoryStore::new(), "api", 1).build().unwrap();
    let mut client = health_behind(limits).await;
    check(&mut client, "192.0.2.1").await.unwrap();
    check(&mut client, "192.0.2.2").await.unwrap();
    check(&mut client, "192.0.2.1").await.unwrap_err();
}
