//! The operators' page: its files, which hold no secret and need no token.
//!
//! The page asks for the token, keeps it in its memory, and sends it in the `authorization` field of each request. A browser
//! adds that field to no request by itself, so a request that another site makes in the name of an operator (CSRF) has no
//! token; and since no preflight is answered, another site cannot send the field at all. A cookie would need a session, a
//! check of the origin and an end. The price: after a reload the token is typed again, or filled in by a password manager.

use axum::{
    Router,
    http::{HeaderValue, header},
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};

use super::shared;

/// Without administrators there is no page.
pub(crate) fn router(has_administrators: bool) -> Router {
    if !has_administrators {
        return Router::new();
    }
    Router::new()
        .route("/operators", get(redirect))
        .nest("/operators/", files())
}

fn files() -> Router {
    Router::new()
        .route("/", get(|| shared::html(include_str!("page/index.html"))))
        .route("/base.css", get(|| shared::style(shared::BASE_CSS)))
        .route(
            "/operators.css",
            get(|| shared::style(include_str!("page/operators.css"))),
        )
        .route("/canvas.js", get(|| shared::script(shared::CANVAS_JS)))
        .route(
            "/operators.js",
            get(|| shared::script(include_str!("page/operators.js"))),
        )
        .route("/history.js", get(|| shared::script(include_str!("page/history.js"))))
        .route("/charts.js", get(|| shared::script(include_str!("page/charts.js"))))
        .route("/rules.js", get(|| shared::script(include_str!("page/rules.js"))))
        .route("/fleet.js", get(|| shared::script(include_str!("page/fleet.js"))))
        .route("/words.js", get(|| shared::script(include_str!("page/words.js"))))
        .layer(middleware::map_response(protect))
}

/// Relative, because a proxy may serve the page under another path.
async fn redirect() -> impl IntoResponse {
    let to = HeaderValue::from_static("operators/");
    (axum::http::StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)])
}

pub(crate) async fn protect(mut response: Response) -> Response {
    shared::protect(response.headers_mut());
    response
}
