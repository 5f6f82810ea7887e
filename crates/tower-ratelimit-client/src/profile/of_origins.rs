use http::uri::Authority;

use super::Profile;
use crate::BuildError;

#[derive(Debug, Default)]
pub(crate) struct Profiles {
    of_origins: Vec<(Authority, Profile)>,
    error: Option<BuildError>,
}

impl Profiles {
    pub(crate) fn set(&mut self, origin: &str, profile: Profile) {
        let problem = match parse(origin) {
            None => "is not a host with an optional port",
            Some(origin) if self.of_origins.iter().any(|(other, _)| *other == origin) => "is set twice",
            Some(origin) => return self.of_origins.push((origin, profile)),
        };
        self.error
            .get_or_insert_with(|| BuildError::new("profile", format!("{origin:?} {problem}")));
    }

    /// The error of the first invalid origin.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// A profile for the host and port takes precedence over one for the host.
    pub(crate) fn of(&self, host: &str, port: u16) -> Profile {
        let with_port = |port| {
            let mut profiles = self.of_origins.iter();
            profiles.find(|(origin, _)| origin.host().eq_ignore_ascii_case(host) && origin.port_u16() == port)
        };
        let found = with_port(Some(port)).or_else(|| with_port(None));
        found.map_or(Profile::Standard, |(_, profile)| *profile)
    }
}

/// Accepts only a host with an optional port.
fn parse(origin: &str) -> Option<Authority> {
    let authority: Authority = origin.parse().ok()?;
    let is_whole = match authority.port_u16() {
        Some(port) => format!("{}:{port}", authority.host()) == origin,
        None => authority.host() == origin,
    };
    Some(authority).filter(|_| is_whole)
}
