use std::{
    fmt,
    hash::{Hash, Hasher},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use smallvec::SmallVec;

use crate::error::{ConfigError, ConfigErrorKind};

/// The caller whose quota a request uses: a user, an API key, an address, or a combination.
///
/// A key consists of parts, each with a kind (`"user"`, `"route"`, …) and a value. `user "192.0.2.1"` never shares a
/// quota with the address `192.0.2.1`, nor `("ab", "c")` with `("a", "bc")`. No key from [`new`](Self::new) has one of
/// the [reserved kinds](ToPartitionKey) of this crate, even with the same name.
///
/// A key can contain personal data. Unless [`readable_keys`](crate::LimiterBuilder::readable_keys) is set, it never
/// leaves the process, whose threads keep recent keys: stores see only a keyed 128-bit digest. `Debug` prints neither
/// kind nor value.
///
/// ```
/// use tower_quota::{PartitionKey, ToPartitionKey};
///
/// let user = PartitionKey::new("user", "alice");
/// assert_ne!(user, PartitionKey::new("account", "alice"));
/// // The bytes are those of 97.98.99.100, but the kinds differ.
/// assert_ne!(PartitionKey::new("address", "abcd"), std::net::Ipv4Addr::new(97, 98, 99, 100).to_partition_key());
/// assert_ne!(user.clone().and(PartitionKey::new("route", "a")), PartitionKey::new("route", "a").and(user.clone()));
/// assert_eq!(format!("{user:?}"), "PartitionKey(..)");
/// // A user on this route is a different caller than the same user on other routes.
/// assert_ne!(user.clone().and(PartitionKey::new("route", "a")), user);
/// ```
#[derive(PartialEq, Eq, Hash)]
pub struct PartitionKey(SmallVec<[u8; INLINE]>);

const INLINE: usize = 48;

impl Clone for PartitionKey {
    /// Faster than the derived function, which copies the bytes one by one.
    #[inline]
    fn clone(&self) -> Self {
        Self(SmallVec::from_slice(&self.0))
    }
}

impl PartitionKey {
    /// Creates a key with one part: a `kind`, and the `value` that identifies the caller. Both can be any bytes of any
    /// length.
    ///
    /// Do not use the name of a [header key](crate::key::header) as the kind of authenticated users: a client, who sets
    /// the header, could then use another user's quota.
    pub fn new(kind: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        let kind = kind.as_ref();
        // One more leading `=` for a reserved name keeps all encodings different.
        let signs = kind.iter().take_while(|byte| **byte == b'=').count();
        let is_taken = OWN_KINDS.iter().any(|own| own.as_bytes() == &kind[signs..]);
        Self::of_part([if is_taken { b"=" } else { b"" }, kind], value.as_ref())
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn of_kind(kind: impl AsRef<[u8]>) -> Self {
        let mut key = Self::new(kind, []);
        key.0.truncate(key.0.len() - size_of::<u64>());
        key
    }

    #[inline]
    pub(crate) fn with_value(&self, value: &[u8]) -> Self {
        Self::of_pieces([&self.0, &(value.len() as u64).to_le_bytes(), value])
    }

    pub(crate) fn own(kind: &'static str, value: &[u8]) -> Self {
        debug_assert!(OWN_KINDS.contains(&kind), "{kind} has to be kept apart from others");
        Self::of_part([b"", kind.as_bytes()], value)
    }

    /// Length prefixes make the encoding prefix-free.
    fn of_part(kind: [&[u8]; 2], value: &[u8]) -> Self {
        let kind_length = (kind[0].len() + kind[1].len()) as u64;
        let lengths = [kind_length, value.len() as u64].map(u64::to_le_bytes);
        Self::of_pieces([&lengths[0], kind[0], kind[1], &lengths[1], value])
    }

    /// Faster than appending each piece to a vector, which may grow.
    #[inline]
    fn of_pieces<const N: usize>(pieces: [&[u8]; N]) -> Self {
        let mut bytes = [0; INLINE];
        let mut rest = &mut bytes[..];
        for piece in pieces {
            let Some((place, others)) = rest.split_at_mut_checked(piece.len()) else {
                return Self(pieces.concat().into());
            };
            place.copy_from_slice(piece);
            rest = others;
        }
        let length = INLINE - rest.len();
        Self(SmallVec::from_buf_and_len(bytes, length))
    }

    /// Combines two keys: requests share a quota only if both are equal.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend_from_slice(&other.0);
        self
    }

    /// `kind:value`, with slashes between parts, and percent-encoded where it would be ambiguous. `None` if longer.
    pub(crate) fn to_text(&self, max_length: usize) -> Option<String> {
        let mut text = String::new();
        let mut rest = &*self.0;
        while let Some((kind, others)) = split_field(rest) {
            let (value, others) = split_field(others)?;
            rest = others;
            if !text.is_empty() {
                text.push('/');
            }
            text.extend(percent_encode(kind, ENCODED));
            text.push(':');
            match (kind, value.len()) {
                (b"number", 16) => text += &u128::from_be_bytes(value.try_into().ok()?).to_string(),
                (b"address", 4) => text += &Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).to_string(),
                (b"address", 16) => text += &Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).to_string(),
                _ => text.extend(percent_encode(value, ENCODED)),
            }
            if text.len() > max_length {
                return None;
            }
        }
        Some(text)
    }

    pub(crate) fn kinds(&self) -> String {
        let mut kinds = String::new();
        for kind in self.kinds_of_parts() {
            if !kinds.is_empty() {
                kinds.push('/');
            }
            kinds.extend(percent_encode(kind, ENCODED));
        }
        kinds
    }

    pub(crate) fn kinds_of_parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (kind, others) = split_field(rest)?;
            rest = split_field(others).map_or(&[], |(_, others)| others);
            Some(kind)
        })
    }
}

