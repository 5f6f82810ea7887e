use std::sync::Arc;

use http::uri::Authority;

use super::Profile;
use crate::BuildError;

#[derive(Debug, Default)]
pub(crate) struct Profiles {
    of_origins: Vec<(Authority, Arc<Profile>)>,
    of_others: Arc<Profile>,
    error: Option<BuildError>,
}

impl Profiles {
    pub(crate) fn set(&mut self, origin: &str, profile: Profile) {
        let problem = match (parse(origin), profile.invalid_field()) {
            (_, Some(field)) => format!("of {origin:?}: {field:?} is not a field name"),
            (None, _) => format!("{origin:?} is not a host with an optional port"),
            (Some(parsed), _) if self.of_origins.iter().any(|(other, _)| *other == parsed) => {
                format!("{origin:?} is set twice")
            }
            (Some(parsed), _) => return self.of_origins.push((parsed, Arc::new(profile))),
        };
        self.error.get_or_insert_with(|| BuildError::new("profile", problem));
    }

    pub(crate) fn check(&self) -> Result<(), BuildError> {
        self.error.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn of(&self, host: &str, port: u16) -> Arc<Profile> {
        let with_port = |port| {
            let mut profiles = self.of_origins.iter();
            profiles.find(|(origin, _)| origin.host().eq_ignore_ascii_case(host) && origin.port_u16() == port)
        };
        let found = with_port(Some(port)).or_else(|| with_port(None));
        Arc::clone(found.map_or(&self.of_others, |(_, profile)| profile))
    }
}

fn parse(origin: &str) -> Option<Authority> {
    let authority: Authority = origin.parse().ok()?;
    let is_whole = match authority.port_u16() {
        Some(port) => format!("{}:{port}", authority.host()) == origin,
        None => authority.host() == origin,
    };
    Some(authority).filter(|_| is_whole)
}
