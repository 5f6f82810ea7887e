//! A headless Chromium and an example of tower-quota, for tests of its page.
//!
//! The browser is driven by the Chrome DevTools Protocol over two pipes, so that neither a driver nor a WebSocket is needed.
//! Each call panics with the reason if the browser does not do what it is told: it is for tests only.

mod browser;
mod example;
mod redis;

pub use self::{
    browser::{Browser, Key, LOW_CONTRASTS},
    example::Example,
    redis::RedisServer,
};
