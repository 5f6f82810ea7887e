//! The profiles that a client has chosen, by origin.

use http::{header::HOST, request::Parts, uri::Authority};

use super::Profile;
use crate::error::{ConfigError, ConfigErrorKind::Client};

/// The profile of each origin that has one.
#[derive(Debug, Default)]
pub(in crate::client) struct Profiles {
    of_origins: Vec<(Authority, Profile)>,
    mistake: Option<String>,
}

impl Profiles {
    pub(in crate::client) fn set(&mut self, origin: &str, profile: Profile) {
        match parse(origin) {
            None => {
                let mistake = format!("client: profile origin {origin:?} is not a host, with or without a port");
                self.mistake.get_or_insert(mistake);
            }
            Some(origin) if self.of_origins.iter().any(|(other, _)| *other == origin) => {
                let mistake = format!("client: the profile of {origin} is set twice");
                self.mistake.get_or_insert(mistake);
            }
            Some(origin) => self.of_origins.push((origin, profile)),
        }
    }

    /// The first mistake, if there is one.
    pub(in crate::client) fn check(&self) -> Result<(), ConfigError> {
        match &self.mistake {
            Some(mistake) => Err(ConfigError::new(Client, mistake.clone())),
            None => Ok(()),
        }
    }

    /// The profile of the origin of a request: that of its host and port, else that of its host.
    pub(in crate::client) fn of(&self, request: &Parts) -> Profile {
        if self.of_origins.is_empty() {
            return Profile::Standard;
        }
        let field = || Authority::try_from(request.headers.get(HOST)?.as_bytes()).ok();
        let Some(authority) = request.uri.authority().cloned().or_else(field) else {
            return Profile::Standard;
        };
        let usual_port = if request.uri.scheme_str() == Some("http") {
            80
        } else {
            443
        };
        let port = authority.port_u16().unwrap_or(usual_port);
        let of_host = |origin: &Authority| origin.host().eq_ignore_ascii_case(authority.host());
        let with_port = |wanted| {
            let mut profiles = self.of_origins.iter();
            profiles.find(|(origin, _)| of_host(origin) && origin.port_u16() == wanted)
        };
        let found = with_port(Some(port)).or_else(|| with_port(None));
        found.map_or(Profile::Standard, |(_, profile)| *profile)
    }
}

/// A host with or without a port, and nothing else.
fn parse(origin: &str) -> Option<Authority> {
    let authority: Authority = origin.parse().ok()?;
    let is_whole = match authority.port_u16() {
        Some(port) => format!("{}:{port}", authority.host()) == origin,
        None => authority.host() == origin,
    };
    Some(authority).filter(|_| is_whole)
}
