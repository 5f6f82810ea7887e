//! Strangers who send forged tokens, and the honest clients beside them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::mpsc,
    time::Duration,
};

use futures_util::{
    future::{FutureExt, join_all},
    poll,
};
use tokio::task::spawn_blocking;
use tower_quota::QuotaPolicy;
use tower_quota_anonymous::{OriginLayerBuilder, Profile, Token, TokenChallenge};

use crate::{
    holder::{Holder, forged, with_token},
    origin::{Site, from},
};

const STRANGER: [u8; 4] = [192, 0, 2, 1];

/// An origin with one verifier thread, and places for eight tokens behind it.
struct Flooded {
    site: Site,
    challenge: TokenChallenge,
    holder: Holder,
    bad: Token,
    next_nonce: u32,
}

impl Flooded {
    async fn with(set: impl FnOnce(OriginLayerBuilder) -> OriginLayerBuilder) -> Self {
        let site = Site::with(Profile::P256, |builder| {
            set(builder
                .policy("anonymous", 100, Duration::from_secs(60))
                .max_queued(8)
                .failed_proofs(QuotaPolicy::per_second("failed", 10_000)))
        });
        let (site, challenge, holder) = site.with_holder().await;
        Self {
            bad: forged(&site.issuer.holder(&challenge).token(&challenge, 0)),
            site,
            challenge,
            holder,
            next_nonce: 0,
        }
    }

    /// Returns the statuses of requests with forged tokens from these addresses, and of honest requests sent
    /// immediately after them.
    ///
    /// All requests arrive before the first proof is verified.
    async fn send<A: Into<IpAddr>, H: Into<IpAddr>>(
        &mut self,
        strangers: impl IntoIterator<Item = A>,
        honest: impl IntoIterator<Item = H>,
    ) -> (BTreeMap<u16, usize>, Vec<u16>) {
        let forged = strangers
            .into_iter()
            .map(|address| with_token(from(address), &self.bad));
        let mut requests: Vec<_> = forged.collect();
        let strangers = requests.len();
        for address in honest {
            let token = self.holder.token(&self.challenge, self.next_nonce);
            self.next_nonce += 1;
            requests.push(with_token(from(address), &token));
        }
        let (open, is_open) = mpsc::channel::<()>();
        let gate = spawn_blocking(move || is_open.recv().is_err());
        let mut all = join_all(requests.into_iter().map(|request| self.site.status(request).boxed()));
        assert!(poll!(&mut all).is_pending());
        drop(open);
        let mut statuses = all.await;
        assert!(gate.await.unwrap());
        let honest = statuses.split_off(strangers);
        let mut counts = BTreeMap::new();
        for status in statuses {
            *counts.entry(status).or_insert(0) += 1;
        }
        (counts, honest)
    }
}

/// A runtime whose only blocking thread can be kept busy.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(1)
        .build();
    runtime.unwrap().block_on(test);
}

fn nobody() -> [IpAddr; 0] {
    []
}

/// Addresses of the documentation networks that were never used before.
fn fresh(used: &mut u32, count: u32) -> Vec<[u8; 4]> {
    *used += count;
    (*used - count..*used)
        .map(|number| (0x0a00_0000 + number).to_be_bytes())
        .collect()
}

#[test]
fn tokens_of_an_address_pass_beside_forged_ones_while_the_verifier_is_idle() {
    run(async {
        let mut origin = Flooded::with(|builder| builder.failed_proofs(QuotaPolicy::per_minute("failed", 60))).await;
        for _ in 0..125 {
            assert_eq!(origin.send([STRANGER], nobody()).await.0, BTreeMap::from([(401, 1)]));
        }
        for round in 0..24 {
            let answered = origin.send([STRANGER; 2], [STRANGER]).await;
            assert_eq!(answered, (BTreeMap::from([(401, 2)]), vec![200]), "{round}");
        }
    });
}

