//! The peer of the connection, from what servers leave in a request's extensions.

use std::net::SocketAddr;

use http::Extensions;
#[cfg(feature = "tonic")]
use tonic::transport::server::TcpConnectInfo;

/// The address at the other end of the connection: a request extension that a hyper server sets.
///
/// Set it on each request of a connection, from what `accept()` has returned; axum with `ConnectInfo` and tonic do
/// not need it. It comes before what they say, so it can also carry the address that a PROXY protocol header gave.
/// Nothing checks it: never take it from a header field.
///
/// ```
/// use std::net::SocketAddr;
/// use tower_quota::key::{self, PeerAddress};
///
/// # fn accept() -> SocketAddr { SocketAddr::from(([203, 0, 113, 9], 50_000)) }
/// let address = accept();
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(PeerAddress(address));
///
/// let (request, ()) = request.into_parts();
/// assert_eq!(key::client_ip().resolve(&request), Some(address.ip()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddress(pub SocketAddr);

pub(super) fn address(extensions: &Extensions) -> Option<SocketAddr> {
    let peer = extensions.get().map(|PeerAddress(address)| *address);
    #[cfg(feature = "axum")]
    let peer = peer.or_else(|| extensions.get().map(|axum::extract::ConnectInfo(address)| *address));
    // With TLS, tonic's server sets this one beside its `TlsConnectInfo`, which would need another feature of tonic.
    #[cfg(feature = "tonic")]
    let peer = peer.or_else(|| extensions.get::<TcpConnectInfo>()?.remote_addr());
    peer
}
