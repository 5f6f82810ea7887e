use std::{fmt, sync::Arc};

use super::access_list::{AccessList, AccessRules, Overlaid};

/// Access rules from another source, in addition to the local rules of an [`AccessList`].
///
/// Created by [`AccessList::overlay`], for example for rules from etcd or a ConfigMap. Several overlays are
/// [merged](AccessList::overlay_rules).
///
/// Dropping an overlay removes its rules, unless you [`leave`](Self::leave) it.
///
/// # Examples
///
/// ```
/// use tower_quota::{Access, AccessList, AccessRules, key};
///
/// let access = AccessList::new(key::client_ip());
/// let mut rules = AccessRules::new();
/// rules.set_network("203.0.113.0/24", Access::Block)?;
///
/// let overlay = access.overlay().named("config map");
/// overlay.replace(rules);
/// overlay.leave(); // the rules remain
/// assert_eq!(access.overlay_rules().len(), 1);
///
/// let successor = access.overlay().named("config map");
/// successor.replace(AccessRules::new());
/// assert_eq!(access.overlay_rules().len(), 0);
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[must_use = "dropping an overlay removes its rules"]
pub struct AccessOverlay {
    list: AccessList,
    identity: Arc<()>,
    names: Vec<String>,
}

impl AccessList {
    /// Creates an empty overlay for the rules of another source.
    pub fn overlay(&self) -> AccessOverlay {
        AccessOverlay::new(self.clone())
    }
}

impl AccessOverlay {
    pub(super) fn new(list: AccessList) -> Self {
        Self {
            list,
            identity: Arc::default(),
            names: Vec::new(),
        }
    }

    /// Adds a name, such as that of the source, for [`leave`](Self::leave). Default: none.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }

    /// Replaces all rules of the overlay atomically, and removes those that overlays of its names have
    /// [left](Self::leave). The cost is proportional to the number of rules in all overlays of the list.
    pub fn replace(&self, rules: AccessRules) {
        self.list.change_overlays(|overlays| {
            overlays.retain(|other| !self.owns(other) && !self.succeeds(other));
            overlays.push(Overlaid {
                owner: Arc::clone(&self.identity),
                left_as: None,
                rules,
            });
        });
    }

    /// Ends the overlay but keeps its rules, until an overlay with one of the same [names](Self::named) calls
    /// [`replace`](Self::replace). This keeps clients blocked while a source is replaced. Without a name, the rules
    /// apply as long as the list exists.
    pub fn leave(mut self) {
        let names = std::mem::take(&mut self.names);
        self.list.change_overlays(|overlays| {
            if let Some(own) = overlays.iter_mut().find(|other| self.owns(other)) {
                own.left_as = Some(names);
            }
        });
    }

    fn owns(&self, other: &Overlaid) -> bool {
        Arc::ptr_eq(&self.identity, &other.owner)
    }

    fn succeeds(&self, other: &Overlaid) -> bool {
        let left_as = other.left_as.iter().flatten();
        left_as.into_iter().any(|name| self.names.contains(name))
    }
}

impl Drop for AccessOverlay {
    fn drop(&mut self) {
        self.list
            .change_overlays(|overlays| overlays.retain(|other| !self.owns(other) || other.left_as.is_some()));
    }
}

impl fmt::Debug for AccessOverlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessOverlay")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}
