use std::fmt;

use crate::{RulesDocument, RulesVersion, redis_rules::version_of};

/// A published document and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    version: RulesVersion,
    document: RulesDocument,
}

impl Published {
    /// Returns the version.
    pub fn version(&self) -> RulesVersion {
        self.version
    }

    /// Returns the document.
    pub fn document(&self) -> &RulesDocument {
        &self.document
    }

    pub(super) fn new(version: RulesVersion, document: RulesDocument) -> Self {
        Self { version, document }
    }

    pub(super) fn read(head: Option<&[u8]>, document: Option<&[u8]>) -> Result<Option<Self>, String> {
        let (head, document) = match (head, document) {
            (None, None) => return Ok(None),
            (Some(_), None) => return Err("version without a document".to_owned()),
            (None, Some(_)) => return Err("document without a version".to_owned()),
            (Some(head), Some(document)) => (head, document),
        };
        let version = version_of(head).ok_or("version is not a number and a digest")?;
        let document = RulesDocument::parse_version(version, document).map_err(|error| error.to_string())?;
        Ok(Some(Self::new(version, document)))
    }
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, author) = (self.version.number(), self.document.author());
        write!(f, "version {number} by {author:?}")
    }
}
