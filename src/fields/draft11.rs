//! The dialect of draft-ietf-httpapi-ratelimit-headers-11, written as RFC 9651 says.
//!
//! Names are Strings, partition keys are Byte Sequences. It is what this crate writes, and what you want unless your
//! clients know something older.
//!
//! ```
//! use tower_quota::fields::draft11::RateLimit;
//!
//! let field = RateLimit::parse([r#""burst";r=9;t=1, "daily";r=4999;t=86383"#])?;
//! assert_eq!(field.items()[1].name(), "daily");
//! assert_eq!(field.items()[1].remaining(), 4999);
//! # Ok::<_, tower_quota::fields::FieldError>(())
//! ```

mod limit;
mod names;
mod policy;

pub use self::{
    limit::{LimitItem, RateLimit},
    policy::{PolicyItem, RateLimitPolicy},
};

use http::HeaderValue;
use sfv::{Integer, KeyRef, ListSerializer, StringRef};

use crate::{
    decision::Decision,
    quota::{CheckedPolicies, QuotaUnit},
};

use super::whole_seconds;

const AVAILABLE_QUOTA: &KeyRef = KeyRef::constant("r");
const EFFECTIVE_WINDOW: &KeyRef = KeyRef::constant("t");
const QUOTA: &KeyRef = KeyRef::constant("q");
const QUOTA_UNIT: &KeyRef = KeyRef::constant("qu");
const WINDOW: &KeyRef = KeyRef::constant("w");

/// `"burst";q=10;w=1, "daily";q=5000;w=86400`. It depends on the configuration only, so it is written once.
pub(crate) fn policy_field(policies: &CheckedPolicies) -> Option<HeaderValue> {
    let mut list = ListSerializer::new();
    for policy in policies {
        let policy = policy.policy();
        let item = list.bare_item(name(policy.name()));
        let mut item = item.parameter(QUOTA, integer(policy.quota()));
        if let Some(unit) = unit(policy.unit()) {
            item = item.parameter(QUOTA_UNIT, unit);
        }
        if let Some(window) = policy.window() {
            let _ = item.parameter(WINDOW, integer(window.as_secs()));
        }
    }
    value(list.finish()?)
}

/// `"burst";r=9;t=1, "daily";r=4999;t=86383`. A list without members is not sent at all.
pub(crate) fn limit_field(decision: &Decision) -> Option<HeaderValue> {
    // Names are short, and a list that fits is not copied while it grows.
    let mut field = String::with_capacity(128);
    let mut list = ListSerializer::with_buffer(&mut field);
    for allowance in decision.allowances() {
        let item = list.bare_item(name(allowance.policy().name()));
        let item = item.parameter(AVAILABLE_QUOTA, integer(allowance.remaining()));
        if let Some(reset) = allowance.reset() {
            let _ = item.parameter(EFFECTIVE_WINDOW, integer(whole_seconds(reset)));
        }
    }
    list.finish()?;
    value(field)
}

/// Requests are the default, which is left out.
fn unit(unit: QuotaUnit) -> Option<&'static StringRef> {
    match unit {
        QuotaUnit::Requests => None,
        QuotaUnit::ContentBytes(_) => Some(StringRef::constant("content-bytes")),
        QuotaUnit::ConcurrentRequests => Some(StringRef::constant("concurrent-requests")),
    }
}

fn value(list: String) -> Option<HeaderValue> {
    HeaderValue::try_from(list).ok()
}

fn name(name: &str) -> &StringRef {
    StringRef::from_str(name).expect("build() refuses names that are not printable ASCII")
}

