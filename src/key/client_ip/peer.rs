use std::net::SocketAddr;

use http::Extensions;
#[cfg(feature = "tonic")]
use tonic::transport::server::TcpConnectInfo;

/// The peer address of the connection, a request extension for hyper servers to set.
///
/// Set it on each request of a connection, to the address returned by `accept()`. It takes precedence over axum's
/// `ConnectInfo` and tonic's address, so it can also contain the address from a PROXY protocol header. It is trusted
/// unconditionally: never take it from a header field.
///
/// ```
/// use std::net::SocketAddr;
/// use http::Request;
/// use tower_quota::key::PeerAddress;
///
/// /// Called for each request of a connection from `peer`.
/// fn set_peer<B>(request: &mut Request<B>, peer: SocketAddr) {
///     request.extensions_mut().insert(PeerAddress(peer));
/// }
/// # let mut request = Request::new(String::new());
/// # set_peer(&mut request, SocketAddr::from(([203, 0, 113, 9], 50_000)));
/// # assert_eq!(tower_quota::key::client_ip().resolve(&request.into_parts().0), "203.0.113.9".parse().ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddress(pub SocketAddr);

pub(super) fn address(extensions: &Extensions) -> Option<SocketAddr> {
    let peer = extensions.get().map(|PeerAddress(address)| *address);
    #[cfg(feature = "axum")]
    let peer = peer.or_else(|| extensions.get().map(|axum::extract::ConnectInfo(address)| *address));
    // With TLS, tonic's server sets `TcpConnectInfo` in addition to `TlsConnectInfo`, which would require another
    // feature of tonic.
    #[cfg(feature = "tonic")]
    let peer = peer.or_else(|| extensions.get::<TcpConnectInfo>()?.remote_addr());
    peer
}
