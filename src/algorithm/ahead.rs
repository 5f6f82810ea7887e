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
        let counter = Counter::Bucket(bucket);
        assert_eq!(
            counter.rejection(empty, 7, one, one, 0, 0),
            Some(ChargeRejection::For(1_000_000))
        );
        assert_eq!(
            counter.rejection(empty, 7, one, one, 999_999, 0),
            Some(ChargeRejection::For(1))
        );
        assert_eq!(counter.rejection(empty, 7, one, one, 1_000_000, 0), None);
        assert_eq!(
            counter.rejection(empty, 7, one, 2 * one, 1_000_000, 0),
            Some(ChargeRejection::For(1_000_000))
        );
        assert_eq!(
            counter.rejection(Reading::Bucket(BucketReading::default()), 7, one, 61 * one, MINUTE, 0),
            Some(ChargeRejection::Never {
                remaining: 60,
                reset: Some(MINUTE)
            })
        );

        let window = Counter::FixedWindow(FixedWindow::new(10, 60));
        let used = Reading::FixedWindow;
        assert_eq!(
            window.rejection(used(10), MINUTE - 5, 1, 1, 4, 0),
            Some(ChargeRejection::For(1))
        );
        assert_eq!(window.rejection(used(10), MINUTE - 5, 1, 1, 5, 0), None);
        assert_eq!(window.rejection(used(9), MINUTE - 5, 2, 1, 0, 0), None);
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
        assert_eq!(
            counter.rejection(reading, 0, 3, 3, 499, 0),
            Some(ChargeRejection::For(1))
        );
        assert_eq!(counter.rejection(reading, 0, 3, 3, 500, 0), None);
        // A larger charge waits at least as long, and passes when all entries have left.
        assert_eq!(
            counter.rejection(reading, 0, 3, 5, 499, 0),
            Some(ChargeRejection::For(MINUTE - 499))
        );
        // One unit is available when the oldest entry leaves.
        assert_eq!(
            counter.rejection(reading, 0, 3, 1, 99, 0),
            Some(ChargeRejection::For(1))
        );
        assert_eq!(counter.rejection(reading, 0, 3, 1, 100, 0), None);
        assert_eq!(counter.rejection(reading, 0, 3, 2, 100, 0), None);
        // The remaining units are those of the reading, because it is unknown when entries leave.
        let never = |remaining, reset| {
            let reset = Some(reset);
            Some(ChargeRejection::Never { remaining, reset })
        };
        assert_eq!(counter.rejection(reading, 0, 3, 11, 100, 0), never(0, 500));
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
