//! Charts of measurements: stacked panels of lines with a common axis, and bars.

use super::svg::{Colour, Svg};

const WIDTH: f64 = 860.0;
/// In pixels: the left and right ends of the axes.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 830.0;
const PANEL: f64 = 190.0;
const GAP: f64 = 44.0;
/// The maximum number of points of a line with marks.
const MARKED: usize = 20;

/// The quantity along an axis, with its unit.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) is_logarithmic: bool,
}

impl Axis {
    pub(crate) fn linear(label: &str) -> Self {
        Self {
            label: label.to_owned(),
            is_logarithmic: false,
        }
    }

    pub(crate) fn logarithmic(label: &str) -> Self {
        Self {
            is_logarithmic: true,
            ..Self::linear(label)
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) colour: Colour,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Series {
    pub(crate) fn new(name: &str, colour: Colour, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.to_owned(),
            colour,
            points,
        }
    }
}

/// Lines over the axis that all panels share.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
}

/// Panels with a common horizontal axis.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// The ID of the element, to scope its style.
    pub(crate) id: String,
    /// The text for screen readers.
    pub(crate) label: String,
    pub(crate) x: Axis,
    pub(crate) panels: Vec<Panel>,
    /// Events along the horizontal axis.
    pub(crate) marks: Vec<(f64, String)>,
    /// The notes at the bottom, with the source of the figures.
    pub(crate) notes: Vec<String>,
}

impl Chart {
    pub(crate) fn draw(&self) -> String {
        let mut svg = Svg::default();
        let all = || {
            self.panels
                .iter()
                .flat_map(|panel| &panel.series)
                .flat_map(|series| &series.points)
        };
        let marks = self.marks.iter().map(|(at, _)| *at);
        let x = Scale::new(&self.x, all().map(|(x, _)| *x).chain(marks), (LEFT, RIGHT), false);
        let mut top = if self.marks.is_empty() { 34.0 } else { 56.0 };
        for panel in &self.panels {
            let bottom = top + PANEL;
            self.marks(&mut svg, &x, top, bottom, top < 60.0);
            panel.draw(&mut svg, &x, top, bottom);
            top = bottom + GAP;
        }
        let bottom = top - GAP;
        for (at, text) in x.ticks() {
            svg.text("note center", round(x.place(at)), bottom + 16.0, &text);
        }
        svg.text("note center", f64::midpoint(LEFT, RIGHT), bottom + 36.0, &self.x.label);
        let bottom = notes(&mut svg, &self.notes, bottom + 60.0);
        svg.finish(&self.id, (WIDTH as usize, bottom as usize), &self.label, "")
    }

    fn marks(&self, svg: &mut Svg, x: &Scale, top: f64, bottom: f64, is_first: bool) {
        for (at, name) in &self.marks {
            let at = round(x.place(*at));
            svg.path("border", &format!("M{at} {top}V{bottom}"));
            if is_first {
                svg.text("note", at + 3.0, top - 30.0, name);
            }
        }
    }
}

impl Panel {
    pub(crate) fn new(y: Axis, series: Vec<Series>) -> Self {
        Self { y, series }
    }

    fn draw(&self, svg: &mut Svg, x: &Scale, top: f64, bottom: f64) {
        let values = self.series.iter().flat_map(|series| &series.points);
        let y = Scale::new(&self.y, values.map(|(_, y)| *y), (bottom, top), true);
        svg.text("note", 0.0, top - 12.0, &self.y.label);
        for (at, text) in y.ticks() {
            let height = round(y.place(at));
            svg.path("line", &format!("M{LEFT} {height}H{RIGHT}"));
            svg.text("note end", LEFT - 6.0, height + 4.0, &text);
        }
        // The names are aligned to the right, in order.
        let mut right = RIGHT;
        for series in self.series.iter().rev() {
            svg.text("note end", right, top - 12.0, &series.name);
            // An average character is seven pixels wide.
            right -= series.name.chars().count() as f64 * 6.6 + 6.0;
            svg.path(
                series.colour.class(),
                &format!("M{} {}h14", round(right - 14.0), top - 16.0),
            );
            right -= 30.0;
        }
        for Series { colour, points, .. } in &self.series {
            let places = points.iter().filter(|(at_x, at_y)| x.has(*at_x) && y.has(*at_y));
            let places = places.map(|(at_x, at_y)| format!("{} {}", round(x.place(*at_x)), round(y.place(*at_y))));
            let places: Vec<_> = places.collect();
            if !places.is_empty() {
                // Marks the measured points, unless there are too many.
                let marks = places.iter().filter(|_| places.len() <= MARKED);
                let marks: String = marks.map(|place| format!("M{place}m-2.5-2.5h5v5h-5z")).collect();
                svg.path(colour.class(), &format!("M{}{marks}", places.join("L")));
            }
        }
    }
}

/// Converts values to pixels.
struct Scale {
    is_logarithmic: bool,
    values: (f64, f64),
    pixels: (f64, f64),
    /// The distance between ticks of a linear scale.
    step: f64,
}

