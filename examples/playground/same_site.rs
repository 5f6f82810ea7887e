//! Only the page itself, and programs of this machine, may use the example: no other site that the browser shows.

use std::net::SocketAddr;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

/// Scripts, styles and connections of this server only, and no frame around it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const FIELDS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Rejects requests for another host, which a name of DNS that points here would bring, and requests of other sites.
pub(crate) async fn same_site(State(address): State<SocketAddr>, request: Request, next: Next) -> Response {
    if let Err(reason) = check(request.headers(), address) {
        return (StatusCode::FORBIDDEN, format!("{reason}\n")).into_response();
    }
    // The response of the limited route is shown as it comes, without what the page needs.
    let is_limited = request.uri().path() == "/try";
    let mut response = next.run(request).await;
    for (name, value) in FIELDS.into_iter().filter(|_| !is_limited) {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
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
