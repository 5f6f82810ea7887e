use std::{fmt, sync::Arc};

use tokio::{runtime::Handle, sync::watch, task::JoinSet};

use super::{Following, RulesFollower, poller::Poller, shared::Shared};
use crate::{
    error::{FleetError, FleetErrorKind},
    pause::between_polls,
    source::RulesSource,
    sync::random_number,
};
use tower_quota::{AccessList, RulesHandle, clock::Clock};

/// A builder for [`RulesFollower`] with optional settings.
#[must_use = "it follows nothing before `start` is called"]
pub struct RulesFollowerBuilder {
    rules: RulesHandle,
    source: Arc<dyn RulesSource>,
    access_list: Option<AccessList>,
    instance: String,
    clock: Clock,
}

impl RulesFollower {
    /// Returns a builder of a follower that applies the rules of `source` to `rules`.
    pub fn builder(rules: RulesHandle, source: impl RulesSource) -> RulesFollowerBuilder {
        RulesFollowerBuilder {
            rules,
            source: Arc::new(source),
            access_list: None,
            instance: String::new(),
            clock: Clock::system(),
        }
    }
}

impl RulesFollowerBuilder {
    /// Sets the layer's access list, to which the follower adds the entries of the fleet.
    ///
    /// Followers of several layers [can share a list](crate::guide). A dropped follower's entries
    /// [stay](tower_quota::updates::AccessOverlay::leave) until another one reads its own.
    ///
    /// Default: none. Entries then only cause a warning.
    pub fn access_list(mut self, access_list: AccessList) -> Self {
        self.access_list = Some(access_list);
        self
    }

    /// Sets this instance's name in reports, such as the host name: up to 64 printable ASCII characters.
    ///
    /// Default: a random number, which is also appended to a name.
    pub fn instance(mut self, name: impl Into<String>) -> Self {
        self.instance = name.into();
        self
    }

    /// Sets the clock that expires entries and orders, for tests. Default: the system clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Starts the follower in tasks of the current Tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns [`FleetErrorKind::Claimed`] if another source has claimed the rules, and [`FleetErrorKind::Config`]
    /// without a runtime or with an invalid instance name.
    pub fn start(self) -> Result<RulesFollower, FleetError> {
        let error = |message: String| FleetError::new(FleetErrorKind::Config, format!("rules follower: {message}"));
        let name = &self.instance;
        if name.len() > 64 || !name.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(error(format!(
                "instance {name:?} must have at most 64 printable ASCII characters"
            )));
        }
        let runtime = Handle::try_current().map_err(|_| error("must be started within a Tokio runtime".to_owned()))?;
        let claimed = |error| FleetError::from_config(FleetErrorKind::Claimed, "rules follower: ", error);
        let claim = self.rules.claim().map_err(claimed)?;
        let number = format!("{:016x}", random_number());
        let instance = match name.is_empty() {
            true => number,
            false => format!("{name}#{number}"),
        };
        let (sender, status) = watch::channel(Default::default());
        let (name, scope) = (self.source.name(), self.rules.scope());
        let overlay = self.access_list.map(|list| {
            let overlay = list.overlay();
            overlay
                .named(format!("rule set {name}"))
                .named(format!("scope {scope}"))
        });
        let shared = Arc::new(Shared::new(&self.rules, claim, overlay, self.clock, name, sender));
        let mut tasks = JoinSet::new();
        tasks.spawn_on(keep(Arc::clone(&shared)), &runtime);
        tasks.spawn_on(Poller::new(Arc::clone(&shared), self.source, instance).run(), &runtime);
        Ok(RulesFollower(Arc::new(Following {
            status,
            shared,
            _tasks: tasks,
        })))
    }
}

/// Expiry does not depend on the source.
async fn keep(shared: Arc<Shared>) {
    loop {
        shared.keep();
        between_polls().await;
    }
}

impl fmt::Debug for RulesFollowerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesFollowerBuilder")
            .field("source", &self.source)
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}
