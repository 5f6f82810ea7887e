/// A rejection that is certain as long as other requests only add usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeRejection {
    /// Microseconds.
    For(u64),
    /// The charge exceeds the capacity. Smaller charges can use the remaining units.
    Never { remaining: u64, reset: Option<u64> },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{
        Bucket, BucketReading, Counter, FixedWindow, Limit, PolicyReading, Reading, SlidingLog, sliding_log::LogReading,
    };

    const MINUTE: u64 = 60_000_000;

    impl Counter {
        fn rejection(
            &self,
            counted: Reading,
            now: u64,
            asked: u64,
            charge: u64,
            elapsed: u64,
            locked: u64,
        ) -> Option<ChargeRejection> {
            let limit = Limit {
                counter: *self,
                quota: None,
                lockout: None,
                newcomer: None,
            };
            limit.rejection(PolicyReading { counted, locked }, now, asked, charge, elapsed)
        }
    }

    #[test]
    fn a_rejection_ends_at_the_microsecond_at_which_the_charge_passes() {
        let bucket = Bucket::token(60, 60, 60).unwrap();
        let (one, empty) = (bucket.weight, Reading::Bucket(BucketReading::from(bucket.limit)));
        let (counter, unused) = (Counter::Bucket(bucket), Reading::Bucket(BucketReading::default()));
        let remaining = 60;
        let never = ChargeRejection::Never {
            remaining,
            reset: Some(MINUTE),
        };
        for (reading, charge, elapsed, expected) in [
            (empty, one, 0, Some(ChargeRejection::For(1_000_000))),
            (empty, one, 999_999, Some(ChargeRejection::For(1))),
            (empty, one, 1_000_000, None),
            (empty, 2 * one, 1_000_000, Some(ChargeRejection::For(1_000_000))),
            (unused, 61 * one, MINUTE, Some(never)),
        ] {
            let rejection = counter.rejection(reading, 7, one, charge, elapsed, 0);
            assert_eq!(rejection, expected, "{charge} after {elapsed}");
        }

        let window = Counter::FixedWindow(FixedWindow::new(10, 60));
        for (used, asked, elapsed, expected) in [
            (10, 1, 4, Some(ChargeRejection::For(1))),
            (10, 1, 5, None),
            (9, 2, 0, None),
        ] {
            let rejection = window.rejection(Reading::FixedWindow(used), MINUTE - 5, asked, 1, elapsed, 0);
            assert_eq!(rejection, expected, "{used} after {elapsed}");
        }
    }

    #[test]
    fn a_log_denies_other_charges_only_as_far_as_it_is_certain() {
        let counter = Counter::SlidingLog(SlidingLog::new(10, 60).unwrap());
        let reading = Reading::SlidingLog(LogReading {
            used: 10,
            wait: 500,
            oldest_leaves: 100,
            newest_leaves: MINUTE,
            sequence: 4,
        });
        let rejection = |charge, elapsed| counter.rejection(reading, 0, 3, charge, elapsed, 0);
        for (charge, elapsed, expected) in [
            (3, 499, Some(ChargeRejection::For(1))),
            (3, 500, None),
            // A larger charge waits at least as long, and passes when all entries have left.
            (5, 499, Some(ChargeRejection::For(MINUTE - 499))),
            // One unit is available when the oldest entry leaves.
            (1, 99, Some(ChargeRejection::For(1))),
            (1, 100, None),
            (2, 100, None),
        ] {
            assert_eq!(rejection(charge, elapsed), expected, "{charge} after {elapsed}");
        }
        // The remaining units are those of the reading, because it is unknown when entries leave.
        let never = |remaining, reset| {
            let reset = Some(reset);
            Some(ChargeRejection::Never { remaining, reset })
        };
        assert_eq!(rejection(11, 100), never(0, 500));
        let with_room = Reading::SlidingLog(LogReading {
            used: 4,
            wait: 0,
            oldest_leaves: MINUTE / 2,
            newest_leaves: MINUTE,
            sequence: 4,
        });
        assert_eq!(counter.rejection(with_room, 0, 3, 11, 100, 0), never(6, MINUTE / 2));
        // A lockout extends the certain rejection. The log may still reject the charge afterwards.
        let locked = |charge| counter.rejection(reading, 0, 3, charge, 600, 700);
        assert_eq!(locked(3), Some(ChargeRejection::For(100)));
        assert_eq!(locked(5), Some(ChargeRejection::For(MINUTE - 600)));
    }
}