fn integer(number: u64) -> Integer {
    Integer::try_from(number).unwrap_or(Integer::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        QuotaPolicy,
        clock::{Clock, Timestamp},
        partition::{PartitionKey, Scope},
        plan::Plan,
        store::{Store, memory::MemoryStore},
    };

    fn policies_of(policies: Vec<QuotaPolicy>) -> String {
        let policies = CheckedPolicies::new(policies).unwrap();
        policy_field(&policies).unwrap().to_str().unwrap().to_owned()
    }

    /// Takes `requests` units at one moment, waits, takes one more and shows the field of that.
    fn limits_of(policies: Vec<QuotaPolicy>, requests: u64, wait: Duration) -> String {
        let clock = Clock::manual(Timestamp::from_micros(1_000_000));
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let policies = CheckedPolicies::new(policies).unwrap();
        let partition = Scope::new("test").partition(&PartitionKey::new("user", "alice"));
        let acquire = |cost| {
            let future = store.acquire(Plan::new(policies.clone(), partition, cost));
            future.into_ready().unwrap().unwrap()
        };
        acquire(requests);
        clock.advance(wait);
        limit_field(&acquire(1)).unwrap().to_str().unwrap().to_owned()
    }

    /// A1, A2, A3, A9, A15
    #[test]
    fn policies_are_one_list_in_the_form_of_the_draft() {
        let policies = vec![
            QuotaPolicy::new("burst", 100, Duration::from_secs(60)),
            QuotaPolicy::per_day("daily", 1_000),
        ];
        assert_eq!(policies_of(policies), r#""burst";q=100;w=60, "daily";q=1000;w=86400"#);
        assert_eq!(
            policies_of(vec![QuotaPolicy::new("default", 100, Duration::from_secs(10))]),
            r#""default";q=100;w=10"#
        );
    }

    /// A24
    #[test]
    fn quotes_and_backslashes_in_names_are_escaped() {
        assert_eq!(
            policies_of(vec![QuotaPolicy::per_second(r#"a"b\c"#, 1)]),
            r#""a\"b\\c";q=1;w=1"#
        );
    }

    /// A1
    #[test]
    fn nothing_to_show_is_no_field() {
        assert_eq!(limit_field(&Decision::unmeasured(crate::Outcome::FailedOpen)), None);
    }

    /// B1, B2, B4, B6: a charge of one from a full bucket of ten.
    #[test]
    fn limits_show_the_units_left_and_the_seconds_for_them_rounded_up() {
        let ten = || vec![QuotaPolicy::per_second("default", 10)];
        assert_eq!(limits_of(ten(), 0, Duration::ZERO), r#""default";r=9;t=1"#);
        // 3.9 units are three.
        assert_eq!(limits_of(ten(), 6, Duration::from_millis(90)), r#""default";r=3;t=1"#);
    }

    /// B14: the values of the draft's examples come out letter by letter.
    #[test]
    fn values_of_the_examples_are_written_letter_by_letter() {
        let per =
            |name: &'static str, quota, seconds| vec![QuotaPolicy::new(name, quota, Duration::from_secs(seconds))];
        let micros = Duration::from_micros;
        // One left of a rate of one in seven seconds.
        let default = vec![QuotaPolicy::new("default", 1, Duration::from_secs(7)).with_burst_capacity(2)];
        assert_eq!(limits_of(default, 0, Duration::ZERO), r#""default";r=1;t=7"#);
        assert_eq!(
            limits_of(per("default", 1, 48), 0, Duration::ZERO),
            r#""default";r=0;t=48"#
        );
        assert_eq!(
            limits_of(per("fixedwindow", 100, 50), 0, micros(0)),
            r#""fixedwindow";r=99;t=50"#
        );
        assert_eq!(limits_of(per("dynamic", 10, 55), 0, micros(0)), r#""dynamic";r=9;t=50"#);
        assert_eq!(
            limits_of(per("day", 101, 36_360), 0, micros(0)),
            r#""day";r=100;t=36000"#
        );
    }

    /// X12: with nothing left, `t` is the wait for the next unit, not for a full bucket.
    #[test]
    fn an_empty_bucket_shows_the_wait_for_its_next_unit() {
        let daily = || vec![QuotaPolicy::per_day("daily", 10)];
        assert_eq!(limits_of(daily(), 9, Duration::ZERO), r#""daily";r=0;t=8640"#);
        assert_eq!(
            limits_of(daily(), 10, Duration::from_secs(640)),
            r#""daily";r=0;t=8000"#
        );
    }
}
