use std::fmt;

use super::{Arithmetic, Form, Late, Reader, Receipt, Sent, Times, Writer};
use crate::lease::Lease;

macro_rules! algorithms {
    ($d:tt $($algorithm:ident),+) => {
        use super::{$($algorithm),+};

        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Counter {
            $($algorithm($algorithm)),+
        }

        #[derive(Clone, Debug)]
        pub(crate) enum State {
            $($algorithm(<$algorithm as Arithmetic>::State)),+
        }

        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Reading {
            $($algorithm(<$algorithm as Arithmetic>::Reading)),+
        }

        trait Named: Arithmetic {
            fn reading(reading: Self::Reading) -> Reading;
            fn of(reading: &Reading) -> Self::Reading;
        }

        $(impl Named for $algorithm {
            #[inline]
            fn reading(reading: Self::Reading) -> Reading {
                Reading::$algorithm(reading)
            }

            #[inline]
            fn of(reading: &Reading) -> Self::Reading {
                match reading {
                    Reading::$algorithm(own) => *own,
                    other => mismatch(stringify!($algorithm), other),
                }
            }
        })+

        /// Calls the counter's algorithm, named `A` in the step.
        macro_rules! step {
            ($d counter:expr, |$d own:ident| $d step:expr) => {
                match $d counter {
                    $(Counter::$algorithm($d own) => {
                        #[allow(dead_code, reason = "not every arm uses the name")]
                        type A = $algorithm;
                        $d step
                    }),+
                }
            };
        }

        macro_rules! step_with {
            ($d counter:expr, $d state:expr, |$d own:ident, $d its:ident| $d step:expr) => {
                match ($d counter, $d state) {
                    $((Counter::$algorithm($d own), State::$algorithm($d its)) => {
                        #[allow(dead_code, reason = "not every arm uses the name")]
                        type A = $algorithm;
                        $d step
                    })+
                    (counter, other) => mismatch(counter, other),
                }
            };
        }

        impl Counter {
            pub(crate) fn unused(&self) -> State {
                match self {
                    $(Self::$algorithm(_) => State::$algorithm(Default::default())),+
                }
            }

            /// Converts the used units to the numbers of this policy. Drops states of another algorithm, which belong
            /// to another policy with the same ID.
            pub(crate) fn convert(&self, state: &State, from: &Self) -> State {
                match (self, state, from) {
                    $((Self::$algorithm(to), State::$algorithm(state), Self::$algorithm(from)) => {
                        State::$algorithm(to.convert(state, from))
                    })+
                    _ => self.unused(),
                }
            }

            /// In the numbers of the settling policy. Nothing is rejected, because the units are already used.
            pub(crate) fn charge_late(
                &self,
                state: &mut State,
                charge: u64,
                Settling { counter, receipt, times, clock, first, .. }: Settling<'_>,
            ) {
                let now = times.now;
                match (self, state, counter) {
                    $((Self::$algorithm(own), State::$algorithm(state), Self::$algorithm(settling)) => {
                        let late = Late { charge, settling, receipt, now, clock };
                        let reading = own.read(state, times, 0, first);
                        own.charge(state, now, reading, own.believed(reading, late), None);
                    })+
                    (counter, state, _) => mismatch(counter, state),
                }
            }

            pub(crate) fn late_part(&self, reading: &Reading, charge: u64, now: u64) -> u64 {
                let receipt = Receipt { at: now, ..Receipt::default() };
                match (self, reading) {
                    $((Self::$algorithm(own), Reading::$algorithm(reading)) => {
                        own.believed(*reading, Late { charge, settling: own, receipt, now, clock: now })
                    })+
                    (counter, reading) => mismatch(counter, reading),
                }
            }

            /// In the numbers of the settling policy. Does nothing if the charge was made in another lifetime of the
            /// state. Logs and slots do not check this, because they identify their entries and holders.
            pub(crate) fn refund(
                &self,
                state: &mut State,
                refund: u64,
                Settling { counter, receipt, times, birth, .. }: Settling<'_>,
            ) {
                let is_young = times.now.saturating_sub(receipt.at) < receipt.refundable_micros;
                let is_due = match self.form() {
                    Form::Log => is_young,
                    Form::Numbers => is_young && receipt.birth.is_none_or(|its_birth| its_birth == birth),
                    Form::Slots => true,
                };
                self.advance(state, times);
                match (self, state, counter) {
                    $((Self::$algorithm(own), State::$algorithm(state), Self::$algorithm(settling)) if is_due => {
                        own.refund(state, times.now, refund, settling, receipt);
                    })+
                    _ => {}
                }
            }

            pub(crate) fn in_windows_of(self, settling: &Self) -> Self {
                match (self, settling) {
                    $((Self::$algorithm(own), Self::$algorithm(settling)) => {
                        Self::$algorithm(own.in_windows_of(settling))
                    })+
                    (own, _) => own,
                }
            }

            /// `None` for invalid bytes.
            pub(crate) fn parse(bytes: &mut Reader<'_>) -> Option<(Self, State)> {
                match bytes.any()? {
                    $(<$algorithm as Arithmetic>::CODE => {
                        let (own, state) = $algorithm::parse(bytes)?;
                        Some((Self::$algorithm(own), State::$algorithm(state)))
                    })+
                    _ => None,
                }
            }
        }
    };
}

