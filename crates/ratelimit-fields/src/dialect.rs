use super::{
    draft06, draft07,
    draft11::{self, Draft11},
    in_between,
    merge::merge_lists,
    prepared::named_policies,
    wire::{Form, ListForm, Wire, hints},
};

/// A dialect of the `RateLimit` fields.
///
/// ```
/// use ratelimit_fields::Dialect;
///
/// assert_eq!(Dialect::detect([r#""default";r=50;t=30"#]), Some(Dialect::Draft11));
/// assert_eq!(Dialect::detect(["default;r=50;t=30"]), Some(Dialect::EditorsCopy));
/// assert_eq!(Dialect::detect(["limit=100, remaining=50, reset=30"]), Some(Dialect::Draft07));
/// assert_eq!(Dialect::detect(["100;w=60"]), Some(Dialect::Draft06));
/// assert_eq!(Dialect::detect(["?1"]), None);
/// assert!(Dialect::Draft11.has_names());
/// assert!(!Dialect::Draft07.has_names());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// Names are Strings: [`draft11`].
    Draft11,
    /// Names are Tokens: [`in_between`].
    EditorsCopy,
    /// A dictionary of numbers: [`draft07`]. `RateLimit-Policy` has the form of draft-06.
    Draft07,
    /// Numbers instead of names: [`draft06`].
    Draft06,
}

const DRAFT11: Wire = Wire {
    begins: |first| first[0] == b'"',
    limits: Some(hints::<draft11::LimitItem, _>),
    policies: Some(hints::<draft11::PolicyItem, _>),
    numbers: None,
    prepare: named_policies::<Draft11>,
    form: Form::List(ListForm {
        item: |name| Ok(draft11::RateLimit::new([draft11::LimitItem::new(name, 0)?])?.to_string()),
        merge: merge_lists::<Draft11>,
        resets_with_retry_after: false,
    }),
};

impl Dialect {
    /// In the order in which [`detect`](Self::detect) tries them.
    pub(super) const ALL: [Self; 4] = [Self::Draft11, Self::Draft06, Self::Draft07, Self::EditorsCopy];

    pub(super) const fn wire(self) -> &'static Wire {
        match self {
            Self::Draft11 => &DRAFT11,
            Self::EditorsCopy => &in_between::WIRE,
            Self::Draft07 => &draft07::WIRE,
            Self::Draft06 => &draft06::WIRE,
        }
    }

    /// Detects the dialect of a `RateLimit` or `RateLimit-Policy` field from its first bare item or key.
    ///
    /// The rest of the field is not checked.
    pub fn detect<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Option<Self> {
        let line = lines.into_iter().next()?;
        let start = line.as_ref().iter().position(|byte| *byte != b' ')?;
        let first = &line.as_ref()[start..];
        Self::ALL.into_iter().find(|dialect| (dialect.wire().begins)(first))
    }

    /// Returns `true` if limits have names, units and partition keys. Other dialects report one limit, in requests.
    pub fn has_names(self) -> bool {
        matches!(self.wire().form, Form::List(_))
    }
}
