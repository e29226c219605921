//! The limits of a rendering: a budget of steps, and one in bytes for every value that a template computes.
//!
//! Each operation pays before it allocates, so that a template cannot make memory or time grow without limit.

use std::cell::Cell;

use super::error::{Error, Kind, Result};

/// Price in bytes of a value in a container.
pub const ITEM: usize = 64;
/// Maximum depth of containers in containers: values are compared, written and dropped recursively.
pub const MAX_DEPTH: u32 = 250;

/// What a rendering may take.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Bytes of all values that are computed.
    pub bytes: usize,
    /// Statements and expressions that run.
    pub steps: usize,
    /// Depth of expressions, statements and macros that run in each other.
    pub nesting: u32,
}

/// What is left of a rendering's budget.
pub struct Meter {
    bytes: Cell<usize>,
    steps: Cell<usize>,
    nesting: Cell<u32>,
}

impl Meter {
    pub fn new(Limits { bytes, steps, nesting }: Limits) -> Meter {
        Meter { bytes: Cell::new(bytes), steps: Cell::new(steps), nesting: Cell::new(nesting) }
    }

    /// Pays for this many bytes of values.
    pub fn spend(&self, bytes: usize) -> Result<()> {
        let left = self.bytes.get().checked_sub(bytes);
        self.bytes.set(left.ok_or_else(|| Error::new(Kind::Limit, "the template handles too much text"))?);
        Ok(())
    }

    /// Pays for a container of this many values.
    pub fn spend_items(&self, items: usize) -> Result<()> {
        self.spend(items.saturating_mul(ITEM).saturating_add(ITEM))
    }

    /// Pays for a step.
    pub fn step(&self) -> Result<()> {
        let left = self.steps.get().checked_sub(1);
        self.steps.set(left.ok_or_else(|| Error::new(Kind::Limit, "the template takes too many steps"))?);
        Ok(())
    }

    /// Runs `work` one level deeper.
    pub fn nested<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let left = self.nesting.get();
        let deeper = left.checked_sub(1);
        self.nesting.set(deeper.ok_or_else(|| Error::new(Kind::Depth, "maximum recursion depth exceeded"))?);
        let result = work();
        self.nesting.set(left);
        result
    }
}

/// A text that pays for every byte before it grows.
pub struct Text<'m> {
    text: String,
    meter: &'m Meter,
}

impl<'m> Text<'m> {
    pub fn new(meter: &'m Meter) -> Text<'m> {
        Text { text: String::new(), meter }
    }

    pub fn push(&mut self, text: &str) -> Result<()> {
        self.meter.spend(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    /// Adds a text this many times.
    pub fn repeat(&mut self, text: &str, times: usize) -> Result<()> {
        self.meter.spend(text.len().saturating_mul(times))?;
        self.text.extend(std::iter::repeat_n(text, times));
        Ok(())
    }

    pub fn push_char(&mut self, c: char) -> Result<()> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    pub fn meter(&self) -> &'m Meter {
        self.meter
    }

    pub fn finish(self) -> String {
        self.text
    }
}
