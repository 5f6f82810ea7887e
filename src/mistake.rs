//! Mistakes in how limits are set up that `build()` cannot know, or that may be meant: each has a name, which its event
//! carries, and a section of that name in `docs/mistakes.md`.

/// An enum, and for each of its values the name and the address of its section.
macro_rules! mistakes {
    ($($mistake:ident $name:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(dead_code, reason = "some can be made with a feature only")]
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
    GuessableAddress "guessable-address";
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
    TierNotRead "tier-not-read";
    TwoQuotas "two-quotas";
    UnknownTier "unknown-tier";
}

/// The facts that one request shows about a key, and the mistakes in it. An extractor notes them here.
#[derive(Debug, Default)]
pub struct Diagnostics {
    pub(crate) found: Vec<Finding>,
    pub(crate) parts: Vec<KeyPart>,
    /// Descriptions of how addresses were found, if they are wanted.
    pub(crate) walks: Option<Vec<String>>,
}

/// A mistake that one request shows.
#[derive(Debug)]
pub(crate) enum Finding {
    /// Nothing says what the peer's address is.
    NoPeerAddress,
    /// A peer that is no trusted proxy has sent this forwarding field.
    ProxyNotNamed { field: String, has_private_address: bool },
    /// The client is a private address that a trusted proxy reported, and hops before it are not read.
    SecondProxy,
    /// A trusted proxy has sent this field, and not the one that is named.
    OtherForwardingField { field: &'static str, named: String },
}

/// A part of a key that a request was asked for.
#[derive(Debug)]
pub(crate) struct KeyPart {
    pub(crate) name: String,
    pub(crate) is_there: bool,
}

impl Diagnostics {
    /// Notes if a request has the part of this name that its key needs.
    pub(crate) fn asked_for(&mut self, name: String, is_there: bool) {
        self.parts.push(KeyPart { name, is_there });
    }
}
