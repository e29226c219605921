//! jinja2's filters on lists, dictionaries and other iterables.

use std::cmp::Ordering;

use super::{
    access,
    args::{Args, flag, integer, text},
    ast::Operator,
    error::{Error, Result},
    meter::{Meter, Text},
    number, repr, tests,
    value::key::{Key, equal, order, pay},
    value::{Items, Value, View},
};

/// The attribute of an item that a filter looks at: names and numbers with points between.
pub(super) struct Path {
    parts: Vec<Value>,
    default: Option<Value>,
}

impl Path {
    pub fn new(attribute: &Value, default: Option<Value>) -> Path {
        let part = |part: &str| {
            if !part.is_empty() && part.chars().all(|c| c.is_ascii_digit()) {
                part.parse().map_or_else(|_| part.into(), Value::Int)
            } else {
                Value::from(part)
            }
        };
        let parts = match attribute {
            Value::None => Vec::new(),
            other => match other.text() {
                Some(text) => text.split('.').map(part).collect(),
                None => vec![other.clone()],
            },
        };
        Path { parts, default }
    }

    fn of(attribute: &Option<Value>) -> Path {
        Path::new(attribute.as_ref().unwrap_or(&Value::None), None)
    }

    pub fn get(&self, item: &Value, meter: &Meter) -> Result<Value> {
        let mut value = item.clone();
        for part in &self.parts {
            value = access::item(&value, part, meter)?;
            if let (true, Some(default)) = (value.is_undefined(), &self.default) {
                value = default.clone();
            }
        }
        Ok(value)
    }
}

/// The value that is compared: a text without its case, unless case counts.
fn folded(value: Value, case: bool) -> Value {
    match (case, value.text()) {
        (false, Some(text)) => text.to_lowercase().into(),
        _ => value,
    }
}

/// Sorts values by their keys, in a stable way, as Python's `sorted` does.
fn sorted(keyed: Vec<(Value, Value)>, reverse: bool, meter: &Meter) -> Result<Vec<(Value, Value)>> {
    let mut keyed = keyed;
    meter.spend_items(2 * keyed.len())?;
    let mut problem = None;
    let mut compare = |a: &Value, b: &Value| {
        if problem.is_some() {
            return Ordering::Equal;
        }
        let result = pay(a, b, meter).and_then(|()| order(a, b, "<"));
        result.map(|order| order.unwrap_or(Ordering::Equal)).unwrap_or_else(|error| {
            problem = Some(error);
            Ordering::Equal
        })
    };
    keyed.sort_by(|(a, _), (b, _)| if reverse { compare(b, a) } else { compare(a, b) });
    problem.map_or(Ok(keyed), Err)
}

