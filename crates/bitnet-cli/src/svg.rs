//! Draws distributions as SVG, without a library.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 50.0;
const COLOURS: [&str; 4] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd"];
/// Maximum number of points of a curve; more would not be visible at this width.
const POINTS: usize = 512;

/// Draws the cumulative distributions of sorted values over a logarithmic axis.
pub fn distributions(unit: &str, curves: &[(&str, &[f64])]) -> String {
    let values = || curves.iter().flat_map(|(_, values)| values.iter().copied()).filter(|&v| v > 0.0);
    let low = values().fold(f64::MAX, f64::min).log10().floor();
    let high = values().fold(f64::MIN_POSITIVE, f64::max).log10().ceil().max(low + 1.0);
    let x = |value: f64| {
        let part = (value.max(1e-9).log10().max(low) - low) / (high - low);
        LEFT + (WIDTH - LEFT - 20.0) * part
    };
    let y = |part: f64| HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 20.0) * part;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for percent in [0, 50, 90, 99, 100] {
        let at = y(f64::from(percent) / 100.0);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{percent} %</text>",
            WIDTH - 20.0,
            LEFT - 6.0,
            at + 4.0
        );
    }
    let (first, last) = (low.clamp(-9.0, 9.0) as i32, high.clamp(-9.0, 9.0) as i32);
    for power in first..=last {
        let (at, value) = (x(10f64.powi(power)), 10f64.powi(power));
        let _ = writeln!(
            out,
            "<path d=\"M{at:.1} 20V{:.1}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{value}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 16.0
        );
    }
    let (middle, below) = ((LEFT + WIDTH) / 2.0, HEIGHT - 12.0);
    let _ = writeln!(out, "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">{unit}</text>");
    for (i, (name, values)) in curves.iter().enumerate().filter(|(_, (_, values))| !values.is_empty()) {
        let (colour, line) = (COLOURS[i % COLOURS.len()], 36.0 + 16.0 * i as f64);
        let shown = values.len().min(POINTS);
        let point = |p: usize| {
            let rank = (p * values.len()).div_ceil(shown);
            format!("{:.1},{:.1}", x(values[rank - 1]), y(rank as f64 / values.len() as f64))
        };
        let points: Vec<String> = (1..=shown).map(point).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{line}\" fill=\"{colour}\">{name}</text>",
            points.join(" "),
            LEFT + 10.0
        );
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_rises_from_the_smallest_value_to_all_of_them() {
        let picture = distributions("ms", &[("a", &[1.0, 10.0, 100.0, 100.0]), ("none", &[])]);
        let points = picture.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(points, "60.0,237.5 380.0,165.0 700.0,92.5 700.0,20.0");
        assert_eq!(picture.matches("<polyline").count(), 1);
        assert!(picture.ends_with("</svg>\n"));
    }
}
