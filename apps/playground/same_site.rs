//! Allows requests from the page and from local programs, but not from other sites in the browser.

use std::net::SocketAddr;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, StatusCode, header};

use super::shared;

/// Rejects cross-site requests, and requests for other hosts, which DNS rebinding would cause.
pub(crate) async fn same_site(State(address): State<SocketAddr>, request: Request, next: Next) -> Response {
    if let Err(reason) = check(request.headers(), address) {
        return (StatusCode::FORBIDDEN, format!("{reason}\n")).into_response();
    }
    // The page displays the raw response of the limited route, so no fields are added.
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
    // Browsers send this field with every request, including those for images.
    match field(HeaderName::from_static("sec-fetch-site")) {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) => Err("This server answers its own page only, not other sites."),
    }
}
