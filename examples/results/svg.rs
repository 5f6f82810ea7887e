//! An SVG writer. The picture has no scripts or external resources, works on light and dark pages, and has no blank
//! lines, so it can be embedded in Markdown.

use std::fmt::Write;

/// The colors of series, which are legible on white and on black.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Blue,
    Red,
    Green,
    Amber,
    Grey,
}

impl Colour {
    const ALL: [Self; 5] = [Self::Blue, Self::Red, Self::Green, Self::Amber, Self::Grey];

    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Blue => "blue",
            Self::Red => "red",
            Self::Green => "green",
            Self::Amber => "amber",
            Self::Grey => "grey",
        }
    }

    fn value(self) -> &'static str {
        match self {
            Self::Blue => "#2f81f7",
            Self::Red => "#e5533d",
            Self::Green => "#2c974b",
            Self::Amber => "#bf8700",
            Self::Grey => "#8c959f",
        }
    }
}

/// The elements written. Text has the color of the page: `--main-color` in rustdoc, and otherwise according to the
/// preferred color scheme.
#[derive(Debug, Default)]
pub(crate) struct Svg(String);

impl Svg {
    pub(crate) fn path(&mut self, class: &str, path: &str) {
        if !path.is_empty() {
            self.line(format_args!(r#"<path class="{class}" d="{path}"/>"#));
        }
    }

    pub(crate) fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let text = escaped(text);
        self.line(format_args!(r#"<text class="{class}" x="{x}" y="{y}">{text}</text>"#));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a String takes everything");
    }

    /// Returns the complete picture. `id` scopes its style, and `label` is the text for screen readers.
    pub(crate) fn finish(self, id: &str, (width, height): (usize, usize), label: &str, style: &str) -> String {
        let (label, content) = (escaped(label), self.0);
        let mut rules = vec![
            " { color: var(--main-color, #1f2328); max-width: 100%; height: auto }".to_owned(),
            " text { font: 13px system-ui, \"Segoe UI\", Helvetica, Arial, sans-serif; fill: currentColor }".to_owned(),
            " .note { font-size: 12px; fill-opacity: .75 }".to_owned(),
            " .center { text-anchor: middle }".to_owned(),
            " .end { text-anchor: end }".to_owned(),
            " .above { font-weight: bold }".to_owned(),
            " path { fill: none; stroke: currentColor; stroke-width: 1.6 }".to_owned(),
            " .line { stroke-width: 1; stroke-opacity: .3 }".to_owned(),
            " .border { stroke-width: 1; stroke-opacity: .4; stroke-dasharray: 2 3 }".to_owned(),
        ];
        let classes = Colour::ALL.map(|colour| (colour.class(), colour.value()));
        let used = classes
            .iter()
            .filter(|(class, _)| content.contains(&format!("\"{class}")));
        rules.extend(
            used.clone()
                .map(|(class, value)| format!(" .{class} {{ stroke: {value} }}")),
        );
        let areas = used.filter(|(class, _)| content.contains(&format!("\"{class} area\"")));
        rules.extend(areas.map(|(class, value)| format!(" .{class}.area {{ fill: {value}; stroke: none }}")));
        rules.extend(style.lines().map(|line| format!(" {line}")));
        let rules: Vec<_> = rules.iter().map(|rule| format!("#{id}{rule}")).collect();
        let (first, rest) = rules.split_first().expect("there are some");
        format!(
            r#"<svg id="{id}" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{label}">
<style>
{first}
@media (prefers-color-scheme: dark) {{ #{id} {{ color: var(--main-color, #e6edf3) }} }}
{rest}
</style>
{content}</svg>
"#,
            rest = rest.join("\n")
        )
    }
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
