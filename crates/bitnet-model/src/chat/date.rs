//! Formats the current date, for templates that tell it to the model.

/// The current date in UTC, with the directives that templates use: `%Y %m %d %b %B %H %M %S`.
pub(super) fn today(format: &str) -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs(), format)
}

/// A time in UTC, given in seconds since 1970, with these directives: `%Y %m %d %b %B %H %M %S`.
pub fn date(seconds: u64, format: &str) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let (year, month, day) = civil(seconds / 86_400);
    let clock = seconds % 86_400;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out += &year.to_string(),
            Some('m') => out += &format!("{month:02}"),
            Some('d') => out += &format!("{day:02}"),
            Some('B') => out += MONTHS[month as usize - 1],
            Some('b') => out += &MONTHS[month as usize - 1][..3],
            Some('H') => out += &format!("{:02}", clock / 3600),
            Some('M') => out += &format!("{:02}", clock / 60 % 60),
            Some('S') => out += &format!("{:02}", clock % 60),
            Some('%') | None => out.push('%'),
            Some(other) => out.extend(['%', other]),
        }
    }
    out
}

/// Converts days since 1970-01-01 to year, month and day (the inverse of Howard Hinnant's "days_from_civil").
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + u64::from(month <= 2), month, day)
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
}
