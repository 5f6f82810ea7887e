use serde::{Deserialize, Serialize};

use super::field;
use tower_quota::{PartitionId, Rules};

/// Rules for a share of the callers, in a [`RulesDocument`](super::RulesDocument).
///
/// ```
/// use tower_quota::{PartitionKey, QuotaPolicy, Rules, Scope};
/// use tower_quota_fleet::Rollout;
///
/// let rules = Rules::new().policy(QuotaPolicy::per_minute("minute", 30));
/// let own_account = Scope::new("api").partition(&PartitionKey::new("x-user-id", "staff"));
/// let roll_out = Rollout::new(10, rules).with_partitions([own_account]);
/// assert_eq!(roll_out.percent(), 10);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "roll_out: a map with `percent` and `rules`")]
pub struct Rollout {
    #[serde(deserialize_with = "field::percent")]
    percent: u8,
    #[serde(default, with = "partitions", skip_serializing_if = "Vec::is_empty")]
    partitions: Vec<PartitionId>,
    #[serde(deserialize_with = "field::rules")]
    rules: Rules,
}

impl Rollout {
    /// Applies `rules` to `percent` percent of the callers, from 0 to 100.
    ///
    /// Every instance selects the same callers, and a larger share includes a smaller one.
    pub fn new(percent: u8, rules: Rules) -> Self {
        Self {
            percent,
            partitions: Vec::new(),
            rules,
        }
    }

    /// Also applies the rules to these callers, by the digests of their main keys, even with 0 percent.
    #[must_use]
    pub fn with_partitions(mut self, partitions: impl IntoIterator<Item = PartitionId>) -> Self {
        self.partitions = partitions.into_iter().collect();
        self
    }

    /// Returns the percentage, from 0 to 100.
    pub fn percent(&self) -> u8 {
        self.percent
    }

    /// Returns the individually selected callers.
    pub fn partitions(&self) -> &[PartitionId] {
        &self.partitions
    }

    /// Returns the rules of the rollout.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }
}

mod partitions {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use tower_quota::PartitionId;

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PartitionId>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let error = |text| D::Error::custom(format_args!("partitions: {text:?} is not 32 hexadecimal digits"));
        let partitions = texts.iter().map(|text| text.parse().map_err(|_| error(text)));
        partitions.collect()
    }

    pub(super) fn serialize<S: Serializer>(partitions: &[PartitionId], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(partitions.iter().map(ToString::to_string))
    }
}
