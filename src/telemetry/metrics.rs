//! A metric is declared once, beside the code that records it. Handles are created on first use and kept, so that later
//! requests need neither lookups nor allocations.

use super::facade::{Counter, Gauge, Handle};

/// Declares metrics: `struct` those of a scope, which it creates together; `fn` those of the process, without labels,
/// each with a function that creates its handle. Created series with known labels start at 0, because Prometheus rates
/// ignore the first value of a series.
macro_rules! metrics {
    (struct $group:ident {
        $($field:ident: $metric:ty = $name:literal, $description:literal $(, $labels:expr)?;)*
    }) => {
        #[derive(Debug)]
        pub(crate) struct $group {
            $(pub(crate) $field: $metric,)*
        }

        impl $group {
            fn new(scope: &str) -> Self {
                use $crate::telemetry::metrics::Metric;

                $(<$metric>::describe($name, $description);)*
                Self {
                    $($field: <$metric as Metric>::new($name, scope, ($($labels)?)),)*
                }
            }
        }
    };
    (fn $start:ident { $($field:ident: $metric:ty = $name:literal, $description:literal;)* }) => {
        $(pub(crate) fn $field() -> $metric {
            <$metric as $crate::telemetry::metrics::Metric>::new($name, "", ())
        })*

        pub(super) fn $start() {
            use $crate::telemetry::metrics::Metric;

            $(<$metric>::describe($name, $description);
            let _ = $field();)*
        }
    };
}

pub(super) trait Metric: Sized {
    type Handle: Handle;
    type Labels;

    fn describe(name: &'static str, description: &'static str) {
        <Self::Handle as Handle>::describe(name, description);
    }

    /// `scope` is empty for metrics of the process.
    fn new(name: &'static str, scope: &str, labels: Self::Labels) -> Self;
}

fn create<H: Handle>(name: &'static str, scope: &str, labels: &[(&'static str, &str)]) -> H {
    let scope = (!scope.is_empty()).then_some(("scope", scope));
    H::create(name, scope.into_iter().chain(labels.iter().copied()))
}

impl<H: Handle> Metric for H {
    type Handle = H;
    type Labels = ();

    fn new(name: &'static str, scope: &str, (): ()) -> Self {
        create(name, scope, &[])
    }
}

/// A counter for each of the listed values of a label. Others are not counted.
#[derive(Debug)]
pub(crate) struct Each<K>(Vec<(K, Counter)>);

impl<K: Copy + 'static> Metric for Each<K> {
    type Handle = Counter;
    type Labels = (&'static str, &'static [(K, &'static str)]);

    fn new(name: &'static str, scope: &str, (label, values): Self::Labels) -> Self {
        let counter = |value| create(name, scope, &[(label, value)]);
        Self(values.iter().map(|(key, value)| (*key, counter(value))).collect())
    }
}

impl<K: PartialEq> Each<K> {
    pub(crate) fn increment(&self, key: K) {
        if let Some((_, counter)) = self.0.iter().find(|(own, _)| *own == key) {
            counter.increment(1);
        }
    }
}

/// Counters that are neither created before they are used nor kept.
#[derive(Debug)]
pub(crate) struct Family<const N: usize> {
    name: &'static str,
    scope: Box<str>,
    pub(super) labels: [&'static str; N],
}

impl<const N: usize> Metric for Family<N> {
    type Handle = Counter;
    type Labels = [&'static str; N];

    fn new(name: &'static str, scope: &str, labels: Self::Labels) -> Self {
        let scope = scope.into();
        Self { name, scope, labels }
    }
}

impl<const N: usize> Family<N> {
    pub(crate) fn get(&self, values: [&str; N]) -> Counter {
        let labels: [_; N] = std::array::from_fn(|label| (self.labels[label], values[label]));
        create(self.name, &self.scope, &labels)
    }
}

/// Adds one to a gauge until it is dropped.
#[derive(Debug)]
pub(crate) struct OneMore(Gauge);

impl OneMore {
    pub(crate) fn on(gauge: &Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge.clone())
    }
}

impl Drop for OneMore {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
