/// A date of the Gregorian calendar, with its leap years.
const DATE: &str = "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)\
    |02-(?:0[1-9]|1[0-9]|2[0-8]))\
    |(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";

/// A time with its offset. Leap seconds are left out: few programs read them.
const TIME: &str = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// The pattern of a format of dates or times, as RFC 3339 writes them.
pub(super) fn pattern(format: &str) -> Option<String> {
    match format {
        "date" => Some(format!("^{DATE}$")),
        "time" => Some(format!("^{TIME}$")),
        "date-time" => Some(format!("^{DATE}[tT]{TIME}$")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::matches;
    use super::*;

    #[test]
    fn a_date_is_one_of_the_calendar() {
        let date = pattern("date").unwrap();
        for (text, valid) in [
            ("2024-02-29", true),
            ("2000-02-29", true),
            ("1900-02-29", false),
            ("2023-02-29", false),
            ("2023-02-28", true),
            ("2023-04-31", false),
            ("2023-12-31", true),
            ("2023-13-01", false),
            ("2023-1-01", false),
        ] {
            assert_eq!(matches(&date, text), Some(valid), "{text}");
        }
        let time = pattern("date-time").unwrap();
        for (text, valid) in [
            ("2024-02-29T23:59:59.5+01:00", true),
            ("2024-02-29T00:00:00Z", true),
            ("2024-02-29T24:00:00Z", false),
            ("2024-02-29T00:00:00", false),
        ] {
            assert_eq!(matches(&time, text), Some(valid), "{text}");
        }
    }
}