with_algorithms!(algorithms! $);

impl Reading {
    /// Adjusts the rate of a bucket whose policy has changed to the rate after the decision. `is_written` is false for
    /// plans that charge nothing, which leave the level unchanged.
    pub(crate) fn decided(&mut self, is_written: bool, is_charged: bool) {
        if let Self::Bucket(reading) = self {
            reading.other = reading
                .other
                .filter(|other| !is_written || (other.is_kept && !is_charged));
        }
    }
}

/// Never called: states of other policies are [converted](Counter::convert) first.
#[cold]
fn mismatch(own: impl fmt::Debug, other: impl fmt::Debug) -> ! {
    unreachable!("{own:?} and {other:?} belong to different algorithms")
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settling<'a> {
    pub(crate) counter: &'a Counter,
    pub(crate) receipt: Receipt,
    pub(crate) times: Times,
    /// The server's time, in microseconds.
    pub(crate) clock: u64,
    pub(crate) birth: u32,
    pub(crate) first: u64,
}

pub(crate) struct Measured {
    pub(crate) reading: Reading,
    pub(crate) fits: bool,
    /// True if the state is numeric and has any usage.
    pub(crate) is_counted: bool,
}

impl Counter {
    #[inline]
    pub(crate) fn form(&self) -> Form {
        step!(self, |_own| A::FORM)
    }

    #[inline]
    pub(crate) fn weigh(&self, cost: u64) -> u64 {
        step!(self, |own| own.weigh(cost))
    }

    pub(crate) fn units(&self) -> u64 {
        step!(self, |own| own.units())
    }

    pub(crate) fn fill_micros(&self) -> u64 {
        step!(self, |own| own.fill_micros())
    }

    pub(crate) fn window_micros(&self, now: u64) -> Option<u64> {
        step!(self, |own| own.window_micros(now))
    }

    pub(crate) fn lapse_micros(&self, now: u64) -> Option<u64> {
        step!(self, |own| own.lapse_micros(now))
    }

    #[inline]
    pub(crate) fn read(&self, state: &State, times: Times, charge: u64, first: u64) -> Reading {
        step_with!(self, state, |own, state| {
            A::reading(own.read(state, times, charge, first))
        })
    }

    /// In one dispatch, because one dispatch per value is slower than the arithmetic.
    #[inline]
    pub(crate) fn measure(&self, state: &State, times: Times, cost: u64, first: u64) -> Measured {
        step_with!(self, state, |own, state| {
            let charge = own.weigh(cost);
            let reading = own.read(state, times, charge, first);
            Measured {
                reading: A::reading(reading),
                fits: own.admits(reading, times.now, charge),
                is_counted: A::FORM == Form::Numbers && reading != <A as Arithmetic>::Reading::default(),
            }
        })
    }

    pub(crate) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// The reading is passed by reference: copying it with wide loads directly after narrow stores stalls the
    /// processor.
    #[inline]
    pub(crate) fn charge(&self, state: &mut State, now: u64, reading: &Reading, cost: u64, lease: Option<Lease>) {
        step_with!(self, state, |own, state| {
            own.charge(state, now, A::of(reading), own.weigh(cost), lease)
        });
    }

