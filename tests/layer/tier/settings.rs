//! Settings out of their ranges are found before the first request.

use std::{convert::Infallible, time::Duration};

use tower_quota::{
    ConfigErrorKind,
    tier::{OnUnknownTier, TierLayer, TierLayerBuilder},
};

use super::support::{MILLISECOND, SECOND};

fn builder() -> TierLayerBuilder {
    TierLayer::by_extension(|_: u64| async { Ok::<_, Infallible>(None::<&str>) })
}

#[test]
fn a_setting_out_of_its_range_is_rejected_with_its_name_the_value_and_the_bounds() {
    let (zero, micro, week) = (Duration::ZERO, Duration::from_micros(1), 7 * 24 * 3_600 * SECOND);
    let unknown = |on_unknown_tier| builder().on_unknown_tier(on_unknown_tier);
    let (short, empty) = (OnUnknownTier::wait(micro), OnUnknownTier::tier(""));
    let long = OnUnknownTier::wait(61 * SECOND).then_admit_uncounted();
    let long_name = OnUnknownTier::wait(SECOND).then_tier("x".repeat(257));
    for (builder, message) in [
        (
            builder().time_to_live(zero),
            "time_to_live 0ns is outside 1ms..=604800s",
        ),
        (
            builder().time_to_live(week + micro),
            "time_to_live 604800.000001s is outside 1ms..=604800s",
        ),
        (
            builder().stale_for(week + micro),
            "stale_for 604800.000001s is outside 0ns..=604800s",
        ),
        (unknown(short), "on_unknown_tier: wait 1µs is outside 1ms..=60s"),
        (unknown(long), "on_unknown_tier: wait 61s is outside 1ms..=60s"),
        (unknown(empty), "on_unknown_tier: tier name length 0 is outside 1..=256"),
        (
            unknown(long_name),
            "on_unknown_tier: tier name length 257 is outside 1..=256",
        ),
        (builder().max_look_ups(0), "max_look_ups 0 is outside 1..=65536"),
        (
            builder().max_look_ups(65_537),
            "max_look_ups 65537 is outside 1..=65536",
        ),
        (
            builder().max_users(0),
            "max_users 0 is outside 1..=18446744073709551615",
        ),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Tier);
        assert_eq!(error.to_string(), format!("tier layer: {message}"));
    }
}

#[test]
fn settings_at_their_bounds_are_taken() {
    let week = 7 * 24 * 3_600 * SECOND;
    for builder in [
        builder()
            .time_to_live(MILLISECOND)
            .stale_for(Duration::ZERO)
            .on_unknown_tier(OnUnknownTier::wait(MILLISECOND).then_tier("x"))
            .max_look_ups(1)
            .max_users(1),
        builder()
            .time_to_live(week)
            .stale_for(week)
            .on_unknown_tier(OnUnknownTier::wait(60 * SECOND).then_tier("x".repeat(256)))
            .max_look_ups(65_536)
            .max_users(usize::MAX),
    ] {
        builder.build().unwrap();
    }
}
