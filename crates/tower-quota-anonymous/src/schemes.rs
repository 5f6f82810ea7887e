//! HTTP authentication fields: finds `PrivateToken` in lists of schemes.

use std::borrow::Cow;

use super::MessageError;

pub(super) const SCHEME: &str = "PrivateToken";

/// In bytes.
pub(super) const MAX_LENGTH: usize = 32 * 1024;

/// Returns `None` for other schemes.
pub(super) fn credentials(line: &[u8]) -> Option<Result<Parameters<'_>, MessageError>> {
    if line.len() > MAX_LENGTH {
        return scheme_of(line).map(|_| Err(MessageError::Length("authorization")));
    }
    let mut schemes = Schemes(line);
    let parameters = schemes.next()?.private_token()?;
    Some(match schemes.next() {
        None => parameters,
        Some(_) => Err(MessageError::Malformed("authorization")),
    })
}

fn scheme_of(line: &[u8]) -> Option<()> {
    let scheme = line.trim_ascii_start().get(..SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME.as_bytes()).then_some(())
}

/// RFC 9110, section 11.
pub(super) struct Schemes<'a>(pub(super) &'a [u8]);

pub(super) struct Scheme<'a> {
    name: &'a [u8],
    parameters: Result<Parameters<'a>, MessageError>,
}

impl<'a> Scheme<'a> {
    pub(super) fn private_token(self) -> Option<Result<Parameters<'a>, MessageError>> {
        self.name
            .eq_ignore_ascii_case(SCHEME.as_bytes())
            .then_some(self.parameters)
    }
}

pub(super) struct Parameters<'a>(Vec<Parameter<'a>>);

type Parameter<'a> = (&'a [u8], Cow<'a, [u8]>);

impl<'a> Parameters<'a> {
    const MALFORMED: MessageError = MessageError::Malformed("parameters");

    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        let is_named = |(own, _): &&Parameter<'_>| own.eq_ignore_ascii_case(name.as_bytes());
        self.0.iter().find(is_named).map(|(_, value)| &**value)
    }

    fn checked(mut self) -> Result<Self, MessageError> {
        let is_twice = (1..self.0.len()).any(|index| {
            let (before, rest) = self.0.split_at_mut(index);
            before.iter().any(|(name, _)| name.eq_ignore_ascii_case(rest[0].0))
        });
        if is_twice { Err(Self::MALFORMED) } else { Ok(self) }
    }
}

/// Bounds the work for fields with many parameters.
const MAX_PARAMETERS: usize = 16;

impl<'a> Iterator for Schemes<'a> {
    type Item = Scheme<'a>;

    fn next(&mut self) -> Option<Scheme<'a>> {
        let name = loop {
            self.pass_over(|byte| byte == b',' || is_space(byte));
            if self.0.is_empty() {
                return None;
            }
            match self.token() {
                Some(name) => break name,
                // Not the start of a scheme.
                None => self.skip_item(),
            }
        };
        let (mut parameters, mut is_malformed) = (Vec::new(), false);
        while let Some(parameter) = self.parameter() {
            match parameter {
                Ok(_) if parameters.len() == MAX_PARAMETERS => is_malformed = true,
                Ok(parameter) => parameters.push(parameter),
                Err(_) => is_malformed = true,
            }
        }
        let parameters = match is_malformed {
            true => Err(Parameters::MALFORMED),
            false => Parameters(parameters).checked(),
        };
        Some(Scheme { name, parameters })
    }
}

impl<'a> Schemes<'a> {
    fn parameter(&mut self) -> Option<Result<Parameter<'a>, MessageError>> {
        let mut ahead = Schemes(self.0);
        let begins_item = ahead.pass_over(|byte| byte == b',' || is_space(byte)).contains(&b',');
        if ahead.0.is_empty() {
            return None;
        }
        let name = ahead.token();
        ahead.pass_over(is_space);
        if name.is_some() && ahead.0.first() == Some(&b'=') {
            self.0 = &ahead.0[1..];
            self.pass_over(is_space);
            let value = self.value();
            return Some(
                value
                    .and_then(|value| Some((name?, value)))
                    .ok_or(Parameters::MALFORMED),
            );
        }
        if begins_item && name.is_some() {
            return None;
        }
        // Not a parameter: either a `token68`, or malformed.
        self.0 = ahead.0;
        self.skip_item();
        Some(Err(Parameters::MALFORMED))
    }

    /// Up to the next comma or space, because base64 with padding need not be quoted.
    fn value(&mut self) -> Option<Cow<'a, [u8]>> {
        if self.0.first() != Some(&b'"') {
            let value = self.pass_over(|byte| byte != b',' && !is_space(byte));
            let is_plain = !value.is_empty() && !value.contains(&b'"');
            return is_plain.then_some(Cow::Borrowed(value));
        }
        let content = &self.0[1..];
        let (mut escaped, mut position) = (Vec::new(), 0);
        while position < content.len() {
            match content[position] {
                b'"' => {
                    self.0 = &content[position + 1..];
                    let rest = &content[..position];
                    return Some(if escaped.is_empty() {
                        rest.into()
                    } else {
                        unescape(rest, &escaped).into()
                    });
                }
                b'\\' => {
                    escaped.push(position);
                    position += 2;
                }
                _ => position += 1,
            }
        }
        // Unterminated.
        self.0 = &[];
        None
    }

    fn token(&mut self) -> Option<&'a [u8]> {
        let token = self.pass_over(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
        (!token.is_empty()).then_some(token)
    }

    fn skip_item(&mut self) {
        while let Some(byte) = self.0.first() {
            match byte {
                b',' => return,
                b'"' => drop(self.value()),
                _ => self.0 = &self.0[1..],
            }
        }
    }

    fn pass_over(&mut self, is_skipped: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self
            .0
            .iter()
            .position(|byte| !is_skipped(*byte))
            .unwrap_or(self.0.len());
        let (skipped, rest) = self.0.split_at(end);
        self.0 = rest;
        skipped
    }
}

fn unescape(content: &[u8], backslashes: &[usize]) -> Vec<u8> {
    let bytes = content.iter().enumerate();
    let kept = bytes.filter(|(position, _)| backslashes.binary_search(position).is_err());
    kept.map(|(_, byte)| *byte).collect()
}

fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}
