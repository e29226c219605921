//! The functions that transformers gives to every template.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use indexmap::IndexMap;

use super::{
    args::{Args, integer},
    error::{Error, Kind, Result},
    meter::Meter,
    repr::string,
    value::key::Key,
    value::{Cycler, Function, Items, Joiner, Namespace, Range, Value},
};

/// Maximum length of a range, as in jinja2's sandbox.
const MAX_RANGE: usize = 100_000;

/// The function of this name.
pub(super) fn named(name: &str) -> Option<Value> {
    Some(Value::Function(match name {
        "range" => Function::Range,
        "dict" => Function::Dict,
        "namespace" => Function::Namespace,
        "cycler" => Function::Cycler,
        "joiner" => Function::Joiner,
        "raise_exception" => Function::RaiseException,
        "strftime_now" => Function::StrftimeNow,
        _ => return None,
    }))
}

/// Calls a function. `now` writes the current time.
pub(super) fn call(function: Function, args: &Args, meter: &Meter, now: fn(&str) -> String) -> Result<Value> {
    match function {
        Function::Range => {
            let [a, b, c] = args.plain("range", 1)?;
            let a = integer(&a.unwrap_or(Value::None))?;
            let (start, stop) = b.map_or(Ok((0, a)), |b| Ok((a, integer(&b)?)))?;
            let step = c.map_or(Ok(1), |c| integer(&c))?;
            if step == 0 {
                return Err(Error::value("range() arg 3 must not be zero"));
            }
            let range = Range { start, stop, step };
            if range.len() > MAX_RANGE {
                Err(Error::new(
                    Kind::Limit,
                    format!("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({MAX_RANGE})."),
                ))
            } else {
                Ok(Value::Range(range))
            }
        }
        Function::Dict => Value::dict(entries(args, meter)?),
        Function::Namespace => {
            let mut map = IndexMap::new();
            for (key, value) in entries(args, meter)? {
                map.insert(attribute(key.get())?, value);
            }
            Namespace::value(map)
        }
        Function::Cycler => {
            if args.positional.is_empty() {
                Err(Error::value("at least one item has to be provided"))
            } else {
                Ok(Value::Cycler(Rc::new(Cycler {
                    items: Items::new(args.positional.clone())?,
                    at: Cell::new(0),
                })))
            }
        }
        Function::Joiner => {
            let [separator] = args.bind("joiner", ["sep"], 0)?;
            let separator = Items::new(vec![separator.unwrap_or_else(|| ", ".into())])?;
            Ok(Value::Joiner(Rc::new(Joiner { separator, used: Cell::new(false) })))
        }
        Function::RaiseException => {
            let [message] = args.bind("raise_exception", ["message"], 1)?;
            let message = string(&message.unwrap_or(Value::None), meter)?;
            Err(Error::new(Kind::Raised, &*message))
        }
        Function::StrftimeNow => {
            let [format] = args.bind("strftime_now", ["format"], 1)?;
            let format = format.unwrap_or(Value::None);
            let format = super::args::text(&format, "strftime() argument 1")?;
            // A directive is at most a few dozen characters.
            meter.spend(format.len().saturating_mul(32))?;
            Ok(now(format).into())
        }
    }
}

/// The entries of `dict(...)`.
fn entries(args: &Args, meter: &Meter) -> Result<IndexMap<Key, Value>> {
    let mut map = IndexMap::new();
    match &args.positional[..] {
        [] => {}
        [Value::Dict(dict)] => {
            meter.spend_items(dict.map.len())?;
            map.clone_from(&dict.map);
        }
        [pairs] => {
            for pair in pairs.defined()?.iterate(meter)? {
                let pair = pair.iterate(meter)?;
                let [key, value] = &pair[..] else {
                    return Err(Error::value(format!(
                        "dictionary update sequence element #{} has length {}; 2 is required",
                        map.len(),
                        pair.len()
                    )));
                };
                map.insert(Key::new(key.clone())?, value.clone());
            }
        }
        several => {
            let count = several.len();
            return Err(Error::of_type(format!("dict expected at most 1 argument, got {count}")));
        }
    }
    meter.spend_items(args.named.len())?;
    map.extend(args.named.iter().map(|(name, value)| (Key::text(name), value.clone())));
    Ok(map)
}

/// The name of a namespace's attribute.
fn attribute(key: &Value) -> Result<Arc<str>> {
    match key.text() {
        Some(name) => checked(name).map(|()| name.clone()),
        None => Err(Error::of_type("the attributes of a namespace need texts as names")),
    }
}

/// Refuses the names that transformers refuses.
pub(super) fn checked(name: &str) -> Result<()> {
    if name.starts_with('_') {
        Err(Error::new(
            Kind::Security,
            format!(
                "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '{name}'. \
                 Please rename the attribute."
            ),
        ))
    } else {
        Ok(())
    }
}

/// All namespaces of a rendering. They can hold each other, so they are emptied when it ends.
#[derive(Default)]
pub(super) struct Namespaces(RefCell<Vec<Rc<Namespace>>>);

impl Namespaces {
    pub fn keep(&self, value: &Value) {
        if let Value::Namespace(namespace) = value {
            self.0.borrow_mut().push(namespace.clone());
        }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in self.0.borrow().iter() {
            namespace.map.take();
        }
    }
}
