//! Settings of a follower.

use std::{fmt, path::PathBuf, sync::Arc};

use tokio::{runtime::Handle, sync::watch, task::JoinSet};

use super::{Following, RulesFollower, keeper::Keeper, poller::Poller, shared::Shared};
use crate::{
    error::{FleetError, FleetErrorKind},
    source::RulesSource,
    sync::random_number,
};
use tower_quota::{AccessList, RulesHandle, clock::Clock};

/// Settings of a [`RulesFollower`]. All have a default.
#[must_use = "it follows nothing before it is started"]
pub struct RulesFollowerBuilder {
    rules: RulesHandle,
    source: Arc<dyn RulesSource>,
    access_list: Option<AccessList>,
    instance: String,
    override_file: Option<PathBuf>,
    clock: Clock,
}

impl RulesFollower {
    /// A follower with settings of your own, which begins when it is [started](RulesFollowerBuilder::start).
    pub fn builder(rules: RulesHandle, source: impl RulesSource) -> RulesFollowerBuilder {
        RulesFollowerBuilder {
            rules,
            source: Arc::new(source),
            access_list: None,
            instance: String::new(),
            override_file: None,
            clock: Clock::system(),
        }
    }
}

impl RulesFollowerBuilder {
    /// Sets the access list that is to hold the fleet's rules: that of the layer.
    ///
    /// Without one, the rules of a document about networks and keys have no effect, which an event says.
    ///
    /// Followers of several layers may have the same list. It then has the rules of all their documents, and each of the
    /// layers looks at all of them: the most specific network wins, and where two documents say different things about the
    /// same network or key, [`Block`](tower_quota::Access::Block) goes before [`Allow`](tower_quota::Access::Allow), and that before
    /// [`Limit`](tower_quota::Access::Limit).
    ///
    /// When a follower ends, its rules stay until another one of the same rule set or the same scope reads a document, so that
    /// no blocked client gets through while a follower is replaced. See [`AccessOverlay::leave`](tower_quota::AccessOverlay::leave).
    pub fn access_list(mut self, access_list: AccessList) -> Self {
        self.access_list = Some(access_list);
        self
    }

    /// Sets the name of this instance for those who look at the fleet: its host, say, with up to 64 printable ASCII
    /// characters. A random number is added, so that names need not differ. Default: the number alone.
    pub fn instance(mut self, name: impl Into<String>) -> Self {
        self.instance = name.into();
        self
    }

    /// Sets a file that turns the switch of this process, once a second: `off` in it switches the limits off, whatever the
    /// fleet says; `on` switches them on; and without the file they are as the fleet says. Default: none.
    ///
    /// You want it for the incident in which Redis is slow, and with it the switch of the fleet. The file takes effect
    /// when it changes, so a later [`enable`](RulesHandle::enable) of the program holds against it. The switch stays
    /// as it is while the file cannot be read within half a second, or is not a regular file, which an event says.
    pub fn override_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.override_file = Some(path.into());
        self
    }

    /// Sets the clock by which rules of the access list end, for tests. Default: the system's.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Starts to follow, in tasks of the current runtime.
    ///
    /// # Errors
    ///
    /// Returns [`FleetErrorKind::Claimed`] if another follower or another source has claimed the rules, and
    /// [`FleetErrorKind::Config`] if there is no Tokio runtime or the name of the instance is invalid.
    pub fn start(self) -> Result<RulesFollower, FleetError> {
        let error = |message: String| FleetError::new(FleetErrorKind::Config, format!("rules follower: {message}"));
        let name = &self.instance;
        if name.len() > 64 || !name.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(error(format!(
                "instance {name:?} has more than 64 characters or others than printable ASCII"
            )));
        }
        let runtime = Handle::try_current().map_err(|_| error("there is no runtime of tokio".to_owned()))?;
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
        let keeper = Keeper::new(Arc::clone(&shared), self.override_file);
        tasks.spawn_on(keeper.run(), &runtime);
        tasks.spawn_on(Poller::new(Arc::clone(&shared), self.source, instance).run(), &runtime);
        Ok(RulesFollower(Arc::new(Following {
            status,
            shared,
            _tasks: tasks,
        })))
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
