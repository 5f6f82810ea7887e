//! The common part of all fields that are lists of items.

use sfv::{BareItem, Item, ListSerializer, Version};

use super::{
    MAX_ITEMS, MAX_LENGTH,
    error::{FieldError, Problem},
    parameters::Parameters,
    syntax,
};

/// An item of one field of one dialect.
pub(super) trait Member: Sized {
    /// The name of the field as its document spells it.
    const FIELD: &'static str;
    /// The edition of structured fields that the dialect is written in.
    const VERSION: Version;
    /// Parameters with a meaning, which no extension can have.
    const KNOWN: &'static [&'static str];

    fn decode(bare_item: BareItem, parameters: Parameters) -> Result<Self, Problem>;

    fn encode(&self, list: &mut ListSerializer<String>);

    /// The rules for the list as a whole.
    fn check(_members: &[Self]) -> Result<(), Problem> {
        Ok(())
    }
}

pub(super) fn parse<T: Member, L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Result<Vec<T>, FieldError> {
    decode(syntax::list(T::FIELD, T::VERSION, lines)?)
}

/// The members with what they mean, and as they were parsed.
pub(super) fn parse_with_items<T: Member, L: AsRef<[u8]>>(
    lines: impl IntoIterator<Item = L>,
) -> Result<(Vec<T>, Vec<Item>), FieldError> {
    let items = syntax::list(T::FIELD, T::VERSION, lines)?;
    Ok((decode(items.clone())?, items))
}

fn decode<T: Member>(items: Vec<Item>) -> Result<Vec<T>, FieldError> {
    let members = items
        .into_iter()
        .enumerate()
        .map(|(index, item)| {
            let member = T::decode(item.bare_item, Parameters(item.params));
            member.map_err(|problem| problem.of_item(T::FIELD, index))
        })
        .collect::<Result<Vec<T>, _>>()?;
    T::check(&members).map_err(|problem| problem.of(T::FIELD))?;
    Ok(members)
}

/// Members that make up a field which a reader with the same bounds can read.
pub(super) fn collect<T: Member>(members: impl IntoIterator<Item = T>) -> Result<Vec<T>, FieldError> {
    let members: Vec<T> = members.into_iter().take(MAX_ITEMS + 1).collect();
    let problem = if members.is_empty() {
        Problem::Empty
    } else if members.len() > MAX_ITEMS {
        Problem::TooMany
    } else if serialize(&members).len() > MAX_LENGTH {
        Problem::TooLong
    } else if let Err(problem) = T::check(&members) {
        problem
    } else {
        return Ok(members);
    };
    Err(problem.of(T::FIELD))
}

pub(super) fn serialize<T: Member>(members: &[T]) -> String {
    let mut list = ListSerializer::new();
    for member in members {
        member.encode(&mut list);
    }
    list.finish().unwrap_or_default()
}

/// A field that is a list of items: the type and its common methods.
macro_rules! list_field {
    ($(#[$documentation:meta])* $field:ident of $item:ident named $name:expr) => {
        $(#[$documentation])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $field {
            items: Vec<$item>,
        }

        impl $field {
            /// The name of the field.
            pub const NAME: HeaderName = $name;

            /// A field of these items.
            ///
            /// Fails if there is none, if there are more than [`MAX_ITEMS`](crate::fields::MAX_ITEMS), if the field
            /// would be longer than [`MAX_LENGTH`](crate::fields::MAX_LENGTH), or if the dialect forbids this
            /// combination: readers would ignore such a field.
            pub fn new(items: impl IntoIterator<Item = $item>) -> Result<Self, FieldError> {
                list::collect(items).map(|items| Self { items })
            }

            /// Reads the lines of one field, in the order in which they came.
            ///
            /// If anything in them is malformed, the whole field is: ignore it then.
            pub fn parse<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Result<Self, FieldError> {
                list::parse(lines).map(|items| Self { items })
            }

            /// Reads the field of a response; `None` if it is absent.
            ///
            /// Give it the header section only, never trailers: the fields must not appear there. Fails as
            /// [`parse`](Self::parse) does.
            pub fn read(headers: &HeaderMap) -> Result<Option<Self>, FieldError> {
                if !headers.contains_key(Self::NAME) {
                    return Ok(None);
                }
                Self::parse(headers.get_all(Self::NAME)).map(Some)
            }

            /// The items, at least one, in the order of the field. Names may repeat.
            pub fn items(&self) -> &[$item] {
                &self.items
            }

            /// The value of one field line.
            pub fn to_header_value(&self) -> HeaderValue {
                let value = list::serialize(&self.items);
                HeaderValue::try_from(value).expect("structured fields are printable ASCII")
            }
        }

        impl fmt::Display for $field {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&list::serialize(&self.items))
            }
        }
    };
}

