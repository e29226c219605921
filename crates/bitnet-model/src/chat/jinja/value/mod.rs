//! The values of a template, as Python has them.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use indexmap::IndexMap;
use num_bigint::BigInt;
use num_traits::ToPrimitive;

pub(super) mod key;

use key::Key;

use super::{
    error::{Error, Kind, Result},
    meter::{MAX_DEPTH, Meter},
};

/// A value. Containers do not change once they are made, because transformers renders in an immutable sandbox.
#[derive(Clone)]
pub enum Value {
    Undefined(Rc<Undefined>),
    None,
    Bool(bool),
    Int(i64),
    /// An integer outside `i64`.
    Big(Rc<BigInt>),
    Float(f64),
    Str(Arc<str>),
    /// A text that is marked as safe (`markupsafe.Markup`).
    Safe(Arc<str>),
    List(Rc<Items>),
    Tuple(Rc<Items>),
    /// A tuple of `groupby`, with names for its two items.
    Group(Rc<Items>),
    Dict(Rc<Dict>),
    Range(Range),
    /// `keys()`, `values()` or `items()` of a dictionary.
    View(View, Rc<Dict>),
    /// A generator: it can be iterated once.
    Iterator(Rc<Generator>),
    Namespace(Rc<Namespace>),
    Loop(Rc<Loop>),
    Macro(Rc<Macro>),
    Cycler(Rc<Cycler>),
    Joiner(Rc<Joiner>),
    Function(Function),
    /// A method of a value.
    Method(Rc<(Value, Arc<str>)>),
}

/// The message of the error that using an undefined value raises.
pub struct Undefined {
    pub problem: String,
    pub kind: Kind,
}

/// The items of a list or tuple.
pub struct Items {
    pub items: Vec<Value>,
    extent: Extent,
}

/// A dictionary, in the order of insertion.
pub struct Dict {
    pub map: IndexMap<Key, Value>,
    extent: Extent,
}

/// What is left of a generator.
pub struct Generator {
    pub items: RefCell<std::vec::IntoIter<Value>>,
    extent: Extent,
}

/// How far a value reaches, shared values counted as often as they occur.
#[derive(Clone, Copy, Default)]
struct Extent {
    /// Depth of the containers in it.
    depth: u32,
    /// About the work of reading all of it.
    size: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub start: i64,
    pub stop: i64,
    pub step: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum View {
    Keys,
    Values,
    Items,
}

/// `namespace()`: the only value that a template can change.
pub struct Namespace {
    pub map: RefCell<IndexMap<Arc<str>, Value>>,
    extent: Cell<Extent>,
}

/// The variable `loop`.
pub struct Loop {
    pub items: Rc<Items>,
    pub index: Cell<usize>,
    pub depth: usize,
    /// Which loop of the program this is, if it is recursive, and the scope around it.
    pub recursive: Option<(usize, usize)>,
    pub changed: RefCell<Option<Value>>,
}

/// A macro of the program, and the scope in which it was defined.
pub struct Macro {
    pub index: usize,
    pub name: Arc<str>,
    pub scope: usize,
}

pub struct Cycler {
    pub items: Rc<Items>,
    pub at: Cell<usize>,
}

pub struct Joiner {
    /// The separator alone.
    pub separator: Rc<Items>,
    pub used: Cell<bool>,
}

/// The functions that every template can call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    RaiseException,
    StrftimeNow,
}

impl Value {
    pub fn str(text: impl Into<Arc<str>>) -> Value {
        Value::Str(text.into())
    }

    pub fn big(number: BigInt) -> Value {
        number.to_i64().map_or_else(|| Value::Big(Rc::new(number)), Value::Int)
    }

    pub fn list(items: Vec<Value>) -> Result<Value> {
        Ok(Value::List(Items::new(items)?))
    }

    pub fn tuple(items: Vec<Value>) -> Result<Value> {
        Ok(Value::Tuple(Items::new(items)?))
    }

    pub fn dict(map: IndexMap<Key, Value>) -> Result<Value> {
        let extent = around(map.iter().flat_map(|(key, value)| [key.get(), value]))?;
        Ok(Value::Dict(Rc::new(Dict { map, extent })))
    }

    pub fn iterator(items: Vec<Value>) -> Result<Value> {
        let extent = around(items.iter())?;
        Ok(Value::Iterator(Rc::new(Generator { items: RefCell::new(items.into_iter()), extent })))
    }

    pub fn undefined(problem: impl Into<String>) -> Value {
        Value::Undefined(Rc::new(Undefined { problem: problem.into(), kind: Kind::Undefined }))
    }

