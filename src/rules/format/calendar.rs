//! The windows of a calendar as any serde format has them.

use serde::Deserialize;

use crate::policy::{CalendarPeriod, CalendarWindow, Weekday};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a map with `period` and `time_zone`")]
pub(super) struct CalendarForm {
    period: PeriodForm,
    time_zone: String,
    week_begins: Option<WeekdayForm>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PeriodForm {
    Day,
    Month,
    Week,
}

macro_rules! weekdays {
    ($($day:ident),+) => {
        #[derive(Clone, Copy, Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum WeekdayForm {
            $($day),+
        }

        impl From<WeekdayForm> for Weekday {
            fn from(form: WeekdayForm) -> Self {
                match form {
                    $(WeekdayForm::$day => Self::$day),+
                }
            }
        }
    };
}

weekdays!(Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday);

impl CalendarForm {
    pub(super) fn into_window(self) -> Result<CalendarWindow, String> {
        let period = match (self.period, self.week_begins) {
            (PeriodForm::Day, None) => CalendarPeriod::Day,
            (PeriodForm::Month, None) => CalendarPeriod::Month,
            (PeriodForm::Week, None) => CalendarPeriod::WEEK,
            (PeriodForm::Week, Some(begins)) => CalendarPeriod::Week { begins: begins.into() },
            (PeriodForm::Day | PeriodForm::Month, Some(_)) => {
                return Err("calendar: only a week has `week_begins`".to_owned());
            }
        };
        Ok(CalendarWindow::new(period, self.time_zone))
    }
}
