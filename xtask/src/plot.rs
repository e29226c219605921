//! What `bitnet bench` measured, as pictures: tokens a second over the batch size, below what the machine allows.

use std::{ops::Range, path::Path};

use anyhow::{Context, Result, ensure};
use plotters::prelude::*;
use serde_json::Value;

/// Tokens a second of one batch size.
struct Point {
    batch: f64,
    median: f64,
    least: f64,
    most: f64,
    /// What streaming the weights once a step would give.
    by_memory: f64,
}

/// Decode speeds of a model, as `bitnet bench --json` reports them.
struct Decode {
    points: Vec<Point>,
    /// What the ternary products alone would give at the integer peak.
    by_products: f64,
}

impl Decode {
    fn of(result: &Value) -> Option<Self> {
        let number = |value: &Value, key: &str| value[key].as_f64();
        let (bandwidth, peak) =
            (number(result, "memory_bandwidth_gb_s")?, number(result, "integer_peak_tops")?);
        let by_products = peak * 1e12 / (2.0 * number(result, "trits")?);
        let points = result["decode"].as_array()?.iter().map(|row| {
            let median = number(row, "tok_s")?;
            Some(Point {
                batch: number(row, "batch")?,
                median,
                least: number(row, "tok_s_min")?,
                most: number(row, "tok_s_max")?,
                by_memory: median * bandwidth / number(row, "gb_s")?,
            })
        });
        Some(Decode { points: points.collect::<Option<_>>()?, by_products })
    }

    fn limit(&self, point: &Point) -> f64 {
        point.by_memory.min(self.by_products)
    }

    fn batches(&self) -> Range<f64> {
        let of = |point: &Point| point.batch;
        let (first, last) =
            (self.points.iter().map(of).reduce(f64::min), self.points.iter().map(of).reduce(f64::max));
        first.unwrap_or(1.0) / 1.2..last.unwrap_or(1.0) * 1.2
    }

    fn highest(&self) -> f64 {
        self.points.iter().map(|p| self.limit(p).max(p.most)).fold(0.0, f64::max) * 1.1
    }
}

/// Draws the decode speeds of one `bitnet bench --json` into an SVG file.
pub(crate) fn decode(result: &Value, file: &Path) -> Result<()> {
    let what = || format!("drawing {}", file.display());
    let decode = Decode::of(result).with_context(what)?;
    ensure!(!decode.points.is_empty(), "{}: there is no decode speed to draw", file.display());
    let text = |key: &str| result[key].as_str().unwrap_or("?");
    let title = format!("{}, {}, {} threads", text("model"), text("isa"), result["threads"]);
    draw(&decode, &title, file).map_err(|e| anyhow::anyhow!("{e}")).with_context(what)
}

fn draw(decode: &Decode, title: &str, file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(file, (720, 440)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(decode.batches().log_scale(), 0.0..decode.highest())?;
    chart
        .configure_mesh()
        .x_desc("sequences decoded together")
        .y_desc("tokens a second")
        .x_label_formatter(&|batch| format!("{batch:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    let limit = decode.points.iter().map(|p| (p.batch, decode.limit(p)));
    chart
        .draw_series(LineSeries::new(limit, RED.stroke_width(1)))?
        .label("what memory and integer products allow")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], RED));
    let measured = decode.points.iter().map(|p| (p.batch, p.median));
    chart
        .draw_series(LineSeries::new(measured, BLUE.stroke_width(2)).point_size(3))?
        .label("measured: median, least, most")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLUE));
    let spread = |p: &Point| PathElement::new([(p.batch, p.least), (p.batch, p.most)], BLUE);
    chart.draw_series(decode.points.iter().map(spread))?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_picture_has_what_was_measured_and_the_lower_of_both_limits() {
        let row = |batch: u32, tok_s: f64| {
            json!({"batch": batch, "tok_s": tok_s, "tok_s_min": tok_s - 1.0,
            "tok_s_max": tok_s + 1.0, "gb_s": 20.0 / f64::from(batch)})
        };
        let mut result = json!({"model": "m", "isa": "i", "threads": 2, "memory_bandwidth_gb_s": 40.0,
            "integer_peak_tops": 0.5, "trits": 2e9, "decode": [row(1, 30.0), row(8, 90.0)]});
        let decode_of = Decode::of(&result).unwrap();
        let limits: Vec<f64> = decode_of.points.iter().map(|p| decode_of.limit(p)).collect();
        assert_eq!(limits, [60.0, 125.0]);
        let file = std::env::temp_dir().join(format!("bitnet-plot-{}.svg", std::process::id()));
        decode(&result, &file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        assert!(
            svg.starts_with("<svg") && svg.contains("m, i, 2 threads") && svg.contains("tokens a second")
        );
        assert!(svg.matches("<circle").count() >= 2, "{svg}");
        result["decode"] = json!([]);
        assert!(decode(&result, &file).unwrap_err().to_string().contains("no decode speed"));
        std::fs::remove_file(file).unwrap();
    }
}
