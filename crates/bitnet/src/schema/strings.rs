/// Tracks which bytes of a JSON text are outside of its strings.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct StringTracker {
    quoted: bool,
    escaped: bool,
}

impl StringTracker {
    /// Reads the next byte. Returns whether it is outside of strings and their quotes.
    pub fn read(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.quoted => self.escaped = true,
            b'"' => self.quoted = !self.quoted,
            _ => return !self.quoted,
        }
        false
    }
}