const OWN_KINDS: [&str; 9] = [
    "address",
    "charged",
    "given back",
    "host",
    "negative",
    "no key",
    "number",
    "route",
    "text",
];

/// `scope:api`, or `scope:api/team` for a named key. Each part of a main key contains a colon, so none begins like a
/// named key.
pub(crate) fn readable_scope(scope: &str, named: Option<&str>) -> String {
    let mut text = "scope:".to_owned();
    text.extend(percent_encode(scope.as_bytes(), ENCODED));
    if let Some(name) = named {
        text.push('/');
        text.extend(percent_encode(name.as_bytes(), ENCODED));
    }
    text
}

const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'/').add(b':').add(b'{').add(b'}');

fn split_field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

impl fmt::Debug for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PartitionKey(..)")
    }
}

/// A type that identifies a caller, such as the user that authentication inserts into the request's extensions.
///
/// Implement the trait for your own type, with a kind of your choice, and pass the type to
/// [`key::extension`](crate::key::extension). Strings, numbers (`i32`, `i64`, `u32`, `u64`, `u128`) and addresses have
/// the reserved kinds `text`, `number` (`negative` below zero) and `address`, which [readable
/// keys](crate::LimiterBuilder::readable_keys) show. Equal numbers of different types are the same caller.
///
/// ```
/// use tower_quota::{PartitionKey, ToPartitionKey};
///
/// #[derive(Clone)]
/// struct UserId(u64);
///
/// impl ToPartitionKey for UserId {
///     fn to_partition_key(&self) -> PartitionKey {
///         PartitionKey::new("user", self.0.to_be_bytes())
///     }
/// }
///
/// assert_eq!(UserId(7).to_partition_key(), UserId(7).to_partition_key());
/// assert_ne!(UserId(7).to_partition_key(), UserId(8).to_partition_key());
/// // The kinds differ: user 7 shares no quota with the number 7 of another layer.
/// assert_ne!(UserId(7).to_partition_key(), 7_u64.to_partition_key());
/// assert_eq!(7_i64.to_partition_key(), 7_u64.to_partition_key());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be converted to a `PartitionKey`",
    note = "implement `tower_quota::ToPartitionKey` for it: one method that returns a `PartitionKey`"
)]
pub trait ToPartitionKey {
    /// Returns the key of the caller.
    fn to_partition_key(&self) -> PartitionKey;
}