/// Section 10 of the design: a failed proof is charged, and a right one is refunded.
#[test]
fn an_address_with_too_many_failed_proofs_waits_while_the_verifier_is_half_full() {
    run(async {
        let mut origin = Flooded::with(|builder| builder.failed_proofs(QuotaPolicy::per_minute("failed", 2))).await;
        let elsewhere = (1..=7).map(|number| IpAddr::from([198, 51, 100, number]));
        for _ in 0..3 {
            let (_, honest) = origin.send(nobody(), elsewhere.clone().chain([STRANGER.into()])).await;
            assert_eq!(honest, [200; 8]);
        }
        for _ in 0..3 {
            let sent = origin.send([STRANGER], [STRANGER]).await;
            assert_eq!(sent, (BTreeMap::from([(401, 1)]), vec![200]));
        }
        let honest = elsewhere.chain([STRANGER.into(), IpAddr::from([198, 51, 100, 8])]);
        let (_, honest) = origin.send(nobody(), honest).await;
        assert_eq!(honest, [200, 200, 200, 200, 200, 200, 200, 429, 200]);
        // A request that needs no proof is not counted.
        assert_eq!(origin.site.status(from(STRANGER)).await, 401);
    });
}

#[test]
fn a_stranger_who_fills_the_queue_leaves_others_their_places() {
    run(async {
        let mut origin = Flooded::with(|builder| builder).await;
        let honest = (1..=6).map(|number| [198, 51, 100, number]);
        for _ in 0..5 {
            let (forged, passed) = origin.send([STRANGER; 60], honest.clone()).await;
            assert_eq!(passed, [200; 6]);
            // One request has the thread, and two of eight have kept their places in the queue.
            assert_eq!(forged, BTreeMap::from([(401, 3), (503, 57)]));
        }
    });
}

#[test]
fn from_half_full_on_a_network_of_48_bits_has_one_line() {
    run(async {
        let mut origin = Flooded::with(OriginLayerBuilder::without_reserved_places).await;
        let strangers = (0..60).map(|number| Ipv6Addr::new(0x2001, 0xdb8, 7, number, 0, 0, 0, 1));
        let honest = [8, 9, 10].map(|site| Ipv6Addr::new(0x2001, 0xdb8, site, 0, 0, 0, 0, 1));
        let (_, passed) = origin.send(strangers, honest).await;
        assert_eq!(passed, [200; 3]);
    });
}

#[test]
fn addresses_with_an_accepted_token_keep_their_places_in_a_flood_from_many_addresses() {
    run(async {
        for is_reserved in [true, false] {
            let set = |builder: OriginLayerBuilder| match is_reserved {
                true => builder,
                false => builder.without_reserved_places(),
            };
            let (mut origin, mut used) = (Flooded::with(set).await, 0);
            let honest: Vec<_> = (1..=12).map(|number| [198, 51, 100, number]).collect();
            for address in &honest {
                assert_eq!(origin.send(nobody(), [*address]).await.1, [200]);
            }
            for address in honest {
                let (forged, passed) = origin.send(fresh(&mut used, 40), [address]).await;
                assert_eq!(passed, [if is_reserved { 200 } else { 503 }]);
                let verified = if is_reserved { 8 } else { 9 };
                assert_eq!(forged, BTreeMap::from([(401, verified), (503, 40 - verified)]));
            }
        }
    });
}

#[test]
fn three_failed_proofs_end_the_reservation_of_an_address() {
    run(async {
        let (mut origin, mut used) = (Flooded::with(|builder| builder).await, 0);
        for (failed, status) in [(2, 200), (3, 503)] {
            assert_eq!(origin.send(nobody(), [STRANGER]).await.1, [200]);
            for _ in 0..failed {
                origin.send([STRANGER], nobody()).await;
            }
            let (_, passed) = origin.send(fresh(&mut used, 40), [STRANGER]).await;
            assert_eq!(passed, [status]);
        }
    });
}