/// Applies a filter on a sequence.
pub(super) fn apply(name: &str, value: &Value, args: &Args, meter: &Meter) -> Result<Value> {
    let none = || args.bind::<0>(name, [], 0);
    match name {
        "length" | "count" => {
            none()?;
            match value.length() {
                Some(length) => Ok(length.into()),
                None => Err(Error::of_type(format!("object of type '{}' has no len()", value.class()))),
            }
        }
        "list" => none().and_then(|_| Value::list(value.iterate(meter)?)),
        "first" => {
            none()?;
            if let Value::Iterator(items) = value {
                let first = items.items.borrow_mut().next();
                return Ok(first.unwrap_or_else(|| Value::undefined("No first item, sequence was empty.")));
            }
            let first = value.iterate(meter)?.into_iter().next();
            Ok(first.unwrap_or_else(|| Value::undefined("No first item, sequence was empty.")))
        }
        "last" => {
            none()?;
            if let Value::Iterator(_) = value {
                return Err(Error::of_type(format!("'{}' object is not reversible", value.class())));
            }
            let last = value.iterate(meter)?.pop();
            Ok(last.unwrap_or_else(|| Value::undefined("No last item, sequence was empty.")))
        }
        "reverse" => {
            none()?;
            if let Some(text) = value.text() {
                meter.spend(text.len())?;
                return Ok(text.chars().rev().collect::<String>().into());
            }
            let mut items = value.iterate(meter)?;
            items.reverse();
            Value::iterator(items)
        }
        "join" => join(value, args, meter),
        "items" => {
            none()?;
            match value {
                Value::Undefined(_) => Value::iterator(Vec::new()),
                Value::Dict(dict) => Value::iterator(Value::View(View::Items, dict.clone()).iterate(meter)?),
                _ => Err(Error::of_type("Can only get item pairs from a mapping.")),
            }
        }
        "dictsort" => dictsort(value, args, meter),
        "sort" => {
            let [reverse, case, attribute] =
                args.bind("do_sort", ["reverse", "case_sensitive", "attribute"], 0)?;
            let paths: Vec<Path> = match attribute.as_ref().and_then(Value::text) {
                Some(text) => text.split(',').map(|part| Path::new(&part.into(), None)).collect(),
                None => vec![Path::of(&attribute)],
            };
            let mut keyed = Vec::new();
            for item in value.iterate(meter)? {
                let keys: Result<Vec<Value>> =
                    paths.iter().map(|path| Ok(folded(path.get(&item, meter)?, flag(&case)))).collect();
                keyed.push((Value::list(keys?)?, item));
            }
            Value::list(sorted(keyed, flag(&reverse), meter)?.into_iter().map(|(_, item)| item).collect())
        }
        "unique" => {
            let [case, attribute] = args.bind("do_unique", ["case_sensitive", "attribute"], 0)?;
            let path = Path::of(&attribute);
            let mut seen = indexmap::IndexSet::new();
            let mut unique = Vec::new();
            for item in value.iterate(meter)? {
                if seen.insert(Key::new(folded(path.get(&item, meter)?, flag(&case)))?) {
                    unique.push(item);
                }
            }
            Value::iterator(unique)
        }
        "min" | "max" => {
            let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"], 0)?;
            let path = Path::of(&attribute);
            let mut best: Option<(Value, Value)> = None;
            for item in value.iterate(meter)? {
                let key = folded(path.get(&item, meter)?, flag(&case));
                meter.spend(key.size())?;
                let wins = match &best {
                    None => true,
                    Some((key_of_best, _)) if name == "min" => {
                        order(&key, key_of_best, "<")? == Some(Ordering::Less)
                    }
                    Some((key_of_best, _)) => order(&key, key_of_best, ">")? == Some(Ordering::Greater),
                };
                if wins {
                    best = Some((key, item));
                }
            }
            Ok(best.map_or_else(
                || Value::undefined("No aggregated item, sequence was empty."),
                |(_, item)| item,
            ))
        }
        "sum" => {
            let [attribute, start] = args.bind("do_sum", ["attribute", "start"], 0)?;
            let path = Path::of(&attribute);
            let mut sum = start.unwrap_or(Value::Int(0));
            if sum.text().is_some() {
                return Err(Error::of_type("sum() can't sum strings [use ''.join(seq) instead]"));
            }
            for item in value.iterate(meter)? {
                sum = number::binary(Operator::Add, &sum, &path.get(&item, meter)?, meter)?;
            }
            Ok(sum)
        }
        "groupby" => groupby(value, args, meter),
        "batch" => {
            let [count, fill] = args.bind("do_batch", ["linecount", "fill_with"], 1)?;
            let count = integer(&count.unwrap_or(Value::None))?;
            let count = usize::try_from(count).unwrap_or(0);
            let fill = fill.filter(|v| !matches!(v, Value::None));
            batch(value.iterate(meter)?, count, fill, meter)
        }
        "slice" => slice(value, args, meter),
        "select" | "reject" | "selectattr" | "rejectattr" => select(name, value, args, meter),
        other => Err(Error::value(format!("No filter named '{other}'."))),
    }
}

fn join(value: &Value, args: &Args, meter: &Meter) -> Result<Value> {
    let [between, attribute] = args.bind("do_join", ["d", "attribute"], 0)?;
    let between = between.map_or_else(|| Ok("".into()), |between| repr::string(&between, meter))?;
    let path = Path::of(&attribute);
    let mut out = Text::new(meter);
    for (i, item) in value.iterate(meter)?.iter().enumerate() {
        if i > 0 {
            out.push(&between)?;
        }
        repr::write(&mut out, &path.get(item, meter)?)?;
    }
    Ok(out.finish().into())
}

fn dictsort(value: &Value, args: &Args, meter: &Meter) -> Result<Value> {
    let [case, by, reverse] = args.bind("do_dictsort", ["case_sensitive", "by", "reverse"], 0)?;
    let by = by.unwrap_or_else(|| "key".into());
    let at = match by.text().map(|text| &**text) {
        Some("key") => 0,
        Some("value") => 1,
        _ => return Err(Error::value("You can only sort by either \"key\" or \"value\"")),
    };
    let Value::Dict(dict) = value.defined()? else {
        return Err(Error::of_type(format!("'{}' object has no attribute 'items'", value.class())));
    };
    let pairs = Value::View(View::Items, dict.clone()).iterate(meter)?;
    let keyed = pairs.into_iter().map(|pair| {
        let key = pair.sequence().map_or(Value::None, |pair| pair[at].clone());
        (folded(key, flag(&case)), pair)
    });
    Value::list(sorted(keyed.collect(), flag(&reverse), meter)?.into_iter().map(|(_, pair)| pair).collect())
}

