/// If false, values for metrics are not computed.
pub(super) const METRICS: bool = cfg!(feature = "metrics");

#[cfg(feature = "metrics")]
pub(super) use metrics::{
    Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

#[cfg(not(feature = "metrics"))]
pub(super) use self::nothing::{
    Counter, Gauge, Histogram, Label, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

#[cfg(not(feature = "metrics"))]
mod nothing {
    #[derive(Clone, Debug)]
    pub(crate) struct Counter;

    #[derive(Clone, Debug)]
    pub(crate) struct Gauge;

    #[derive(Clone, Debug)]
    pub(crate) struct Histogram;

    pub(crate) struct Label;

    impl Counter {
        pub(crate) fn increment(&self, _: u64) {}
    }

    impl Gauge {
        pub(crate) fn increment(&self, _: f64) {}
        pub(crate) fn decrement(&self, _: f64) {}
        pub(crate) fn set(&self, _: f64) {}
    }

    impl Histogram {
        pub(crate) fn record<T>(&self, _: T) {}
    }

    impl Label {
        pub(crate) fn new(_: &'static str, _: String) -> Self {
            Self
        }
    }

    macro_rules! counter {
        ($($argument:expr),+) => {{
            let _ = || ($($argument),+);
            $crate::telemetry::facade::Counter
        }};
    }

    macro_rules! gauge {
        ($($argument:expr),+) => {{
            let _ = || ($($argument),+);
            $crate::telemetry::facade::Gauge
        }};
    }

    macro_rules! histogram {
        ($($argument:expr),+) => {{
            let _ = || ($($argument),+);
            $crate::telemetry::facade::Histogram
        }};
    }

    macro_rules! describe {
        ($name:expr, Unit::$unit:ident, $description:expr) => {
            let _ = ($name, $description);
        };
    }

    pub(crate) use {
        counter, describe as describe_counter, describe as describe_gauge, describe as describe_histogram, gauge,
        histogram,
    };
}
