//! Floats with a given number of digits, as C's `printf` writes them.

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// `%e`.
    Exponent,
    /// `%f`.
    Fixed,
    /// `%g`.
    General,
}

/// Writes a number that is not negative. `alternate` keeps the point and the zeros at the end.
pub(super) fn format(number: f64, style: Style, precision: usize, alternate: bool) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return "inf".into();
    }
    // No float has more digits.
    let precision = precision.min(1100);
    let point = |text: String| if alternate && precision == 0 { text + "." } else { text };
    match style {
        Style::Fixed => point(format!("{number:.precision$}")),
        Style::Exponent => exponent(number, precision, alternate),
        Style::General => {
            let precision = precision.max(1);
            let scientific = format!("{number:.*e}", precision - 1);
            let power: i32 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
            let text = if power < -4 || power >= precision as i32 {
                exponent(number, precision - 1, alternate)
            } else {
                format!("{number:.*}", (precision as i32 - 1 - power).max(0) as usize)
            };
            if alternate { text } else { shortened(&text) }
        }
    }
}

fn exponent(number: f64, precision: usize, alternate: bool) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    let sign = if power < 0 { '-' } else { '+' };
    let point = if alternate && precision == 0 { "." } else { "" };
    format!("{digits}{point}e{sign}{:02}", power.abs())
}

/// The text without zeros at the end of its fraction.
fn shortened(text: &str) -> String {
    let (digits, power) = text.split_once('e').map_or((text, String::new()), |(d, p)| (d, format!("e{p}")));
    if digits.contains('.') {
        digits.trim_end_matches('0').trim_end_matches('.').to_owned() + &power
    } else {
        text.into()
    }
}