impl Scale {
    /// Creates a scale for all values. If `is_whole`, it starts and ends at full steps.
    fn new(axis: &Axis, values: impl Iterator<Item = f64>, pixels: (f64, f64), is_whole: bool) -> Self {
        let values = values.filter(|value| value.is_finite() && (*value > 0.0 || !axis.is_logarithmic));
        let (least, most) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
            (least.min(value), most.max(value))
        });
        let (least, most) = if least > most { (1.0, 1.0) } else { (least, most) };
        let step = nice_above(most.max(f64::MIN_POSITIVE) / if is_whole { 6.0 } else { 10.0 });
        let values = match (axis.is_logarithmic, is_whole) {
            (true, true) => (nice_below(least), nice_above(most.max(least * 2.0))),
            (true, false) => (least, most.max(least * 2.0)),
            (false, true) => (0.0, step * (most / step).ceil().max(1.0)),
            (false, false) => (0.0, most.max(step)),
        };
        Self {
            is_logarithmic: axis.is_logarithmic,
            values,
            pixels,
            step,
        }
    }

    fn has(&self, value: f64) -> bool {
        value.is_finite() && (value > 0.0 || !self.is_logarithmic)
    }

    fn place(&self, value: f64) -> f64 {
        let ((least, most), (first, last)) = (self.values, self.pixels);
        let part = match self.is_logarithmic {
            true => (value / least).ln() / (most / least).ln(),
            false => (value - least) / (most - least),
        };
        first + part * (last - first)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        let (least, most) = self.values;
        let values: Vec<f64> = match self.is_logarithmic {
            true => {
                let powers = (least.log10().floor() as i32)..=(most.log10().ceil() as i32);
                // Parsing a power of ten from text is exact.
                let power = |power: i32| format!("1e{power}").parse::<f64>().unwrap_or(1.0);
                powers
                    .flat_map(|exponent| [1.0, 2.0, 5.0].map(|digit| digit * power(exponent)))
                    .collect()
            }
            false => (0..=20).map(|tick| f64::from(tick) * self.step).collect(),
        };
        let within = |value: &f64| *value >= least * 0.999_999 && *value <= most * 1.000_001;
        values
            .into_iter()
            .filter(within)
            .map(|value| (value, number(value)))
            .collect()
    }
}

/// Rounds up to 1, 2 or 5 times a power of ten.
fn nice_above(value: f64) -> f64 {
    nice(value, |nice| nice >= value * 0.999_999)
}

fn nice_below(value: f64) -> f64 {
    1.0 / nice_above(1.0 / value)
}

fn nice(value: f64, is_enough: impl Fn(f64) -> bool) -> f64 {
    let exponent = if value > 0.0 { value.log10().floor() as i32 } else { 0 };
    let digits = ["1", "2", "5", "10"].map(|digit| format!("{digit}e{exponent}").parse().unwrap_or(1.0));
    digits.into_iter().find(|nice| is_enough(*nice)).unwrap_or(value)
}

/// Formats a number with three significant digits and a space between thousands.
pub(crate) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 | 10.0.. => 0,
        1.0.. => 1,
        0.1.. => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let digits = whole.chars().count();
    let spaced: String = whole
        .chars()
        .enumerate()
        .flat_map(|(index, digit)| {
            let is_gap = index > 0 && (digits - index) % 3 == 0 && digits > 4;
            [is_gap.then_some('\u{a0}'), Some(digit)].into_iter().flatten()
        })
        .collect();
    spaced + rest
}

/// Tenths of a pixel are enough.
fn round(pixels: f64) -> f64 {
    (pixels * 10.0).round() / 10.0
}

/// Draws the notes at the bottom. Returns the height of the picture.
fn notes(svg: &mut Svg, notes: &[String], mut y: f64) -> f64 {
    for note in notes {
        svg.text("note", 0.0, y, note);
        y += 17.0;
    }
    y - 9.0
}

#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) colour: Colour,
    pub(crate) value: f64,
    pub(crate) text: String,
}

/// Bars of one unit, grouped under headings.
#[derive(Clone, Debug)]
pub(crate) struct Bars {
    pub(crate) id: String,
    pub(crate) label: String,
    /// Each group has a separate scale that starts at zero.
    pub(crate) groups: Vec<(String, Vec<Bar>)>,
    pub(crate) notes: Vec<String>,
}

/// The maximum width of an average character in pixels.
const CHARACTER: f64 = 7.6;
/// In pixels: the minimum and maximum left edge of bars, depending on the length of their names.
const BARS: [f64; 2] = [180.0, 530.0];

impl Bars {
    pub(crate) fn draw(&self) -> String {
        let (mut svg, mut y) = (Svg::default(), 20.0);
        let longest = |text: fn(&Bar) -> &str| {
            let bars = self.groups.iter().flat_map(|(_, bars)| bars);
            let characters = bars.map(|bar| text(bar).chars().count()).max();
            characters.unwrap_or(0) as f64 * CHARACTER + 10.0
        };
        let left = longest(|bar| &bar.name).clamp(BARS[0], BARS[1]);
        let most_length = WIDTH - left - longest(|bar| &bar.text);
        for (heading, bars) in &self.groups {
            svg.text("above", 0.0, y, heading);
            let most = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
            let first = y + 10.0;
            for bar in bars {
                y += 22.0;
                svg.text("end", round(left - 10.0), y, &bar.name);
                let length = round((bar.value / most).clamp(0.0, 1.0) * most_length);
                let class = format!("{} area", bar.colour.class());
                svg.path(&class, &format!("M{} {}h{length}v14h-{length}z", round(left), y - 11.0));
                svg.text("", round(left + length + 8.0), y, &bar.text);
            }
            svg.path("line", &format!("M{} {first}V{}", round(left), y + 8.0));
            y += 38.0;
        }
        let bottom = notes(&mut svg, &self.notes, y - 4.0);
        svg.finish(&self.id, (WIDTH as usize, bottom as usize), &self.label, "")
    }
}
