//! Limit WebSocket messages.
//!
//! A layer processes the request that opens a connection, but not its messages. Limit these with a
//! [`Limiter`](crate::Limiter), and keep a [`Caller`](crate::Caller) for each connection: all connections of a user
//! share the quota.
//!
//! ```
//! use std::time::Duration;
//!
//! use futures_util::stream::{self, Stream, StreamExt};
//! use tokio::time::Instant;
//! use tower_quota::{Caller, Limiter, MemoryStore, QuotaPolicy};
//!
//! /// Handles the messages of a connection. Returns the close code if the server must close it.
//! async fn serve(
//!     mut messages: impl Stream<Item = String> + Unpin,
//!     user: Caller,
//!     mut handle: impl FnMut(String),
//! ) -> Result<(), u16> {
//!     while let Some(text) = messages.next().await {
//!         user.wait(Duration::from_secs(2)).await.map_err(|_| 1008_u16)?;
//!         handle(text);
//!     }
//!     Ok(())
//! }
//!
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
//! # set_up::run(async {
//! let store = MemoryStore::new();
//! # let store = MemoryStore::builder().clock(tower_quota::clock::Clock::tokio()).build()?;
//! let limiter = Limiter::builder(store)
//!     .scope("chat messages")
//!     .policy(QuotaPolicy::per_second("second", 5))
//!     .policy(QuotaPolicy::per_minute("minute", 20))
//! #   .clock(tower_quota::clock::Clock::tokio())
//!     .build()?;
//! let messages = |count: u32| stream::iter((0..count).map(|number| number.to_string()));
//!
//! // Fifteen messages at once: five pass immediately, and the others are delayed.
//! let (start, mut handled) = (Instant::now(), 0);
//! assert_eq!(serve(messages(15), limiter.caller("alice"), |_| handled += 1).await, Ok(()));
//! assert_eq!((handled, start.elapsed().as_secs()), (15, 2));
//!
//! // A flood also exhausts the quota of the minute: the client sees close code 1008 (policy violation).
//! assert_eq!(serve(messages(1_000), limiter.caller("mallory"), |_| {}).await, Err(1008));
//! # Ok(()) });
//! ```
//!
//! - **Clients slightly over the limit are slowed down**: the server stops reading, and TCP backpressure does the rest.
//!   Clients far over the limit are disconnected. To disconnect at the first excess message, use
//!   [`check`](crate::Caller::check) instead of [`wait`](crate::Caller::wait).
//! - **Open connections**: a [concurrency limit](crate::QuotaPolicy::concurrent) in a layer releases its slot right
//!   after the handshake. Acquire the [permit](crate::WeakPermit::upgrade) in the handler, and hold it as long as the
//!   connection.
//! - **Handshakes**: also limit them per minute in the layer, because rejected clients reconnect.
//! - **Browsers** cannot send an `Authorization` field with a WebSocket. Use a cookie, and check `Origin`.
//!
//! The example `websocket` has all of these. This is its handler in Axum, behind a layer with the concurrency limit:
//!
//! ```ignore
//! async fn connect(
//!     upgrade: WebSocketUpgrade,
//!     permit: WeakPermit,
//!     Extension(user): Extension<User>,
//!     State(messages): State<Limiter>,
//! ) -> Response {
//!     // The response with status 101 ends immediately, which would release the slot. Therefore, the permit holds the slot
//!     // for the duration of the connection. The permit is `None` if the request is uncounted because the store is
//!     // unavailable.
//!     let slot = permit.upgrade();
//!     // All connections of a user share the quota.
//!     let caller = messages.caller(&user);
//!     let upgrade = upgrade.max_frame_size(MAX_MESSAGE).max_message_size(MAX_MESSAGE);
//!     upgrade.on_upgrade(async move |mut socket| {
//!         converse(&mut socket, &caller).await;
//!         // Released before the socket closes, so that the client can reconnect as soon as it detects the close.
//!         drop(slot);
//!     })
//! }
//! ```