impl ToPartitionKey for PartitionKey {
    fn to_partition_key(&self) -> PartitionKey {
        self.clone()
    }
}

macro_rules! to_partition_key {
    ($($kind:literal: $($type:ty),+ => |$value:ident| $bytes:expr;)+) => {$($(
        impl ToPartitionKey for $type {
            fn to_partition_key(&self) -> PartitionKey {
                let $value = self;
                PartitionKey::own($kind, &$bytes)
            }
        }
    )+)+};
}

to_partition_key! {
    "text": str, String, &'static str => |value| *value.as_bytes();
    "number": u32, u64 => |value| u128::from(*value).to_be_bytes();
    "number": u128 => |value| value.to_be_bytes();
    "address": Ipv4Addr => |value| value.octets();
    "address": Ipv6Addr => |value| value.octets();
}

impl ToPartitionKey for i64 {
    fn to_partition_key(&self) -> PartitionKey {
        match u64::try_from(*self) {
            Ok(number) => number.to_partition_key(),
            Err(_) => PartitionKey::own("negative", &self.unsigned_abs().to_be_bytes()),
        }
    }
}

impl ToPartitionKey for i32 {
    fn to_partition_key(&self) -> PartitionKey {
        i64::from(*self).to_partition_key()
    }
}

impl ToPartitionKey for IpAddr {
    fn to_partition_key(&self) -> PartitionKey {
        match self {
            IpAddr::V4(address) => address.to_partition_key(),
            IpAddr::V6(address) => address.to_partition_key(),
        }
    }
}

/// The identity of a partition in a store: a 128-bit digest of its key.
///
/// The digest is keyed BLAKE3, so it is the same in every process and on every machine. With a [digest
/// key](Scope::with_digest_key), it reveals nothing about the caller to anyone without that key. Otherwise, callers can
/// be identified by trying candidates. The probability that any two of 10 million callers share a digest is below
/// 10⁻²⁴.
///
/// ```
/// use tower_quota::{PartitionKey, Scope};
///
/// let id = Scope::new("api").partition(&PartitionKey::new("user", "alice"));
/// // The digest is the same everywhere, so it can be computed to find a caller's keys in Redis.
/// assert_eq!(id.to_string(), "2b9742679fc3d12b0b3b07f9e18313f7");
/// assert_eq!("2b9742679fc3d12b0b3b07f9e18313f7".parse(), Ok(id));
/// assert_eq!(id.to_bytes()[..4], [0x2b, 0x97, 0x42, 0x67]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartitionId([u8; 16]);

impl PartitionId {
    /// Creates a partition ID from the bytes of its digest.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the 16 bytes of the digest.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Returns the partition key that clients see (`pk`), if a policy [shows
    /// it](crate::QuotaPolicy::show_partition_key): the first twelve bytes that BLAKE3 derives from
    /// [`to_bytes`](Self::to_bytes) with the context `tower-quota 2026-11-21 partition key in a field`. It cannot be
    /// used to find the partition in the store.
    ///
    /// Without a [`digest_key`](crate::LimiterBuilder::digest_key), it can [reveal the
    /// caller](crate::QuotaPolicy::show_partition_key).
    ///
    /// ```
    /// use tower_quota::{PartitionKey, Scope};
    ///
    /// let alice = Scope::new("api").partition(&PartitionKey::new("user", "alice"));
    /// assert_eq!(alice.shown_key(), [206, 208, 186, 142, 76, 163, 45, 196, 65, 23, 8, 73]);
    /// ```
    pub fn shown_key(self) -> [u8; 12] {
        let hash = blake3::derive_key("tower-quota 2026-11-21 partition key in a field", &self.0);
        *hash.first_chunk().expect("a hash has 32 bytes")
    }
}

impl Hash for PartitionId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from_ne_bytes(self.0));
    }
}

