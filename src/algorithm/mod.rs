//! The arithmetic of each algorithm: pure steps without a clock, a runtime or HTTP, one file each.
//!
//! A [`Counter`] is a policy in the numbers of its algorithm, a [`State`] what a store in this process keeps for it, and a
//! [`Reading`] what any store says about it at one moment, before a charge. All that is told to clients follows from the
//! reading, so that it is computed in one place.
//!
//! A [`Limit`] is a counter with its [`Lockout`], if it has one. What is said to clients follows from the [`PolicyReading`] of
//! both.
//!
//! [`Arithmetic`] is what an algorithm has to say, and [`dispatch`] gives a counter to the algorithm that it is of.
//!
//! A piece of Lua beside each file is the same arithmetic in the same order. Both keep to integers below 2⁵³ and to
//! + − × ÷, comparison, floor and ceil, so that doubles and integers give the same numbers.

mod ahead;
mod arithmetic;
mod bucket;
mod bytes;
mod calendar;
mod closed;
mod concurrency;
mod dispatch;
mod eviction;
mod fixed_window;
mod limit;
mod lockout;
pub(crate) mod sliding_counter;
pub(crate) mod sliding_log;
mod window;

pub use self::calendar::{CalendarPeriod, Weekday};
pub(crate) use self::{
    ahead::ChargeRejection,
    arithmetic::{Arithmetic, Form, Late, MAX_CLOCK_STEP, Moment, Moments, Receipt, Times},
    bucket::Bucket,
    bytes::{EXACT, Reader, Writer},
    calendar::{Borders, Calendar, TIME_ZONE_DATA},
    closed::Closed,
    concurrency::Concurrency,
    dispatch::{Counter, Reading, Settling, State},
    eviction::EvictionPriority,
    fixed_window::FixedWindow,
    limit::{Limit, PolicyReading},
    lockout::Lockout,
    sliding_counter::SlidingCounter,
    sliding_log::SlidingLog,
    window::Window,
};
