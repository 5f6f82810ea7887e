//! The files of the operators' page, which contain no secrets and require no token.
//!
//! The page keeps the token in memory and sends it in the `authorization` field of each request. Browsers do not add
//! this field automatically, so cross-site requests (CSRF) have no token. Preflight requests fail, so other sites
//! cannot send the field at all. A cookie would require a session with an expiry and an origin check. The drawback:
//! after a reload, the operator or a password manager must enter the token again.

use axum::{
    Router,
    http::{HeaderValue, header},
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};

use super::shared;

/// Serves no page without administrators.
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
        .route("/network.js", get(|| shared::script(include_str!("page/network.js"))))
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
