//! Only the page itself, and programs of this machine, may use the playground: no other site that the browser shows.

use std::net::SocketAddr;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, StatusCode, header};

use super::shared;

/// Rejects requests for another host, which a name of DNS that points here would bring, and requests of other sites.
pub(crate) async fn same_site(State(address): State<SocketAddr>, request: Request, next: Next) -> Response {
    if let Err(reason) = check(request.headers(), address) {
        return (StatusCode::FORBIDDEN, format!("{reason}\n")).into_response();
    }
    // The response of the limited route is shown as it comes, without what the page needs.
    let is_limited = request.uri().path() == "/try";
    let mut response = next.run(request).await;
    if !is_limited {
        shared::protect(response.headers_mut());
    }
    response
}

fn check(headers: &HeaderMap, address: SocketAddr) -> Result<(), &'static str> {
    let field = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = field(header::HOST).unwrap_or_default();
    let port = address.port();
    let hosts = [address.to_string(), format!("localhost:{port}")];
    let is_bare = port == 80 && ["127.0.0.1", "localhost"].contains(&host);
    if !is_bare && !hosts.iter().any(|known| known.eq_ignore_ascii_case(host)) {
        return Err("This server answers for 127.0.0.1 and localhost only.");
    }
    if field(header::ORIGIN).is_some_and(|origin| !origin.eq_ignore_ascii_case(&format!("http://{host}"))) {
        return Err("This server answers its own page only, not other origins.");
    }
    // A browser sends it with every request, one for a picture, too.
    match field(HeaderName::from_static("sec-fetch-site")) {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) => Err("This server answers its own page only, not other sites."),
    }
}
