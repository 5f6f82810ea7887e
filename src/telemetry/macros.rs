//! Macros for events.

macro_rules! event {
    (target: $target:literal, $level:ident, $($name:ident = %$value:expr,)* $message:literal) => {
        tracing::event!(target: $target, tracing::Level::$level, $($name = %$value,)* $message)
    };
    ($level:ident, $($rest:tt)*) => {
        event!(target: "tower_quota", $level, $($rest)*)
    };
}

/// At most once per ten seconds, with the number of suppressed events.
macro_rules! throttled {
    ($throttle:expr, at $now:expr, $level:ident, $($name:ident = %$value:expr,)* $message:literal) => {
        $throttle.record($now, |suppressed| {
            event!($level, $($name = %$value,)* suppressed = %suppressed, $message);
        })
    };
}

/// `once` unless it was reported before.
macro_rules! mistake {
    (once by $log:ident, $mistake:ident, $($rest:tt)*) => {
        mistake!(once in $log.told, $mistake, scope = %$log.scope, $($rest)*)
    };
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
