//! The configuration of the page, as JSON: policies, cost, failure mode and dialect.

use std::time::Duration;

use serde_json::{Value, json};
use tower_quota::{Algorithm, FailureMode, LegacyReset, QuotaPolicy, ResponseFields};

/// The page has space for three.
const MAX_POLICIES: usize = 3;
/// Each waiting request holds a connection.
const MAX_WAITING: u64 = 1_000;
/// The longest name that fits into the page.
const MAX_NAME: usize = 24;

/// The JSON names of the algorithms. The length of a queue comes from the policy.
pub(crate) const ALGORITHMS: [(&str, Algorithm); 7] = [
    ("token-bucket", Algorithm::TokenBucket),
    ("strict-token-bucket", Algorithm::StrictTokenBucket),
    ("fixed-window", Algorithm::FixedWindow),
    ("sliding-window-counter", Algorithm::SlidingWindowCounter),
    ("sliding-window-log", Algorithm::SlidingWindowLog),
    ("leaky-bucket-meter", Algorithm::LeakyBucketMeter),
    ("leaky-bucket-queue", Algorithm::LeakyBucketQueue { max_waiting: 5 }),
];

/// A choice of response fields: the value, and the code that creates it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialect {
    pub(crate) name: &'static str,
    pub(crate) code: &'static str,
    pub(crate) fields: fn() -> ResponseFields,
}

pub(crate) const DIALECTS: [Dialect; 7] = [
    Dialect {
        name: "draft-11",
        code: "ResponseFields::draft11()",
        fields: ResponseFields::draft11,
    },
    Dialect {
        name: "draft-11-and-06",
        code: "ResponseFields::draft11().with_draft06_limit()",
        fields: || ResponseFields::draft11().with_draft06_limit(),
    },
    Dialect {
        name: "in-between",
        code: "ResponseFields::in_between()",
        fields: ResponseFields::in_between,
    },
    Dialect {
        name: "draft-06",
        code: "ResponseFields::draft06()",
        fields: ResponseFields::draft06,
    },
    Dialect {
        name: "x-seconds",
        code: "ResponseFields::legacy(LegacyReset::DeltaSeconds)",
        fields: || ResponseFields::legacy(LegacyReset::DeltaSeconds),
    },
    Dialect {
        name: "x-unix-time",
        code: "ResponseFields::legacy(LegacyReset::UnixTime)",
        fields: || ResponseFields::legacy(LegacyReset::UnixTime),
    },
    Dialect {
        name: "none",
        code: "ResponseFields::none()",
        fields: ResponseFields::none,
    },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    Closed,
    Fallback,
    Open,
}

impl Outage {
    pub(crate) const ALL: [(&'static str, Self); 3] = [
        ("open", Self::Open),
        ("closed", Self::Closed),
        ("fallback", Self::Fallback),
    ];

    pub(crate) fn failure_mode(self) -> FailureMode {
        match self {
            Self::Closed => FailureMode::Closed,
            Self::Fallback | Self::Open => FailureMode::Open,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) policies: Vec<QuotaPolicy>,
    pub(crate) cost: u64,
    pub(crate) outage: Outage,
    pub(crate) dialect: Dialect,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            policies: vec![
                QuotaPolicy::new("burst", 5, Duration::from_secs(10)),
                QuotaPolicy::per_minute("minute", 20),
            ],
            cost: 1,
            outage: Outage::Open,
            dialect: DIALECTS[0],
        }
    }
}

