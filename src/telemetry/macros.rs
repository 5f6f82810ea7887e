//! Events that vanish without the feature `tracing`.

#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($name:ident = %$value:expr,)* $message:literal) => {
        tracing::event!(target: "tower_quota", tracing::Level::$level, $($name = %$value,)* $message)
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($level:ident, $($name:ident = %$value:expr,)* $message:literal) => {{
        $(let _ = &$value;)*
    }};
}