fn groupby(value: &Value, args: &Args, meter: &Meter) -> Result<Value> {
    let [attribute, default, case] =
        args.bind("do_groupby", ["attribute", "default", "case_sensitive"], 1)?;
    let default = default.filter(|value| !matches!(value, Value::None));
    let path = Path::new(attribute.as_ref().unwrap_or(&Value::None), default);
    let mut keyed = Vec::new();
    for item in value.iterate(meter)? {
        keyed.push((folded(path.get(&item, meter)?, flag(&case)), item));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in sorted(keyed, false, meter)? {
        meter.spend(key.size())?;
        match groups.last_mut() {
            Some((last, items)) if equal(last, &key) => items.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let group = |(key, items): (Value, Vec<Value>)| {
        let key = if flag(&case) { key } else { path.get(&items[0], meter)? };
        Ok(Value::Group(Items::new(vec![key, Value::list(items)?])?))
    };
    Value::list(groups.into_iter().map(group).collect::<Result<_>>()?)
}

fn batch(items: Vec<Value>, count: usize, fill: Option<Value>, meter: &Meter) -> Result<Value> {
    meter.spend_items(items.len() + if fill.is_some() { count } else { 0 })?;
    let mut rows: Vec<Vec<Value>> = Vec::new();
    for item in items {
        match rows.last_mut() {
            Some(row) if row.len() != count => row.push(item),
            // A count of 0 gives an empty row first, as in Python.
            None if count == 0 => rows.extend([Vec::new(), vec![item]]),
            _ => rows.push(vec![item]),
        }
    }
    if let (Some(row), Some(fill)) = (rows.last_mut(), fill) {
        row.resize(count.max(row.len()), fill);
    }
    Value::iterator(rows.into_iter().map(Value::list).collect::<Result<_>>()?)
}

fn slice(value: &Value, args: &Args, meter: &Meter) -> Result<Value> {
    let [count, fill] = args.bind("do_slice", ["slices", "fill_with"], 1)?;
    let count = integer(&count.unwrap_or(Value::None))?;
    let items = value.iterate(meter)?;
    let count = match usize::try_from(count) {
        Ok(0) => {
            return Err(Error::new(super::error::Kind::Arithmetic, "integer division or modulo by zero"));
        }
        count => count.unwrap_or(0),
    };
    meter.spend_items(count)?;
    let fill = fill.filter(|value| !matches!(value, Value::None));
    let (each, extra) = items.len().checked_div(count).map_or((0, 0), |each| (each, items.len() % count));
    let mut rest = &items[..];
    let mut slices = Vec::new();
    for i in 0..count {
        let (part, after) = rest.split_at(each + usize::from(i < extra));
        rest = after;
        let mut part = part.to_vec();
        if i >= extra {
            part.extend(fill.clone());
        }
        slices.push(Value::list(part)?);
    }
    Value::iterator(slices)
}

/// Keeps the items that pass a test, or those that fail it.
fn select(name: &str, value: &Value, args: &Args, meter: &Meter) -> Result<Value> {
    if !value.is_true() {
        return Value::iterator(Vec::new());
    }
    let keeps = name.starts_with("select");
    let (path, rest) = match (name.ends_with("attr"), args.positional.split_first()) {
        (true, Some((attribute, rest))) => (Path::new(attribute, None), rest),
        (true, None) => return Err(Error::value("Missing parameter for attribute name")),
        (false, _) => (Path::of(&None), &args.positional[..]),
    };
    let test = rest.split_first();
    let mut kept = Vec::new();
    for item in value.iterate(meter)? {
        let subject = path.get(&item, meter)?;
        let passes = match test {
            None => subject.is_true(),
            Some((name, rest)) => {
                let name = text(name, "test name")?;
                let args = Args { positional: rest.to_vec(), named: args.named.clone() };
                tests::test(name, &subject, &args, meter)?
            }
        };
        if passes == keeps {
            kept.push(item);
        }
    }
    Value::iterator(kept)
}