impl fmt::Debug for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartitionId({self})")
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl FromStr for PartitionId {
    type Err = ConfigError;

    /// Parses 32 hexadecimal digits of either case.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigErrorKind::Key`] for any other text.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        // `from_str_radix` also accepts a sign.
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
        let error = || {
            let message = format!("partition {text:?} is not 32 hexadecimal digits");
            ConfigError::new(ConfigErrorKind::Key, message)
        };
        number.map(|number| Self(number.to_be_bytes())).ok_or_else(error)
    }
}

/// The namespace of limits, such as `"api"`: a caller has separate quotas in each scope.
///
/// Create a `Scope` to use a store without a limiter, or to find the quotas of a layer from another program. Reuse it,
/// because creating one takes longer than using it.
///
/// ```
/// use tower_quota::{PartitionKey, Scope};
///
/// let alice = PartitionKey::new("user", "alice");
/// let mails = Scope::new("mails");
/// assert_eq!(mails.partition(&alice), Scope::new("mails").partition(&alice));
/// assert_ne!(mails.partition(&alice), Scope::new("calls").partition(&alice));
/// assert_ne!(mails.partition(&alice), Scope::with_digest_key("mails", &[7; 32]).partition(&alice));
/// ```
#[derive(Clone)]
pub struct Scope([u8; 32]);

impl Scope {
    const CONTEXT: &'static str = "tower-quota 2026-11-21 partition digest of a scope";
    const NAMED_CONTEXT: &'static str = "tower-quota 2026-11-27 scope of a named key";

    /// Creates a scope without a [digest key](Self::with_digest_key).
    pub fn new(name: &str) -> Self {
        Self(blake3::derive_key(Self::CONTEXT, name.as_bytes()))
    }

    /// Creates a scope whose digests can be computed only with `key`.
    pub fn with_digest_key(name: &str, key: &[u8; 32]) -> Self {
        // A key could otherwise be mistaken for the beginning of a name.
        let Self(scope) = Self::new(name);
        Self(*blake3::keyed_hash(key, &scope).as_bytes())
    }

    /// Returns the scope of a [named key](crate::LimiterBuilder::named_key) within this scope, for example to find the
    /// partition of a team in Redis or in the [`pk`](PartitionId::shown_key) of a response. To read or reset its quota,
    /// use [`Limiter::keyed_by`](crate::Limiter::keyed_by).
    ///
    /// ```
    /// use tower_quota::{Scope, ToPartitionKey};
    ///
    /// let (api, red) = (Scope::new("api"), "red".to_partition_key());
    /// // The partition of `limiter.keyed_by("team", "red")`, if the limiter has the scope `api`.
    /// let team = api.keyed_by("team").partition(&red);
    /// assert_eq!(team.to_string(), "315169fbe55b5f52de5061c444599a6c");
    /// assert_eq!(team.shown_key(), [90, 154, 125, 255, 216, 220, 190, 253, 238, 78, 201, 66]);
    /// // The partition of `limiter.caller("red")`.
    /// assert_ne!(api.partition(&red), team);
    /// ```
    ///
    /// The hash key of the new scope is derived with BLAKE3 from that of this scope, followed by the name, with the
    /// context `tower-quota 2026-11-27 scope of a named key`.
    #[must_use]
    pub fn keyed_by(&self, name: &str) -> Self {
        // The hash key has a constant length, so no two names have the same material.
        let material = [&self.0, name.as_bytes()].concat();
        Self(blake3::derive_key(Self::NAMED_CONTEXT, &material))
    }

