//! Misconfigurations that `build()` cannot detect, or that may be intended. Each has a section in `docs/mistakes.md`.

use std::fmt;

use http::HeaderName;
use smallvec::SmallVec;

macro_rules! mistakes {
    ($($mistake:ident $name:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(dead_code, reason = "some are only possible with a feature")]
        pub(crate) enum Mistake {
            $($mistake,)*
        }

        impl Mistake {
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$mistake => $name,)*
                }
            }

            pub(crate) const fn help(self) -> &'static str {
                match self {
                    $(Self::$mistake => concat!(
                        "https://docs.rs/tower-quota/",
                        env!("CARGO_PKG_VERSION"),
                        "/tower_quota/docs/mistakes/index.html#",
                        $name
                    ),)*
                }
            }
        }
    };
}

mistakes! {
    ContentNotCounted "content-not-counted";
    CostAboveCapacity "cost-above-capacity";
    KeyNeverThere "key-never-there";
    KeyOfAnotherKind "key-of-another-kind";
    LayerForEachRequest "layer-for-each-request";
    LayerTwice "layer-twice";
    LoneLargeWindow "lone-large-window";
    MissingKey "no-key";
    NoPeerAddress "no-peer-address";
    NoPermission "no-permission";
    NoTierLayer "no-tier-layer";
    OtherForwardingField "other-forwarding-field";
    ProxyNotNamed "proxy-not-named";
    SecondProxy "second-proxy";
    SlotNotTaken "slot-not-taken";
    StreamedRejection "streamed-rejection";
    TwoQuotas "two-quotas";
    UnknownTier "unknown-tier";
}

/// Facts that one request reveals about a key. Filled by extractors.
#[derive(Debug, Default)]
pub struct Diagnostics {
    pub(crate) found: Vec<Finding>,
    pub(crate) parts: SmallVec<[KeyPart; 1]>,
    pub(crate) walks: Option<Vec<String>>,
}

/// A misconfiguration that a request reveals.
#[derive(Debug)]
pub(crate) enum Finding {
    NoPeerAddress,
    ProxyNotNamed {
        field: String,
        has_private_address: bool,
    },
    /// The list contains further hops, which were not read.
    SecondProxy,
    OtherForwardingField {
        field: &'static str,
        named: String,
    },
}

#[derive(Debug)]
pub(crate) struct KeyPart {
    pub(crate) name: PartName,
    pub(crate) is_there: bool,
}

/// Not a text, which would have to be written for each request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PartName {
    Extension(&'static str),
    Header(HeaderName),
    Other(&'static str),
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Extension(name) => write!(f, "extension {name}"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

impl Diagnostics {
    pub(crate) fn asked_for(&mut self, name: PartName, is_there: bool) {
        self.parts.push(KeyPart { name, is_there });
    }
}
