//! Cheap checks first, then the proof, then the tag.

use std::{sync::Arc, time::Duration};

use http::{Method, header, request::Parts};
use ipnet::IpNet;

use super::{
    Origin,
    forgeries::Charge,
    known::KnownGroups,
    spending::{Spent, TagInContext},
};
use crate::{IssuerKey, Token, token_from_headers, workers::Overloaded};

/// For queue turns and failed proofs while the verifier is busy.
const WIDE_PREFIX: u8 = 48;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenOutcome {
    Accepted,
    /// The reason is hidden from the client.
    Invalid,
    NoToken,
    Spent,
    TooManyFailures(Option<Duration>),
    Unavailable,
}

impl TokenOutcome {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Invalid => "invalid",
            Self::NoToken => "no_token",
            Self::Spent => "spent",
            Self::TooManyFailures(_) => "too_many_failures",
            Self::Unavailable => "unavailable",
        }
    }
}

pub(super) enum PreCheck {
    Pass,
    Proof(Box<Claim>),
    Rejected(TokenOutcome),
}

pub(super) struct Claim {
    key: IssuerKey,
    token: Token,
    network: Option<IpNet>,
    /// Two near a window boundary, if the token does not name its challenge.
    contexts: Vec<Contexts>,
}

#[derive(Clone)]
struct Contexts {
    request: Vec<u8>,
    presentation: Vec<u8>,
    tag: TagInContext,
}

impl Origin {
    /// Without curve arithmetic.
    pub(super) fn glance(&self, request: &Parts) -> PreCheck {
        match token_from_headers(&request.headers) {
            Ok(None) if self.is_optional || self.skips_cors_preflight && is_cors_preflight(request) => PreCheck::Pass,
            Ok(None) => PreCheck::Rejected(TokenOutcome::NoToken),
            Ok(Some(token)) => self
                .claim(token, request)
                .map_or_else(PreCheck::Rejected, |claim| PreCheck::Proof(claim.into())),
            Err(_) => PreCheck::Rejected(TokenOutcome::Invalid),
        }
    }

    fn claim(&self, token: Token, request: &Parts) -> Result<Claim, TokenOutcome> {
        let keys = self.keys.load();
        let known = keys.get(*token.key());
        let key = known.filter(|key| key.profile() == token.profile() && token.nonce() < self.limit);
        let key = key.ok_or(TokenOutcome::Invalid)?.clone();
        let contexts = self.contexts(&token);
        if contexts.is_empty() {
            return Err(TokenOutcome::Invalid);
        }
        // A client that repeats a token must not keep the verifier busy.
        if contexts.iter().any(|contexts| self.spending.knows(&contexts.tag)) {
            return Err(TokenOutcome::Spent);
        }
        let network = self.address.network(request);
        let network = network.and_then(|(first, length)| IpNet::new(first, length).ok());
        if network.is_none() {
            self.log.no_address();
        }
        Ok(Claim {
            key,
            token,
            network,
            contexts,
        })
    }

    fn contexts(&self, token: &Token) -> Vec<Contexts> {
        let (window, neighbour) = self.windows.accepted(self.clock.now());
        let windows = [Some(window), neighbour].into_iter().flatten();
        let challenges = windows.map(|window| self.windows.challenge(token.profile(), window));
        let is_meant = |digest: &[u8; 32]| token.challenge_digest().is_none_or(|meant| meant == digest);
        let answered = challenges.filter(|challenge| is_meant(&challenge.digest()));
        let contexts = answered.map(|challenge| {
            let presentation = challenge.presentation_context(token.key());
            Contexts {
                tag: self.spending.tag(&presentation, token.tag()),
                request: challenge.request_context(token.key()),
                presentation,
            }
        });
        contexts.collect()
    }

    pub(super) async fn judge(self: Arc<Self>, claim: Claim) -> TokenOutcome {
        let mut charges = Vec::new();
        for contexts in &claim.contexts {
            let verified = self.verify(&claim, contexts, &mut charges).await;
            match verified {
                Ok(true) => {
                    self.forgeries.give_back(charges);
                    return self.spend(&claim, &contexts.tag).await;
                }
                Ok(false) => {}
                Err(outcome) => return outcome,
            }
        }
        if let Some((known, network)) = self.known(&claim) {
            known.failed(&network, self.clock.now());
        }
        TokenOutcome::Invalid
    }

    fn known(&self, claim: &Claim) -> Option<(&KnownGroups, IpNet)> {
        self.known.as_ref().zip(claim.network)
    }

    /// Failures count only while the verifier is busy, because others behind the address may have valid tokens.
    async fn verify(
        &self,
        claim: &Claim,
        contexts: &Contexts,
        charges: &mut Vec<Charge>,
    ) -> Result<bool, TokenOutcome> {
        let wide = claim.network.map(widened);
        let is_busy = self.workers.is_half_full();
        if let Some(wide) = wide.filter(|_| is_busy) {
            let charge = self
                .forgeries
                .charge(&wide)
                .await
                .map_err(TokenOutcome::TooManyFailures)?;
            self.forgeries.give_back(charge);
        }
        let group = if is_busy { wide } else { claim.network };
        let known = self.known(claim);
        let is_known = known.is_some_and(|(known, network)| known.contains(&network, self.clock.now()));
        let turn = self.workers.turn(group, is_known).await;
        let turn = turn.map_err(|Overloaded| self.overloaded())?;
        // Charged as failed, but only when its turn comes, so that proofs that are not verified are not charged.
        if let Some(wide) = wide {
            match self.forgeries.charge(&wide).await {
                Ok(charge) => charges.extend(charge),
                Err(wait) if self.workers.is_half_full() => return Err(TokenOutcome::TooManyFailures(wait)),
                Err(_) => {}
            }
        }
        let verified = turn.run(claim.verification(contexts, self.limit)).await;
        verified.map_err(|Overloaded| self.overloaded())
    }

    async fn spend(&self, claim: &Claim, tag: &TagInContext) -> TokenOutcome {
        match self.spending.spend(tag, &self.log).await {
            Spent::Before => TokenOutcome::Spent,
            Spent::Now => {
                if let Some((known, network)) = self.known(claim) {
                    known.accepted(&network, self.clock.now());
                }
                TokenOutcome::Accepted
            }
            Spent::Unknown => TokenOutcome::Unavailable,
        }
    }

    fn overloaded(&self) -> TokenOutcome {
        self.log.overloaded(self.clock.now());
        TokenOutcome::Unavailable
    }
}

fn is_cors_preflight(request: &Parts) -> bool {
    request.method == Method::OPTIONS
        && request.headers.contains_key(header::ORIGIN)
        && request.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// A subscriber may have a whole /48, and use a new /64 for each token.
fn widened(network: IpNet) -> IpNet {
    match network {
        IpNet::V6(net) if net.prefix_len() > WIDE_PREFIX => {
            IpNet::new(net.addr().into(), WIDE_PREFIX).map_or(network, |wide| wide.trunc())
        }
        _ => network,
    }
}

impl Claim {
    fn verification(&self, contexts: &Contexts, limit: u32) -> impl FnOnce() -> bool + Send + 'static {
        let (key, token) = (self.key.clone(), self.token.clone());
        let Contexts {
            request, presentation, ..
        } = contexts.clone();
        move || {
            let verified = key.verify(token.presentation(), &request, &presentation, token.nonce(), limit);
            verified.is_ok()
        }
    }
}