    /// Returns the digest that identifies the caller `key` in stores.
    ///
    /// `key` is the main key of a limiter; for a named key, use the scope from [`keyed_by`](Self::keyed_by). A Redis
    /// key contains the digest as base64url without padding, after the [prefix](crate::RedisStoreBuilder::key_prefix):
    /// the digest in the example of [`PartitionId`] becomes `quota:{K5dCZ5_D0SsLOwf54YMT9w}`. Keys of sliding window
    /// logs and slots begin with this text.
    ///
    /// The digest is the first half of keyed BLAKE3 over the parts of the key. Each part is encoded as the length of
    /// its kind (eight bytes, little-endian), the kind, the length of its value and the value. A custom kind that has
    /// the name of a reserved kind (`address`, `charged`, `given back`, `host`, `negative`, `no key`, `number`,
    /// `route`, `text`), with or without leading equals signs, is encoded with one more leading equals sign.
    ///
    /// The hash key is derived from the scope's name with the context `tower-quota 2026-11-21 partition digest of a
    /// scope`. With a digest key, it is replaced by its BLAKE3 hash, keyed with the digest key.
    #[inline]
    pub fn partition(&self, key: &PartitionKey) -> PartitionId {
        let hash = blake3::keyed_hash(&self.0, &key.0);
        PartitionId(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scope(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_same_in_every_process_version_and_architecture() {
        let scope = Scope::new("api");
        let id = scope.partition(&PartitionKey::new("user", "alice"));
        assert_eq!(format!("{id:?}"), "PartitionId(2b9742679fc3d12b0b3b07f9e18313f7)");
    }

    #[test]
    fn a_key_of_any_length_consists_of_its_lengths_and_pieces() {
        for length in 0..2 * INLINE {
            let value = vec![7; length];
            let expected = [
                &4_u64.to_le_bytes()[..],
                b"user",
                &(length as u64).to_le_bytes(),
                &value,
            ]
            .concat();
            let key = PartitionKey::new("user", &value);
            let of_kind = PartitionKey::of_kind("user").with_value(&value);
            assert_eq!([&key.0[..], &of_kind.0, &key.clone().0], [&expected[..]; 3]);
        }
    }

    #[test]
    fn the_text_of_a_partition_is_32_hexadecimal_digits_and_nothing_else() {
        let id = PartitionId::from_bytes([0x0A; 16]);
        let text = id.to_string();
        assert_eq!(text, "0a".repeat(16));
        assert_eq!([text.parse(), text.to_uppercase().parse()], [Ok(id), Ok(id)]);
        for other in [
            "",
            "0a",
            &format!("+{}", &text[1..]),
            &format!("{text} "),
            &text.replace("0a", "0ß"),
        ] {
            let error = other.parse::<PartitionId>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("partition {other:?} is not 32 hexadecimal digits")
            );
        }
    }

    /// The expected bytes come from another implementation of BLAKE3.
    #[test]
    fn a_shown_key_is_the_same_in_every_process_version_and_architecture() {
        let id = PartitionId::from_bytes(0x2b97_4267_9fc3_d12b_0b3b_07f9_e183_13f7_u128.to_be_bytes());
        let expected = 0xced0_ba8e_4ca3_2dc4_4117_0849_u128.to_be_bytes();
        assert_eq!(id.shown_key(), expected[4..]);
    }

    #[test]
    fn keys_of_addresses_and_numbers_have_kept_their_digests() {
        let vectors: [(&dyn ToPartitionKey, &str); 5] = [
            (&Ipv4Addr::new(192, 0, 2, 1), "ffed5b709e73f3b5e794086f416eb945"),
            (
                &Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0),
                "1057cf7a8dde4fa871f8ca03ce0c2537",
            ),
            (&7_u64, "5f8b2c324adc87a5d92194a88dba93f7"),
            (&-7_i64, "2ab039f6fa94ee04b582b33b0cf4601c"),
            (&"alice", "ffcff011929710006910acd59392a2fa"),
        ];
        for (key, digest) in vectors {
            let id = Scope::new("api").partition(&key.to_partition_key());
            assert_eq!(format!("{id:?}"), format!("PartitionId({digest})"));
        }
    }

    #[test]
    fn named_keys_have_kept_their_digests() {
        let user = PartitionKey::new("user", "alice").and(PartitionKey::new("route", "a"));
        let vectors: [(&str, &dyn ToPartitionKey, &str); 5] = [
            ("team", &"red", "315169fbe55b5f52de5061c444599a6c"),
            ("team", &7_u64, "11c986e470b0054e04fb4cfb07e719e2"),
            ("user", &7_u64, "b4b681548f8b94848014e212e9a44828"),
            (
                "address",
                &Ipv4Addr::new(192, 0, 2, 1),
                "5fb85ef582149045a403ba1b8e7d542c",
            ),
            ("ä b/c:d", &user, "b8569505d48f18a8321bf290d1b3d38f"),
        ];
        for (name, key, digest) in vectors {
            let id = Scope::new("api").keyed_by(name).partition(&key.to_partition_key());
            assert_eq!(id.to_string(), digest, "{name}");
        }
        let secret = Scope::with_digest_key("api", &[7; 32]).keyed_by("team");
        let id = secret.partition(&"red".to_partition_key());
        assert_eq!(id.to_string(), "3f301861337db4b31045cf5e88043bf0");
    }

    /// E2
    #[test]
    fn a_kind_with_the_name_of_one_of_the_crate_is_another_kind() {
        let named = |name: &str, value: &[u8]| PartitionKey::new(name, value);
        let own: [(PartitionKey, &str, &[u8]); 5] = [
            (Ipv4Addr::new(97, 98, 99, 100).to_partition_key(), "address", b"abcd"),
            (
                Ipv6Addr::from(*b"abcdefghijklmnop").to_partition_key(),
                "address",
                b"abcdefghijklmnop",
            ),
            (
                u128::from_be_bytes(*b"abcdefghijklmnop").to_partition_key(),
                "number",
                b"abcdefghijklmnop",
            ),
            ((-1_i64).to_partition_key(), "negative", &[0, 0, 0, 0, 0, 0, 0, 1]),
            ("alice".to_partition_key(), "text", b"alice"),
        ];
        for (own, name, value) in own {
            let own_text = own.to_text(200).unwrap();
            for name in [name.to_owned(), format!("={name}"), format!("=={name}")] {
                let other = named(&name, value);
                assert_ne!(own, other, "{name}");
                assert_ne!(own_text, other.to_text(200).unwrap(), "{name}");
                assert_ne!(own.clone().and(own.clone()), other.clone().and(own.clone()));
            }
        }
        let names = [
            "address",
            "=address",
            "==address",
            "===address",
            "=",
            "",
            "addres",
            "=addres",
        ];
        let keys: std::collections::HashSet<_> = names.iter().map(|name| named(name, b"abcd")).collect();
        assert_eq!(keys.len(), names.len());
    }

    #[test]
    fn scopes_and_digest_keys_give_digests_of_their_own() {
        let key = PartitionKey::new("user", "alice");
        let ids = [
            Scope::new("api").partition(&key),
            Scope::new("login").partition(&key),
            Scope::with_digest_key("api", &[7; 32]).partition(&key),
        ];
        assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2]);
    }

    #[test]
    fn a_digest_key_does_not_pass_for_the_beginning_of_a_name() {
        let key = PartitionKey::new("user", "alice");
        let keyed = Scope::with_digest_key("api", b"a key of thirty-two bytes, ASCII");
        assert_ne!(
            keyed.partition(&key),
            Scope::new("a key of thirty-two bytes, ASCIIapi").partition(&key)
        );
    }

    #[test]
    fn equal_text_split_or_ordered_differently_gives_different_keys() {
        let part = |value: &str| PartitionKey::new("part", value);
        assert_ne!(part("ab").and(part("c")), part("a").and(part("bc")));
        assert_ne!(part("a").and(part("b")), part("b").and(part("a")));
        assert_ne!(PartitionKey::new("ab", "c"), PartitionKey::new("a", "bc"));
    }

    #[test]
    fn no_formatting_shows_whose_key_it_is() {
        let key = "alice".to_partition_key();
        assert!(!format!("{key:?} {:?}", Scope::new("alice")).contains("alice"));
    }

    #[test]
    fn values_of_different_kinds_are_different_callers() {
        assert_ne!("7".to_partition_key(), 7_u64.to_partition_key());
        assert_eq!(7_u32.to_partition_key(), 7_u128.to_partition_key());
        assert_eq!(7_i32.to_partition_key(), 7_u64.to_partition_key());
        assert_ne!((-7_i64).to_partition_key(), 7_i64.to_partition_key());
        assert_ne!((-1_i64).to_partition_key(), u128::MAX.to_partition_key());
        let address: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert_eq!(address.to_partition_key(), Ipv4Addr::LOCALHOST.to_partition_key());
    }
}
