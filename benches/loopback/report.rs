//! Formats figures as Markdown, for reading and for `benches/results.md`.

use std::fmt;

/// A median with its minimum and maximum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Spread {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |at: usize| values.get(at).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Self {
            least: at(0),
            median: (at(last / 2) + at(last.div_ceil(2))) / 2.0,
            most: at(last),
        }
    }

    pub(crate) fn show(&self, digits: usize) -> String {
        let Self {
            least,
            median,
            most,
        } = self;
        if least == most {
            return format!("{median:.digits$}");
        }
        format!("{median:.digits$} ({least:.digits$}–{most:.digits$})")
    }
}

/// A table in Markdown.
pub(crate) struct Table(Vec<Vec<String>>);

impl Table {
    pub(crate) fn new(head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut table = Self(Vec::new());
        table.row(head);
        table
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.0.push(cells.into_iter().map(Into::into).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.0[0].len();
        let width = |column: usize| {
            let cells = self.0.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0).max(4)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for (at, row) in self.0.iter().enumerate() {
            write!(f, "| {:1$} |", row[0], widths[0])?;
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                write!(f, " {cell:>width$} |")?;
            }
            if at == 0 {
                write!(f, "\n| {} |", "-".repeat(widths[0]))?;
                for width in &widths[1..] {
                    write!(f, " {}: |", "-".repeat(width - 1))?;
                }
            }
            if at + 1 < self.0.len() {
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

/// The target of a figure.
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

/// The verdicts on all targets.
#[derive(Default)]
pub(crate) struct Verdicts {
    rows: Vec<(String, Target, Spread, usize)>,
    is_doubtful: bool,
}

impl Verdicts {
    /// Compares medians. `digits` is the number of decimal places.
    pub(crate) fn add(
        &mut self,
        what: impl Into<String>,
        target: Target,
        measured: Spread,
        digits: usize,
    ) {
        self.rows.push((what.into(), target, measured, digits));
    }

    /// Prints why figures may be wrong, and records that there was a reason.
    pub(crate) fn doubt(&mut self, why: &str) {
        println!("\nDOUBTFUL: {why}.");
        self.is_doubtful = true;
    }
}

impl fmt::Display for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(["what", "target", "measured", "verdict"]);
        for (what, target, measured, digits) in &self.rows {
            let (target, is_met) = match target {
                Target::AtLeast(least) => (format!("≥ {least}"), measured.median >= *least),
                Target::AtMost(most) => (format!("≤ {most}"), measured.median <= *most),
            };
            let verdict = if is_met { "met" } else { "missed" };
            table.row([what.clone(), target, measured.show(*digits), verdict.into()]);
        }
        table.fmt(f)?;
        if self.is_doubtful {
            f.write_str(
                "\n\nDOUBTFUL, see above: the machine was not idle, so these figures are unreliable.",
            )?;
        }
        Ok(())
    }
}
