use serde::{Deserialize, Serialize};

use super::values::Whole;
use crate::policy::{CalendarPeriod, CalendarWindow, Weekday};

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a map with `period` and `time_zone`")]
pub(super) struct CalendarForm {
    period: PeriodForm,
    time_zone: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    week_begins: Option<WeekdayForm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    month_begins: Option<Whole<31>>,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum PeriodForm {
    Day,
    Month,
    Week,
}

#[derive(Deserialize, Serialize)]
struct WeekdayForm(#[serde(with = "WeekdayName")] Weekday);

#[derive(Deserialize, Serialize)]
#[serde(remote = "Weekday", rename_all = "snake_case")]
enum WeekdayName {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl CalendarForm {
    pub(super) fn of(window: &CalendarWindow) -> Self {
        let (period, week_begins, month_begins) = match window.period() {
            CalendarPeriod::Day => (PeriodForm::Day, None, None),
            CalendarPeriod::MONTH => (PeriodForm::Month, None, None),
            CalendarPeriod::Month { begins } => (PeriodForm::Month, None, Some(Whole(begins.into()))),
            CalendarPeriod::Week { begins } => (PeriodForm::Week, Some(WeekdayForm(begins)), None),
        };
        Self {
            period,
            time_zone: window.time_zone().to_owned(),
            week_begins,
            month_begins,
        }
    }

    pub(super) fn into_window(self) -> Result<CalendarWindow, String> {
        let period = match (self.period, self.week_begins, self.month_begins) {
            (PeriodForm::Day, None, None) => CalendarPeriod::Day,
            (PeriodForm::Month, None, None) => CalendarPeriod::MONTH,
            (PeriodForm::Month, None, Some(Whole(day))) => CalendarPeriod::Month {
                begins: u8::try_from(day).map_err(|_| format!("calendar: `month_begins` {day} is outside 1..=31"))?,
            },
            (PeriodForm::Week, None, None) => CalendarPeriod::WEEK,
            (PeriodForm::Week, Some(WeekdayForm(begins)), None) => CalendarPeriod::Week { begins },
            (PeriodForm::Day | PeriodForm::Month, Some(_), _) => {
                return Err("calendar: `week_begins` requires the period week".to_owned());
            }
            (PeriodForm::Day | PeriodForm::Week, _, Some(_)) => {
                return Err("calendar: `month_begins` requires the period month".to_owned());
            }
        };
        Ok(CalendarWindow::new(period, self.time_zone))
    }
}
