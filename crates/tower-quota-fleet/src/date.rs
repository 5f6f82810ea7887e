use std::time::{Duration, UNIX_EPOCH};

pub(crate) fn date(seconds: u64) -> String {
    const YEAR_10_000: u64 = 253_402_300_800;

    match seconds {
        ..YEAR_10_000 => httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds)),
        _ => seconds.to_string(),
    }
}