impl Setup {
    /// # Errors
    ///
    /// Returns an error for missing or unknown values and wrong types. `build()` of the layer validates the rest.
    pub(crate) fn from_json(value: &Value) -> Result<Self, String> {
        let policies = value["policies"].as_array().ok_or("policies: a list is needed")?;
        if !(1..=MAX_POLICIES).contains(&policies.len()) {
            return Err(format!(
                "policies: {} of them; 1 to {MAX_POLICIES} have room here",
                policies.len()
            ));
        }
        let dialect = text(value, "dialect")?;
        let dialect = DIALECTS.into_iter().find(|known| known.name == dialect);
        Ok(Self {
            policies: policies.iter().map(policy_from_json).collect::<Result<_, _>>()?,
            cost: number(value, "cost")?,
            outage: known(&Outage::ALL, value, "outage")?,
            dialect: dialect.ok_or("dialect: it is unknown")?,
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        let outage = Outage::ALL.iter().find(|(_, outage)| *outage == self.outage);
        json!({
            "policies": self.policies.iter().map(policy_to_json).collect::<Vec<_>>(),
            "cost": self.cost,
            "outage": outage.map(|(name, _)| *name),
            "dialect": self.dialect.name,
        })
    }

    /// Returns `algorithm` with the settings of a configured policy, such as the length of a queue, if a policy has
    /// this algorithm.
    pub(crate) fn same_or(&self, algorithm: Algorithm) -> Algorithm {
        let mut own = self.policies.iter().map(QuotaPolicy::algorithm);
        own.find(|own| name_of(*own) == name_of(algorithm)).unwrap_or(algorithm)
    }

    /// Returns the policies with another algorithm. Only token buckets have a burst capacity.
    pub(crate) fn policies_under(&self, algorithm: Algorithm) -> impl Iterator<Item = QuotaPolicy> {
        let has_bursts = matches!(algorithm, Algorithm::TokenBucket | Algorithm::StrictTokenBucket);
        self.policies.iter().map(move |policy| {
            let name = policy.name().to_owned();
            let other = QuotaPolicy::new(name, policy.quota(), policy.window().unwrap_or_default());
            let other = other.with_algorithm(algorithm);
            match own_burst(policy).filter(|_| has_bursts) {
                Some(burst) => other.with_burst_capacity(burst),
                None => other,
            }
        })
    }
}

/// Returns the burst capacity of a token bucket, unless it is the default.
pub(crate) fn own_burst(policy: &QuotaPolicy) -> Option<u64> {
    let usual = match policy.algorithm() {
        Algorithm::TokenBucket => policy.quota(),
        Algorithm::StrictTokenBucket => policy.quota().div_ceil(2),
        _ => return None,
    };
    Some(policy.burst_capacity()).filter(|burst| *burst != usual)
}

pub(crate) fn name_of(algorithm: Algorithm) -> &'static str {
    let same = |known: &Algorithm| std::mem::discriminant(known) == std::mem::discriminant(&algorithm);
    let found = ALGORITHMS.iter().find(|(_, known)| same(known));
    found.map_or("unknown", |(name, _)| name)
}

fn policy_from_json(value: &Value) -> Result<QuotaPolicy, String> {
    let name = text(value, "name")?;
    if name.len() > MAX_NAME {
        return Err(format!("name: {} bytes; {MAX_NAME} have room here", name.len()));
    }
    let algorithm = match known(&ALGORITHMS, value, "algorithm")? {
        Algorithm::LeakyBucketQueue { .. } => {
            let max_waiting = number(value, "max_waiting")?;
            if max_waiting > MAX_WAITING {
                return Err(format!(
                    "max_waiting: {max_waiting}; here {MAX_WAITING} may wait at most"
                ));
            }
            Algorithm::LeakyBucketQueue { max_waiting }
        }
        algorithm => algorithm,
    };
    let window = Duration::from_secs(number(value, "window")?);
    let policy = QuotaPolicy::new(name.to_owned(), number(value, "quota")?, window).with_algorithm(algorithm);
    Ok(match value["burst"] {
        Value::Null => policy,
        _ => policy.with_burst_capacity(number(value, "burst")?),
    })
}

fn policy_to_json(policy: &QuotaPolicy) -> Value {
    let max_waiting = match policy.algorithm() {
        Algorithm::LeakyBucketQueue { max_waiting } => Some(max_waiting),
        _ => None,
    };
    json!({
        "name": policy.name(),
        "algorithm": name_of(policy.algorithm()),
        "quota": policy.quota(),
        "window": policy.window().map(|window| window.as_secs()),
        "burst": own_burst(policy),
        "max_waiting": max_waiting,
        "capacity": policy.burst_capacity(),
    })
}

pub(crate) fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str, String> {
    value[name].as_str().ok_or_else(|| format!("{name}: a text is needed"))
}

pub(crate) fn number(value: &Value, name: &str) -> Result<u64, String> {
    let number = value[name].as_u64();
    number.ok_or_else(|| format!("{name}: a whole number of 0 or more is needed"))
}

fn known<T: Copy>(known: &[(&str, T)], value: &Value, name: &str) -> Result<T, String> {
    let word = text(value, name)?;
    let found = known.iter().find(|(known, _)| *known == word);
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| format!("{name}: {word:?} is unknown"))
}
