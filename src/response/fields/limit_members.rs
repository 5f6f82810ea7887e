//! The members of `RateLimit`, each up to its first number written once.

use sfv::ItemSerializer;

use super::{Form, shown::Shown};
use crate::{
    error::ConfigError,
    fields::{FieldError, draft11, in_between, push_integer},
    policy::QuotaPolicy,
};

/// The member of each policy, up to its first number.
#[derive(Debug, Default)]
pub(super) struct LimitMembers(Box<[LimitMember]>);

#[derive(Debug)]
struct LimitMember {
    policy: Box<str>,
    /// `"minute";r=`
    start: Box<str>,
}

impl LimitMembers {
    pub(super) fn new<'a>(
        form: Form,
        policies: impl Iterator<Item = &'a QuotaPolicy>,
        error: impl Fn(&QuotaPolicy, &FieldError) -> ConfigError,
    ) -> Result<Self, ConfigError> {
        let members = policies.map(|policy| {
            let start = start(form, policy.name()).map_err(|cause| error(policy, &cause))?;
            let policy = policy.name().into();
            Ok(LimitMember { policy, start })
        });
        members.collect::<Result<_, _>>().map(Self)
    }

    /// Appends a member to a list: `"minute";r=9;t=1`.
    pub(super) fn push(&self, form: Form, shown: &Shown<'_>, list: &mut String) {
        let before = list.len();
        if before > 0 {
            list.push_str(", ");
        }
        let name = shown.policy.name();
        match self.0.iter().find(|member| *member.policy == *name) {
            Some(member) => list.push_str(&member.start),
            // A store can answer by policies of its own.
            None => match start(form, name) {
                Ok(start) => list.push_str(&start),
                Err(_) => return list.truncate(before),
            },
        }
        push_integer(list, shown.remaining);
        if let Some(reset) = shown.reset {
            list.push_str(";t=");
            push_integer(list, reset);
        }
        if shown.policy.shows_partition_key {
            list.push_str(";pk=");
            let _ = ItemSerializer::with_buffer(list).bare_item(&shown.partition.shown_key()[..]);
        }
    }
}

/// The beginning of a member, as the dialect's own type writes it.
fn start(form: Form, name: &str) -> Result<Box<str>, FieldError> {
    let mut member = match form {
        Form::EditorsCopy => {
            let item = in_between::LimitItem::new(name)?.with_remaining(0)?;
            in_between::RateLimit::new([item])?.to_string()
        }
        _ => draft11::RateLimit::new([draft11::LimitItem::new(name, 0)?])?.to_string(),
    };
    member.pop();
    Ok(member.into())
}
