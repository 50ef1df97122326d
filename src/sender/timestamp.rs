//! Reads the time at which a sender signed.

use serde::Deserialize;

/// How a timestamp is written.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
    Rfc3339,
    /// As RFC 3339, and in UTC without an offset.
    Iso8601,
}

impl Unit {
    /// Milliseconds since 1970. `None` unless they are plain digits, or in the form of RFC 3339.
    pub(super) fn millis(self, text: &[u8]) -> Option<i64> {
        match self {
            // A zero in front could belong to what is signed before it.
            Self::Seconds | Self::Milliseconds if text.first() == Some(&b'0') => None,
            Self::Seconds => number(text)?.checked_mul(1000),
            Self::Milliseconds => number(text),
            Self::Rfc3339 => rfc3339(text, None),
            Self::Iso8601 => rfc3339(text, Some(0)),
        }
    }

    /// Writes a time, as a sender does.
    pub(super) fn write(self, millis: i64) -> String {
        let seconds = millis.div_euclid(1000);
        match self {
            Self::Seconds => seconds.to_string(),
            Self::Milliseconds => millis.to_string(),
            Self::Rfc3339 | Self::Iso8601 => {
                let (year, month, day) = date(seconds.div_euclid(86_400));
                let second = seconds.rem_euclid(86_400);
                let (hour, minute) = (second / 3600, second / 60 % 60);
                let second = second % 60;
                let time =
                    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
                match self {
                    Self::Iso8601 => format!("{time}.{:03}", millis.rem_euclid(1000)),
                    _ => time + "Z",
                }
            }
        }
    }
}

/// Up to 15 digits, without a sign.
fn number(text: &[u8]) -> Option<i64> {
    // 15 digits are milliseconds until the year 33658, and cannot overflow below.
    let is_number = !text.is_empty() && text.len() <= 15 && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| {
        text.iter()
            .fold(0, |sum, digit| 10 * sum + i64::from(digit - b'0'))
    })
}

/// `2026-01-31T23:59:59.123456789Z`, or with an offset, which may be missing if there is one to assume.
fn rfc3339(text: &[u8], assumed: Option<i64>) -> Option<i64> {
    #[rustfmt::skip]
    let [y0, y1, y2, y3, b'-', m0, m1, b'-', d0, d1, b'T', h0, h1, b':', i0, i1, b':', s0, s1, ref rest @ ..] = *text
    else {
        return None;
    };
    let two = |ten, one| number(&[ten, one]);
    let (year, month, day) = (number(&[y0, y1, y2, y3])?, two(m0, m1)?, two(d0, d1)?);
    let (hour, minute, second) = (two(h0, h1)?, two(i0, i1)?, two(s0, s1)?);
    let (millis, zone) = match rest.strip_prefix(b".") {
        None => (0, rest),
        Some(rest) => {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (fraction, zone) = rest.split_at(digits);
            // `.5` is 500 ms: zeros follow the digits. More than three digits are checked and cut off.
            let first = [fraction, b"000"].concat();
            (number(fraction).and(number(&first[..3]))?, zone)
        }
    };
    let offset = match zone {
        b"Z" => 0,
        b"" => assumed?,
        [sign @ (b'+' | b'-'), a, b, b':', c, d] => {
            let (hours, minutes) = (two(*a, *b)?, two(*c, *d)?);
            let seconds = 3600 * hours + 60 * minutes;
            if *sign == b'-' { -seconds } else { seconds }
        }
        _ => return None,
    };
    // A day that its month lacks counts into the next one: the sender signed it, and the window still decides.
    let exists = (1..=12).contains(&month) && (1..=31).contains(&day);
    // Second 60 is a leap second.
    if !exists || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = 86_400 * days(year, month, day) + 3600 * hour + 60 * minute + second - offset;
    Some(1000 * seconds + millis)
}

/// The days from 1970 to a date of the Gregorian calendar, counted from March, so that a leap day is the last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let month = (month + 9) % 12;
    365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        // The days of the months before this one: 31, 30, 31, 30, 31 from March on, and again from August on.
        + (153 * month + 2) / 5
        + day
        - 719_469
}

/// The date of a day since 1970.
fn date(day: i64) -> (i64, i64, i64) {
    // Years of 365 days count too many years, so the loop only goes back.
    let mut year = 1970 + day.div_euclid(365) + 1;
    while days(year, 1, 1) > day {
        year -= 1;
    }
    let mut month = 12;
    while days(year, month, 1) > day {
        month -= 1;
    }
    (year, month, 1 + day - days(year, month, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_plain_digits() {
        let (seconds, millis) = (Unit::Seconds, Unit::Milliseconds);
        assert_eq!(seconds.millis(b"1790000000"), Some(1_790_000_000_000));
        assert_eq!(millis.millis(b"1790000000123"), Some(1_790_000_000_123));
        let long = "1".repeat(30);
        for wrong in [
            "",
            "01",
            "+1",
            "-1",
            "1.0",
            ".5",
            "1e9",
            " 1",
            "1 ",
            "0x1",
            "1790000000.1",
            &long,
        ] {
            assert_eq!(seconds.millis(wrong.as_bytes()), None, "{wrong:?}");
            assert_eq!(millis.millis(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn times_of_rfc_3339_are_read() {
        let read = |text: &str| Unit::Rfc3339.millis(text.as_bytes());
        assert_eq!(read("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(read("2026-11-24T17:05:14Z"), Some(1_795_539_914_000));
        assert_eq!(
            read("2020-02-29T23:59:59.123456789-07:00"),
            Some(1_583_045_999_123)
        );
        assert_eq!(read("2000-03-01T00:00:00.5+01:00"), Some(951_865_200_500));
        for wrong in [
            "",
            "2026-11-24",
            "2026-11-24T17:05:14",
            "2026-11-24 17:05:14Z",
            "2026-13-24T17:05:14Z",
            "2026-11-24T17:05:14.Z",
            "2026-11-24T24:05:14Z",
            "+026-11-24T17:05:14Z",
            "2026-11-24T17:05:14z",
            "2026-11-24T17:05:14Zx",
            "2026-11-24T17:05:14+1:00",
        ] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
        for millis in [
            0,
            951_782_400_000,
            951_868_800_000,
            1_583_020_800_000,
            1_767_225_599_000,
        ] {
            assert_eq!(read(&Unit::Rfc3339.write(millis)), Some(millis));
            let unit = Unit::Iso8601;
            assert_eq!(
                unit.millis(unit.write(millis + 7).as_bytes()),
                Some(millis + 7)
            );
        }
    }
}