/// The getters and setters of extension parameters.
macro_rules! extension_methods {
    () => {
        /// The extension parameter with this name.
        pub fn extension(&self, name: &str) -> Option<&ExtensionValue> {
            self.extensions.get(name)
        }

        /// The parameters that the document does not define, in the order of the field. To a reader they are comments.
        pub fn extensions(&self) -> impl Iterator<Item = (&str, &ExtensionValue)> {
            self.extensions.iter()
        }

        /// Adds an extension parameter, or replaces the one with this name.
        ///
        /// Fails unless the name begins with that of its vendor, as `acme-burst` does, so that it cannot come to mean
        /// something else; or if the name or the value cannot be written in this dialect.
        pub fn with_extension(mut self, name: &str, value: impl Into<ExtensionValue>) -> Result<Self, FieldError> {
            self.extensions.set::<Self>(name, value, Prefix::Required)?;
            Ok(self)
        }

        /// Adds an extension parameter with a bare name, such as `burst`, or replaces the one with this name.
        ///
        /// The document says that names should begin with that of a vendor; you want this only for clients that exist
        /// already. Fails if the name is that of a parameter with a meaning, or if the name or the value cannot be
        /// written in this dialect.
        pub fn with_unprefixed_extension(
            mut self,
            name: &str,
            value: impl Into<ExtensionValue>,
        ) -> Result<Self, FieldError> {
            self.extensions.set::<Self>(name, value, Prefix::Optional)?;
            Ok(self)
        }
    };
}

/// An item of `RateLimit` in a dialect with names: all but its remaining units and its form.
macro_rules! limit_item {
    ($(#[$documentation:meta])* $item:ident of $name:ty, remaining $remaining:ty, reset $reset:literal) => {
        $(#[$documentation])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $item {
            name: $name,
            remaining: $remaining,
            reset: Option<u64>,
            partition_key: Option<Vec<u8>>,
            extensions: Extensions,
        }

        impl $item {
            #[doc = concat!($reset, ", from the moment when the response is made: rounded up to whole seconds of at most")]
            /// 15 digits.
            #[must_use]
            pub fn with_reset(mut self, reset: Duration) -> Self {
                self.reset = Some(seconds::rounded_up(reset));
                self
            }

            #[doc = concat!($reset, ", in whole seconds from the moment when the response was made.")]
            pub fn reset(&self) -> Option<Duration> {
                self.reset.map(Duration::from_secs)
            }

            named_methods!();
            extension_methods!();
        }
    };
}

/// An item of `RateLimit-Policy` in a dialect with names: all but its form.
macro_rules! policy_item {
    ($(#[$documentation:meta])* $item:ident of $name:ty, called $called:literal) => {
        $(#[$documentation])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $item {
            name: $name,
            quota: u64,
            unit: Unit,
            window: Option<u64>,
            partition_key: Option<Vec<u8>>,
            extensions: Extensions,
        }

        impl $item {
            /// A policy in requests, without a window.
            ///
            #[doc = concat!("Fails if the name is not ", $called, ", or the quota has more than 15 digits.")]
            pub fn new(name: &str, quota: u64) -> Result<Self, FieldError> {
                Ok(Self {
                    name: new_name(name).map_err(|problem| problem.of(Self::FIELD))?,
                    quota: writable(QUOTA.as_str(), quota, 0).map_err(|problem| problem.of(Self::FIELD))?,
                    unit: Unit::default(),
                    window: None,
                    partition_key: None,
                    extensions: Extensions::default(),
                })
            }

            /// Sets the unit of the quota. Default: requests.
            #[must_use]
            pub fn with_unit(mut self, unit: Unit) -> Self {
                self.unit = unit;
                self
            }

            /// The time in which the quota may be used.
            ///
            /// Fails unless it is a number of whole seconds, at least one.
            pub fn with_window(mut self, window: Duration) -> Result<Self, FieldError> {
                let window = seconds::whole(WINDOW.as_str(), window, 1);
                self.window = Some(window.map_err(|problem| problem.of(Self::FIELD))?);
                Ok(self)
            }

            /// Units for each window, at most 15 digits.
            pub fn quota(&self) -> u64 {
                self.quota
            }

            /// The unit of the quota.
            pub fn unit(&self) -> &Unit {
                &self.unit
            }

            /// The time in which the quota may be used, in whole seconds. Some quotas have none.
            pub fn window(&self) -> Option<Duration> {
                self.window.map(Duration::from_secs)
            }

            named_methods!();
            extension_methods!();
        }
    };
}

/// The name and the partition key of an item.
macro_rules! named_methods {
    () => {
        /// The key of the partition that the quota is for. Every client can read it: it should not identify a person.
        #[must_use]
        pub fn with_partition_key(mut self, key: impl Into<Vec<u8>>) -> Self {
            self.partition_key = Some(key.into());
            self
        }

        /// The name of the policy.
        pub fn name(&self) -> &str {
            self.name.as_str()
        }

        /// The key of the partition that the quota is for.
        pub fn partition_key(&self) -> Option<&[u8]> {
            self.partition_key.as_deref()
        }
    };
}
