//! Files and security headers shared by the pages of `platform` and `playground`.

use axum::response::IntoResponse;
use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Colors, forms and tables.
pub(crate) const BASE_CSS: &str = include_str!("base.css");

/// A high-resolution canvas, its axes, and one redraw per frame.
pub(crate) const CANVAS_JS: &str = include_str!("canvas.js");

/// Allows only scripts, styles and connections of this server. Forbids inline scripts and framing.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const FIELDS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

pub(crate) fn protect(fields: &mut HeaderMap) {
    for (name, value) in FIELDS {
        fields.insert(name, HeaderValue::from_static(value));
    }
}

pub(crate) async fn html(text: &'static str) -> impl IntoResponse {
    file("text/html; charset=utf-8", text)
}

pub(crate) async fn style(text: &'static str) -> impl IntoResponse {
    file("text/css", text)
}

pub(crate) async fn script(text: &'static str) -> impl IntoResponse {
    file("text/javascript", text)
}

fn file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind)], text)
}
