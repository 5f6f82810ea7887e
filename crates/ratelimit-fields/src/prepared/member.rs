//! Members of `RateLimit`. The part of each member up to its first number is serialized once.

use sfv::ItemSerializer;

use super::{
    super::{Dialect, FieldError, draft11, in_between, syntax::push_integer},
    limit::{LimitReport, ReportedLimit},
    policy::PreparedPolicy,
};

#[derive(Debug, Default)]
pub(super) struct MemberStarts(Box<[MemberStart]>);

#[derive(Debug)]
struct MemberStart {
    policy: Box<str>,
    /// For example, `"minute";r=`.
    start: Box<str>,
    has_custom_unit: bool,
}

impl MemberStarts {
    pub(super) fn new(dialect: Dialect, policies: &[PreparedPolicy]) -> Result<Self, FieldError> {
        let starts = policies.iter().map(|policy| {
            let name = policy.item.name();
            let start = start(dialect, name).map_err(|error| error.of_policy(name))?;
            Ok(MemberStart {
                policy: name.into(),
                start,
                has_custom_unit: policy.has_custom_unit,
            })
        });
        starts.collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn is_custom(&self, policy: &str) -> bool {
        self.0
            .iter()
            .any(|member| member.has_custom_unit && *member.policy == *policy)
    }

    /// Appends a member such as `"minute";r=9;t=1` to a list.
    pub(super) fn push<R: LimitReport + ?Sized>(
        &self,
        dialect: Dialect,
        limit: &ReportedLimit<'_>,
        report: &R,
        list: &mut String,
    ) {
        let before = list.len();
        if before > 0 {
            list.push_str(", ");
        }
        match self.0.iter().find(|member| *member.policy == *limit.policy) {
            Some(member) => list.push_str(&member.start),
            // A report may contain limits of policies that were not prepared.
            None => match start(dialect, limit.policy) {
                Ok(start) => list.push_str(&start),
                Err(_) => return list.truncate(before),
            },
        }
        push_integer(list, limit.remaining);
        if let Some(reset) = limit.reset {
            list.push_str(";t=");
            push_integer(list, reset);
        }
        let key = limit.shows_partition_key.then(|| report.partition_key(limit.policy));
        if let Some(key) = key.flatten() {
            list.push_str(";pk=");
            let _ = ItemSerializer::with_buffer(list).bare_item(&key[..]);
        }
    }
}

/// Returns the start of a member, as serialized by the type of the dialect.
fn start(dialect: Dialect, name: &str) -> Result<Box<str>, FieldError> {
    let mut member = match dialect {
        Dialect::EditorsCopy => {
            let item = in_between::LimitItem::new(name)?.with_remaining(0)?;
            in_between::RateLimit::new([item])?.to_string()
        }
        _ => draft11::RateLimit::new([draft11::LimitItem::new(name, 0)?])?.to_string(),
    };
    member.pop();
    Ok(member.into())
}
