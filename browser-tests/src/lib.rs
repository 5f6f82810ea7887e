//! A headless Chromium and an app of tower-quota, for tests of its page.
//!
//! The browser is controlled over the Chrome DevTools Protocol through two pipes, so neither a driver nor a WebSocket
//! is needed. Each call panics with the reason if the browser does not do what is expected, because this crate is for
//! tests only.

mod app;
mod browser;
mod redis;

pub use self::{
    app::App,
    browser::{Browser, Key, LOW_CONTRASTS},
    redis::RedisServer,
};
