//! Macros for events and spans.

macro_rules! event {
    (target: $target:literal, $level:ident, $($name:ident = %$value:expr,)* $message:literal) => {
        tracing::event!(target: $target, tracing::Level::$level, $($name = %$value,)* $message)
    };
    ($level:ident, $($rest:tt)*) => {
        event!(target: "tower_quota", $level, $($rest)*)
    };
}

/// Explanations have a separate target, because they contain addresses.
macro_rules! is_explained {
    () => {
        tracing::enabled!(target: "tower_quota::explain", tracing::Level::DEBUG)
    };
}

/// `once` unless it was reported before.
macro_rules! mistake {
    (once in $told:expr, $mistake:ident, $($rest:tt)*) => {
        if $told.is_first($crate::mistake::Mistake::$mistake) {
            mistake!($mistake, $($rest)*);
        }
    };
    ($mistake:ident, $($name:ident = %$value:expr,)* $message:literal) => {
        event!(
            WARN,
            $($name = %$value,)*
            mistake = %$crate::mistake::Mistake::$mistake.name(),
            help = %$crate::mistake::Mistake::$mistake.help(),
            $message
        )
    };
}

macro_rules! record {
    ($($name:literal = $value:expr),*) => {{
        // Without a subscriber, there is no span. Reading the level is faster than looking for the span.
        if tracing::level_filters::LevelFilter::current() != tracing::level_filters::LevelFilter::OFF {
            let span = tracing::Span::current();
            if !span.is_none() {
                $(span.record($name, $value);)*
            }
        }
    }};
}

pub(crate) type InSpan<F> = tracing::instrument::Instrumented<F>;

macro_rules! in_span {
    ($name:literal, scope = $scope:expr, $future:expr) => {
        tracing::Instrument::instrument(
            $future,
            tracing::debug_span!(target: "tower_quota", $name, scope = %$scope),
        )
    };
}
