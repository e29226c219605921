//! How products are best launched on a GPU, as a tuning run has measured, in a text file beside the program.

use std::{fmt, str::FromStr};

use crate::Grouping;

/// Name of the file.
pub const FILE: &str = "bitnet.tiles";

/// Maximum of every number in the file: more than any model has, and little enough for estimates not to overflow.
const MOST: usize = 1 << 20;

/// How a product is launched. Its result has the same bits however it is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Which of the activations share a scale.
    pub grouping: Grouping,
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix, rounded up to a multiple of 128.
    pub cols: usize,
    /// Tokens in the product.
    pub tokens: usize,
    /// Tokens that a thread block takes.
    pub tile: usize,
    /// Number of thread blocks that share the columns of each tile.
    pub splits: usize,
}

impl Tiling {
    /// Whether both are for the same product.
    pub fn is_for_product_of(&self, other: &Self) -> bool {
        Tiling { tile: other.tile, splits: other.splits, ..*self } == *other
    }
}

/// `row` or `group`, rows, columns, tokens, tokens of a block, splits.
impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tiling { grouping, rows, cols, tokens, tile, splits } = self;
        let scales = match grouping {
            Grouping::Row => "row",
            Grouping::Groups => "group",
        };
        write!(f, "{scales} {rows} {cols} {tokens} {tile} {splits}")
    }
}

/// A line of the file: a tiling, and the GPU on which it takes the least time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// How to launch the product.
    pub tiling: Tiling,
    /// The vendor's name for the GPU.
    pub gpu: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.tiling, self.gpu)
    }
}

/// The text is not a line of the file.
#[derive(Debug, PartialEq, Eq)]
pub struct NotALine;

impl FromStr for Line {
    type Err = NotALine;

    fn from_str(line: &str) -> Result<Self, NotALine> {
        let mut words = line.splitn(7, ' ');
        let grouping = match words.next() {
            Some("row") => Grouping::Row,
            Some("group") => Grouping::Groups,
            _ => return Err(NotALine),
        };
        let mut number = || words.next()?.parse().ok().filter(|n| (1..=MOST).contains(n));
        let numbers = [number(), number(), number(), number(), number()];
        let [Some(rows), Some(cols), Some(tokens), Some(tile), Some(splits)] = numbers else {
            return Err(NotALine);
        };
        let gpu = words.next().filter(|gpu| !gpu.is_empty()).ok_or(NotALine)?.to_owned();
        Ok(Line { tiling: Tiling { grouping, rows, cols, tokens, tile, splits }, gpu })
    }
}

/// Reads a file.
///
/// # Errors
/// The first line that is not one.
pub fn parse(text: &str) -> Result<Vec<Line>, &str> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.parse().map_err(|NotALine| line)).collect()
}

/// Writes a file.
pub fn format(lines: &[Line]) -> String {
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    format!(
        "# Scales, rows, columns and tokens of a product; the tile and splits that take the least time; the GPU\n{lines}"
    )
}

/// Adds lines to a file in place of those for the same products on the same GPU.
pub fn merge(mut old: Vec<Line>, new: Vec<Line>) -> Vec<Line> {
    let newer = |line: &Line, new: &Line| line.gpu == new.gpu && line.tiling.is_for_product_of(&new.tiling);
    old.retain(|line| !new.iter().any(|new| newer(line, new)));
    old.extend(new);
    old
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        text.parse().unwrap()
    }

    #[test]
    fn a_file_has_the_same_lines_after_writing_and_reading() {
        let lines = vec![line("row 2560 6912 32 16 4 NVIDIA H200"), line("group 5120 17408 64 32 1 GPU")];
        assert_eq!(parse(&format(&lines)), Ok(lines));
        for wrong in [
            "row 2560 6912 32 16 4",
            "rows 1 1 1 1 1 GPU",
            "row 1 1 1 1 0 GPU",
            "row 1 1 1 -1 1 GPU",
            "row 9999999 1 1 1 1 GPU",
        ] {
            assert_eq!(parse(&format!("# GPU\n\n{wrong}\n")), Err(wrong));
        }
    }

    #[test]
    fn a_newer_line_takes_the_place_of_one_for_the_same_product_on_the_same_gpu() {
        let old =
            ["row 1 128 8 8 1 A", "row 1 128 16 8 1 A", "row 1 128 8 8 1 B", "group 1 128 8 8 1 A"].map(line);
        let merged = merge(old.to_vec(), vec![line("row 1 128 8 16 2 A")]);
        let kept = ["row 1 128 16 8 1 A", "row 1 128 8 8 1 B", "group 1 128 8 8 1 A", "row 1 128 8 16 2 A"];
        assert_eq!(merged, kept.map(line));
    }
}
