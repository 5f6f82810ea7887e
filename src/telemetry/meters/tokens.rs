//! The counters of anonymous tokens.

use std::sync::OnceLock;

use metrics::{Unit, counter, describe_counter};

use crate::telemetry::series::Series;

const CREDENTIALS: &str = "tower_quota_credentials_total";
const TOKENS: &str = "tower_quota_tokens_total";

/// Describes the metrics of anonymous tokens, which only programs with an origin or an issuer show.
fn register_tokens() {
    let credentials = "Requests for anonymous credentials by the answer";
    describe_counter!(CREDENTIALS, Unit::Count, credentials);
    let tokens = "Requests by the judgement of an origin of anonymous tokens";
    describe_counter!(TOKENS, Unit::Count, tokens);
}

/// The counters of one origin of anonymous tokens, or of one issuer of credentials.
#[derive(Debug, Default)]
pub(in crate::telemetry) struct TokenMeters(OnceLock<Series>);

impl TokenMeters {
    /// An origin has judged a request.
    pub(in crate::telemetry) fn judged(&self, policy: &str, outcome: &str) {
        self.series().increment(
            ["", policy, outcome],
            |[_, policy, outcome]| counter!(TOKENS, "policy" => policy.to_owned(), "outcome" => outcome.to_owned()),
        );
    }

    /// An issuer has answered a request for a credential.
    pub(in crate::telemetry) fn answered(&self, outcome: &str) {
        self.series().increment(
            ["", "", outcome],
            |[.., outcome]| counter!(CREDENTIALS, "outcome" => outcome.to_owned()),
        );
    }

    fn series(&self) -> &Series {
        self.0.get_or_init(|| {
            register_tokens();
            Series::default()
        })
    }
}
