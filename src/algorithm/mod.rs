//! The algorithms, as pure functions of states and times, one file each.
//!
//! A [`Counter`] is a policy in the numbers of its algorithm. Its [`State`] is stored by in-process stores, and its
//! [`Reading`] is the state of any store before a charge. A [`Limit`] is a counter with an optional [`Lockout`] or
//! overage. Everything reported to clients is derived from its [`PolicyReading`].
//!
//! The Lua file of the same name does the arithmetic of [`Arithmetic`] in the same order: integers below 2⁵³ and only +
//! − × ÷, comparisons, floor and ceil, so that doubles and integers give equal results.

/// Passes the algorithms to a macro, after its other arguments.
macro_rules! with_algorithms {
    ($then:ident! $($arguments:tt)*) => {
        $then!($($arguments)* Bucket, FixedWindow, SlidingCounter, SlidingLog, Concurrency, Calendar, Closed);
    };
}

mod ahead;
mod arithmetic;
pub(crate) mod bucket;
mod bytes;
pub(crate) mod calendar;
mod closed;
mod concurrency;
mod dispatch;
mod eviction;
mod fixed_window;
mod limit;
mod lockout;
mod newcomer;
mod plain;
pub(crate) mod sliding_counter;
pub(crate) mod sliding_log;
mod window;

pub use self::calendar::{CalendarPeriod, Weekday};
pub(crate) use self::{
    ahead::ChargeRejection,
    arithmetic::{Arithmetic, Form, Late, MAX_CLOCK_STEP, Moment, Moments, Receipt, Sent, Times},
    bucket::{Bucket, BucketReading},
    bytes::{EXACT, Reader, Writer},
    calendar::{Borders, Calendar, TIME_ZONE_DATA},
    closed::Closed,
    concurrency::Concurrency,
    dispatch::{Counter, Measured, Reading, Settling, State},
    eviction::EvictionPriority,
    fixed_window::FixedWindow,
    limit::{Limit, PolicyReading},
    lockout::Lockout,
    newcomer::Newcomer,
    plain::{PlainCounter, PlainRejection},
    sliding_counter::SlidingCounter,
    sliding_log::SlidingLog,
    window::Window,
};
