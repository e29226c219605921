//! A parsed template.

use std::sync::Arc;

use num_bigint::BigInt;
use num_traits::ToPrimitive;

use super::value::Value;

/// A name, by its number in [`Program::names`].
pub(super) type Name = u32;

#[derive(Default)]
pub(super) struct Program {
    pub body: Vec<Statement>,
    pub macros: Vec<MacroBody>,
    pub loops: Vec<For>,
    pub names: Vec<Arc<str>>,
}

pub(super) struct Statement {
    pub line: usize,
    pub kind: Kind,
}

pub(super) enum Kind {
    Text(Arc<str>),
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
    pub name: Arc<str>,
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
    Attribute(Name, Arc<str>),
    Tuple(Vec<Target>),
}

pub(super) enum Expression {
    Constant(Constant),
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
    Attribute(Box<Expression>, Arc<str>),
    Item(Box<Expression>, Box<Expression>),
    Slice(Box<Expression>, Box<[Option<Expression>; 3]>),
    Call(Box<Expression>, Arguments),
    Filter(Option<Box<Expression>>, Arc<str>, Arguments),
    Test(Box<Expression>, Arc<str>, Arguments),
}

/// A constant, of which every rendering makes a value of its own: a program can be shared by threads, values cannot.
pub(super) enum Constant {
    None,
    Bool(bool),
    Int(BigInt),
    Small(i64),
    Float(f64),
    Str(Arc<str>),
}

impl Constant {
    pub fn integer(number: BigInt) -> Constant {
        match number.to_i64() {
            Some(small) => Constant::Small(small),
            None => Constant::Int(number),
        }
    }

    pub fn value(&self) -> Value {
        match self {
            Constant::None => Value::None,
            Constant::Bool(truth) => Value::Bool(*truth),
            Constant::Int(number) => Value::big(number.clone()),
            Constant::Small(number) => Value::Int(*number),
            Constant::Float(number) => Value::Float(*number),
            Constant::Str(text) => Value::Str(text.clone()),
        }
    }
}

#[derive(Default)]
pub(super) struct Arguments {
    pub positional: Vec<Expression>,
    pub named: Vec<(Arc<str>, Expression)>,
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
