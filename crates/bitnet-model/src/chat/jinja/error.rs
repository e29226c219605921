//! Errors of templates, with the classes of Python that other operations tell apart.

/// What went wrong, by Python's class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The template does not parse.
    Syntax,
    /// `raise_exception`.
    Raised,
    Undefined,
    Type,
    Value,
    Lookup,
    Arithmetic,
    Security,
    /// A limit on work or memory.
    Limit,
    /// The limit on the depth of what runs in each other.
    Depth,
}

/// An error of a template.
#[derive(Debug)]
pub struct Error {
    pub kind: Kind,
    message: String,
    line: usize,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), line: 0 }
    }

    pub fn of_type(message: impl Into<String>) -> Error {
        Error::new(Kind::Type, message)
    }

    pub fn value(message: impl Into<String>) -> Error {
        Error::new(Kind::Value, message)
    }

    /// The error at this line, unless it has one already.
    pub fn at(mut self, line: usize) -> Error {
        if self.line == 0 {
            self.line = line;
        }
        self
    }

    /// Whether the template needs more of the stack than it may take.
    pub fn is_of_depth(&self) -> bool {
        self.kind == Kind::Depth
    }

    /// Whether the operation failed because of its operands, as opposed to a limit or the template's own exception.
    pub fn is_of_operands(&self) -> bool {
        matches!(self.kind, Kind::Type | Kind::Value | Kind::Lookup | Kind::Arithmetic)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.kind, self.line) {
            (Kind::Raised, _) | (_, 0) => f.write_str(&self.message),
            (_, line) => write!(f, "{} (line {line})", self.message),
        }
    }
}