    /// An attribute that the sandbox forbids.
    pub fn unsafe_attribute(of: &Value, name: &str) -> Value {
        let problem = format!("access to attribute '{name}' of '{}' object is unsafe.", of.class());
        Value::Undefined(Rc::new(Undefined { problem, kind: Kind::Security }))
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    /// The error of using this value, if it is undefined.
    pub fn defined(&self) -> Result<&Value> {
        match self {
            Value::Undefined(undefined) => Err(Error::new(undefined.kind, undefined.problem.clone())),
            _ => Ok(self),
        }
    }

    /// The text of a string.
    pub fn text(&self) -> Option<&Arc<str>> {
        match self {
            Value::Str(text) | Value::Safe(text) => Some(text),
            _ => None,
        }
    }

    /// The items of a list or tuple.
    pub fn sequence(&self) -> Option<&[Value]> {
        match self {
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => Some(&items.items),
            _ => None,
        }
    }

    /// Python's name of the value's class.
    pub fn class(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::Big(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::Safe(_) => "Markup",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Group(_) => "_GroupTuple",
            Value::Dict(_) => "dict",
            Value::Range(_) => "range",
            Value::View(View::Keys, _) => "dict_keys",
            Value::View(View::Values, _) => "dict_values",
            Value::View(View::Items, _) => "dict_items",
            Value::Iterator(_) => "generator",
            Value::Namespace(_) => "Namespace",
            Value::Loop(_) => "LoopContext",
            Value::Macro(_) => "Macro",
            Value::Cycler(_) => "Cycler",
            Value::Joiner(_) => "Joiner",
            Value::Function(_) => "function",
            Value::Method(_) => "builtin_function_or_method",
        }
    }

    pub fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(number) => *number != 0,
            Value::Float(number) => *number != 0.0,
            Value::Loop(of) => !of.items.items.is_empty(),
            Value::Str(text) | Value::Safe(text) => !text.is_empty(),
            other => other.length() != Some(0),
        }
    }

    /// The number of items or characters, for values that have one.
    pub fn length(&self) -> Option<usize> {
        Some(match self {
            Value::Undefined(_) => 0,
            Value::Str(text) | Value::Safe(text) => text.chars().count(),
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => items.items.len(),
            Value::Dict(dict) | Value::View(_, dict) => dict.map.len(),
            Value::Range(range) => range.len(),
            Value::Loop(of) => of.items.items.len(),
            _ => return None,
        })
    }

    /// The items over which a loop runs.
    pub fn iterate(&self, meter: &Meter) -> Result<Vec<Value>> {
        let count = match self {
            Value::Str(text) | Value::Safe(text) => text.len(),
            other => other.length().unwrap_or(0),
        };
        meter.spend_items(count)?;
        Ok(match self {
            Value::Undefined(_) => Vec::new(),
            Value::Str(text) => {
                text.chars().map(|c| Value::str(c.encode_utf8(&mut [0; 4]) as &str)).collect()
            }
            Value::Safe(text) => {
                text.chars().map(|c| Value::Safe((c.encode_utf8(&mut [0; 4]) as &str).into())).collect()
            }
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => items.items.clone(),
            Value::Dict(dict) | Value::View(View::Keys, dict) => dict.map.keys().map(Key::value).collect(),
            Value::View(View::Values, dict) => dict.map.values().cloned().collect(),
            Value::View(View::Items, dict) => {
                meter.spend_items(2 * dict.map.len())?;
                let pair = |(key, value): (&Key, &Value)| Value::tuple(vec![key.value(), value.clone()]);
                dict.map.iter().map(pair).collect::<Result<_>>()?
            }
            Value::Range(range) => (0..range.len()).map(|i| Value::Int(range.at(i))).collect(),
            Value::Iterator(generator) => generator.items.borrow_mut().by_ref().collect(),
            Value::Loop(of) => of.items.items[of.index.get()..].to_vec(),
            other => return Err(Error::of_type(format!("'{}' object is not iterable", other.class()))),
        })
    }

    fn extent(&self) -> Extent {
        match self {
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => items.extent,
            Value::Dict(dict) | Value::View(_, dict) => dict.extent,
            Value::Iterator(generator) => generator.extent,
            Value::Namespace(namespace) => namespace.extent.get(),
            Value::Loop(of) => of.items.extent,
            Value::Cycler(cycler) => cycler.items.extent,
            Value::Joiner(joiner) => joiner.separator.extent,
            Value::Method(method) => method.0.extent(),
            Value::Str(text) | Value::Safe(text) => Extent { depth: 0, size: 1 + text.len() / 16 },
            Value::Big(number) => Extent { depth: 0, size: 1 + (number.bits() / 128) as usize },
            _ => Extent { depth: 0, size: 1 },
        }
    }

    /// About the work of reading all of a value.
    pub fn size(&self) -> usize {
        self.extent().size
    }
}

/// The extent of a container of these values.
fn around<'a>(items: impl Iterator<Item = &'a Value>) -> Result<Extent> {
    let mut all = Extent { depth: 0, size: 1 };
    for item in items {
        let Extent { depth, size } = item.extent();
        all = Extent { depth: all.depth.max(depth), size: all.size.saturating_add(size) };
    }
    all.depth += 1;
    if all.depth > MAX_DEPTH {
        Err(Error::new(Kind::Limit, "the template nests values too deeply"))
    } else {
        Ok(all)
    }
}

impl Items {
    pub fn new(items: Vec<Value>) -> Result<Rc<Items>> {
        let extent = around(items.iter())?;
        Ok(Rc::new(Items { items, extent }))
    }
}

impl Range {
    pub fn len(&self) -> usize {
        let start = i128::from(self.start);
        let stop = i128::from(self.stop);
        let step = i128::from(self.step);
        let span = if step > 0 { stop - start } else { start - stop };
        if span <= 0 { 0 } else { ((span - 1) / step.abs() + 1) as usize }
    }

    pub fn at(&self, index: usize) -> i64 {
        self.start + self.step * index as i64
    }
}

impl Namespace {
    /// A new namespace with these attributes.
    pub fn value(map: IndexMap<Arc<str>, Value>) -> Result<Value> {
        let extent = Cell::new(around(map.values())?);
        Ok(Value::Namespace(Rc::new(Namespace { map: RefCell::new(map), extent })))
    }

    pub fn set(&self, name: &Arc<str>, value: Value) -> Result<()> {
        let (old, new) = (self.extent.get(), around([&value].into_iter())?);
        let size = old.size.saturating_add(new.size);
        self.extent.set(Extent { depth: old.depth.max(new.depth), size });
        self.map.borrow_mut().insert(name.clone(), value);
        Ok(())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Value {
        i64::try_from(number).map_or_else(|_| Value::big(number.into()), Value::Int)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::str(text)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::str(text)
    }
}
