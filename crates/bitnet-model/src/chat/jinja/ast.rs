//! A parsed template.

use std::rc::Rc;

use super::value::Value;

/// A name, by its number in [`Program::names`].
pub(super) type Name = u32;

#[derive(Default)]
pub(super) struct Program {
    pub body: Vec<Statement>,
    pub macros: Vec<MacroBody>,
    pub loops: Vec<For>,
    pub names: Vec<Rc<str>>,
}

pub(super) struct Statement {
    pub line: usize,
    pub kind: Kind,
}

pub(super) enum Kind {
    Text(Rc<str>),
    Print(Expression),
    /// Index of [`Program::loops`].
    For(usize),
    If {
        branches: Vec<(Expression, Vec<Statement>)>,
        otherwise: Vec<Statement>,
    },
    Set(Target, Expression),
    /// `{% set x | filter %}...{% endset %}`; the filter has no subject of its own.
    SetBlock(Target, Option<Expression>, Vec<Statement>),
    With(Vec<(Target, Expression)>, Vec<Statement>),
    /// The macro's name, and its index of [`Program::macros`].
    Macro(Name, usize),
    /// The body as a macro without a name, and the call that gets it.
    Call {
        body: usize,
        call: Expression,
    },
    Filter(Expression, Vec<Statement>),
    /// A block or another scope.
    Scope(Vec<Statement>),
    Break,
    Continue,
    /// `include`, `import` and `extends`: there is nothing to load from.
    Load(Expression),
}

pub(super) struct For {
    pub target: Target,
    pub over: Expression,
    pub only: Option<Expression>,
    pub body: Vec<Statement>,
    pub otherwise: Vec<Statement>,
    pub recursive: bool,
}

pub(super) struct MacroBody {
    pub name: Rc<str>,
    pub parameters: Vec<Name>,
    /// The defaults of the last parameters.
    pub defaults: Vec<Expression>,
    pub body: Vec<Statement>,
    /// Whether the body reads these: only then may a call give more than the parameters.
    pub reads_varargs: bool,
    pub reads_kwargs: bool,
    pub reads_caller: bool,
}

pub(super) enum Target {
    Name(Name),
    /// An attribute of a namespace.
    Attribute(Name, Rc<str>),
    Tuple(Vec<Target>),
}

pub(super) enum Expression {
    Constant(Value),
    Name(Name),
    List(Vec<Expression>),
    Tuple(Vec<Expression>),
    Dict(Vec<(Expression, Expression)>),
    Not(Box<Expression>),
    Negative(Box<Expression>),
    Positive(Box<Expression>),
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
    Compare(Box<Expression>, Vec<(Comparison, Expression)>),
    Binary(Operator, Box<Expression>, Box<Expression>),
    Concatenate(Vec<Expression>),
    /// Test, then, else.
    If(Box<Expression>, Box<Expression>, Option<Box<Expression>>),
    Attribute(Box<Expression>, Rc<str>),
    Item(Box<Expression>, Box<Expression>),
    Slice(Box<Expression>, Box<[Option<Expression>; 3]>),
    Call(Box<Expression>, Arguments),
    Filter(Option<Box<Expression>>, Rc<str>, Arguments),
    Test(Box<Expression>, Rc<str>, Arguments),
}

#[derive(Default)]
pub(super) struct Arguments {
    pub positional: Vec<Expression>,
    pub named: Vec<(Rc<str>, Expression)>,
    /// `*arguments`.
    pub star: Option<Box<Expression>>,
    /// `**arguments`.
    pub stars: Option<Box<Expression>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}