    pub(crate) fn is_refundable(&self, is_unused: bool) -> bool {
        step!(self, |own| own.is_refundable(is_unused))
    }

    pub(crate) fn advance(&self, state: &mut State, times: Times) {
        step_with!(self, state, |own, state| own.advance(state, times));
    }

    pub(crate) fn empty_at(&self, state: &State, last: u64) -> u64 {
        step_with!(self, state, |own, state| own.empty_at(state, last))
    }

    pub(crate) fn is_used(&self, state: &State, last: u64, now: u64) -> bool {
        self.form() == Form::Numbers && self.empty_at(state, last) > now
    }

    pub(crate) fn write(&self, state: &State, bytes: &mut Writer) {
        step_with!(self, state, |own, state| {
            bytes.write(A::CODE);
            own.write(state, bytes);
        });
    }

    pub(crate) fn newest_entry(&self, state: &State) -> Option<u64> {
        step_with!(self, state, |_own, state| A::newest_entry(state))
    }

    pub(crate) fn rebase(&self, state: &mut State, now: u64) {
        step_with!(self, state, |_own, state| A::rebase(state, now));
    }

    #[inline]
    pub(crate) fn admits(&self, reading: Reading, now: u64, charge: u64) -> bool {
        step!(self, |own| own.admits(A::of(&reading), now, charge))
    }

    #[inline]
    pub(crate) fn charged(&self, reading: Reading, charge: u64) -> Reading {
        step!(self, |own| A::reading(own.charged(A::of(&reading), charge)))
    }

    pub(crate) fn mark(&self, reading: Reading, charge: u64) -> u64 {
        step!(self, |_own| A::mark(A::of(&reading), charge))
    }

    pub(crate) fn any_mark(&self) -> u64 {
        step!(self, |own| own.any_mark())
    }

    pub(crate) fn remaining(&self, reading: Reading, now: u64) -> u64 {
        step!(self, |own| own.remaining(A::of(&reading), now))
    }

    #[inline]
    pub(crate) fn left_after(&self, reading: &Reading, now: u64, charge: u64) -> (u64, Option<u64>) {
        step!(self, |own| {
            let charged = own.charged(A::of(reading), charge);
            (own.remaining(charged, now), own.reset(charged, now))
        })
    }

    pub(crate) fn full_after(&self, reading: Reading, now: u64) -> Option<u64> {
        step!(self, |own| own.full_after(A::of(&reading), now))
    }

    pub(crate) fn wait(&self, reading: Reading, now: u64, charge: u64) -> Option<u64> {
        step!(self, |own| own.wait(A::of(&reading), now, charge))
    }

    #[inline]
    pub(crate) fn delay(&self, reading: Reading, charge: u64) -> u64 {
        step!(self, |own| own.delay(A::of(&reading), charge))
    }

    #[inline]
    pub(crate) fn certain_wait(&self, reading: Reading, asked: u64, charge: u64, wait: u64) -> (u64, u64) {
        step!(self, |own| own.certain_wait(A::of(&reading), asked, charge, wait))
    }

    pub(crate) fn predicts(&self, reading: Reading, asked: u64) -> bool {
        step!(self, |own| own.predicts(A::of(&reading), asked))
    }

    pub(crate) fn predict(&self, reading: Reading, now: u64, elapsed: u64, charge: u64, hold: u64) -> Option<Reading> {
        step!(self, |own| {
            own.predict(A::of(&reading), now, elapsed, charge, hold).map(A::reading)
        })
    }
}

#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for the script"))]
impl Counter {
    pub(crate) fn sent(&self, lease_micros: u64) -> Sent {
        step!(self, |own| own.sent(lease_micros))
    }

    pub(crate) fn width(&self) -> usize {
        step!(self, |_own| A::WIDTH)
    }

    pub(crate) fn received(&self, next: impl FnMut() -> Option<u64>) -> Option<Reading> {
        step!(self, |_own| A::received(next).map(A::reading))
    }
}
