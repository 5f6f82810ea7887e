//! The test vectors of the drafts. `vectors/README.md` describes each file.

use std::{fs, path::Path};

use arc_credentials::{IssuerKey, Profile};
use serde_json::Value;

/// A file of vectors.
pub(crate) fn read(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    serde_json::from_str(&fs::read_to_string(folder.join(name)).unwrap()).unwrap()
}

/// Both profiles, each with the official vectors for it.
pub(crate) fn of_the_scheme() -> [(Profile, Value); 2] {
    [
        (Profile::P384, read("arc-P384.json")),
        (Profile::P256, read("arc-P256-nonce-revealed.json")),
    ]
}

/// Decodes a hexadecimal value.
pub(crate) fn bytes(value: &Value) -> Vec<u8> {
    let digits = value.as_str().unwrap();
    let pairs = (0..digits.len()).step_by(2);
    pairs
        .map(|start| u8::from_str_radix(&digits[start..start + 2], 16).unwrap())
        .collect()
}

/// Values of an object, their bytes one after the other.
pub(crate) fn concat(object: &Value, names: &[&str]) -> Vec<u8> {
    names.iter().flat_map(|name| bytes(&object[name])).collect()
}

/// The private key in a file of vectors.
pub(crate) fn issuer_key(profile: Profile, vectors: &Value) -> IssuerKey {
    let bytes = concat(&vectors["ServerKey"], &["x0", "x1", "x2", "xb"]);
    IssuerKey::from_bytes(profile, &bytes).unwrap()
}
