//! The current time, for templates that tell it to the model.

use jiff::{Timestamp, Zoned, fmt::strtime, tz::TimeZone};

/// The directives of C's `strftime`; jiff has others of its own.
const DIRECTIVES: &str = "aAbBCdDeFgGhHIjklmMnpPrRsStTuUVwWyY";

/// The local time in this form, as Python's `datetime.now().strftime(format)` writes it.
pub(super) fn now(format: &str) -> String {
    formatted(&Zoned::now(), format)
}

/// A time in UTC, given in seconds since 1970, in this form.
pub fn date(seconds: u64, format: &str) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    formatted(&time.unwrap_or(Timestamp::MAX).to_zoned(TimeZone::UTC), format)
}

/// Writes each directive of `strftime` in the C locale. What is no directive stays as it is.
fn formatted(time: &Zoned, format: &str) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let directive = directive(&rest[at..]);
        rest = &rest[at + directive.len()..];
        match directive.chars().next_back() {
            Some('c') => out += &formatted(time, "%a %b %e %H:%M:%S %Y"),
            Some('x') => out += &formatted(time, "%m/%d/%y"),
            Some('X') => out += &formatted(time, "%H:%M:%S"),
            // Python's times have no zone unless they are told one.
            Some('z' | 'Z') => {}
            // Python counts microseconds.
            Some('f') => out += &format!("{:06}", time.subsec_nanosecond() / 1000),
            Some('%') if directive.len() > 1 => out.push('%'),
            Some(letter) if DIRECTIVES.contains(letter) => match strtime::format(directive, time) {
                Ok(text) => out += &text,
                Err(_) => out += directive,
            },
            _ => out += directive,
        }
    }
    out + rest
}

/// The directive at the beginning of a text: `%`, flags, a width and a letter.
fn directive(text: &str) -> &str {
    let letter = text.char_indices().skip(1).find(|(_, c)| !matches!(c, '-' | '_' | '^' | '#' | '0'..='9'));
    letter.map_or(text, |(at, c)| &text[..at + c.len_utf8()])
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date(0, "%d %b %Y"), "01 Jan 1970");
        assert_eq!(date(951_782_400, "%Y-%m-%d %H:%M:%S"), "2000-02-29 00:00:00");
        assert_eq!(date(1_735_689_599, "%B %d, %Y %H:%M:%S 100%%"), "December 31, 2024 23:59:59 100%");
    }

    /// The right values are Python's.
    #[test]
    fn every_directive_is_written_as_python_writes_it() {
        let time = 1_700_000_000;
        for (format, text) in [
            ("%A, %d %B %Y", "Tuesday, 14 November 2023"),
            ("%a %b %e %-d %-m %-I %I %p", "Tue Nov 14 14 11 10 10 PM"),
            ("%j %U %W %V %G %u %w %y %C", "318 46 46 46 2023 2 2 23 20"),
            (
                "%D %F %T %R %c %x %X",
                "11/14/23 2023-11-14 22:13:20 22:13 Tue Nov 14 22:13:20 2023 11/14/23 22:13:20",
            ),
            ("%f %z%Z%s", "000000 1700000000"),
            ("%Q %", "%Q %"),
            ("no directive", "no directive"),
        ] {
            assert_eq!(date(time, format), text, "{format}");
        }
    }
}
