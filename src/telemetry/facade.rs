/// If false, values for metrics are not computed.
pub(super) const METRICS: bool = cfg!(feature = "metrics");

#[cfg(feature = "metrics")]
pub(crate) use metrics::{Counter, Gauge, Histogram};

#[cfg(not(feature = "metrics"))]
pub(crate) use self::nothing::{Nothing as Counter, Nothing as Gauge, Nothing as Histogram};

pub(crate) trait Handle {
    fn describe(name: &'static str, description: &'static str);

    fn create<'a>(name: &'static str, labels: impl Iterator<Item = (&'static str, &'a str)>) -> Self;
}

#[cfg(feature = "metrics")]
macro_rules! handles {
    ($($handle:ident in $unit:ident: $describe:ident, $create:ident $(, $start:literal)?;)*) => {
        $(impl Handle for $handle {
            fn describe(name: &'static str, description: &'static str) {
                metrics::$describe!(name, metrics::Unit::$unit, description);
            }

            fn create<'a>(name: &'static str, labels: impl Iterator<Item = (&'static str, &'a str)>) -> Self {
                let labels = labels.map(|(name, value)| metrics::Label::new(name, value.to_owned()));
                let handle = metrics::$create!(name, labels.collect::<Vec<_>>());
                $(handle.increment($start);)?
                handle
            }
        })*
    };
}

#[cfg(feature = "metrics")]
handles! {
    Counter in Count: describe_counter, counter, 0;
    Gauge in Count: describe_gauge, gauge, 0.0;
    Histogram in Seconds: describe_histogram, histogram;
}

#[cfg(not(feature = "metrics"))]
mod nothing {
    #[derive(Clone, Debug)]
    pub(crate) struct Nothing;

    impl super::Handle for Nothing {
        fn describe(_: &'static str, _: &'static str) {}

        fn create<'a>(_: &'static str, _: impl Iterator<Item = (&'static str, &'a str)>) -> Self {
            Self
        }
    }

    impl Nothing {
        pub(crate) fn increment<T>(&self, _: T) {}
        pub(crate) fn decrement<T>(&self, _: T) {}
        pub(crate) fn set<T>(&self, _: T) {}
        pub(crate) fn record<T>(&self, _: T) {}
    }
}
