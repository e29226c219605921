//! jinja2's filters on texts and numbers, and those that choose among values; `sequences.rs` has those on lists.

mod numbers;
mod text;

use indexmap::IndexSet;
use num_traits::Signed;

use super::{
    access,
    args::{self, Args, flag, integer, integer_or},
    error::{Error, Result},
    json,
    meter::{Meter, Text},
    percent,
    repr::{self, string},
    sequences, strings, text as python,
    value::Value,
    value::key::{Key, Number, number},
};

const NAMES: [&str; 51] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "wordwrap",
    "pprint",
];
/// Filters of jinja2 that are not supported: prompts have no use for HTML or for chance.
const UNSUPPORTED: [&str; 3] = ["random", "urlize", "xmlattr"];

/// Whether there is a filter of this name; an error for one that only jinja2 has.
pub(super) fn is_known(name: &str) -> Result<bool> {
    if UNSUPPORTED.contains(&name) {
        Err(Error::value(format!("the filter '{name}' is not supported")))
    } else {
        Ok(NAMES.contains(&name))
    }
}

/// Applies a filter.
pub(super) fn apply(name: &str, value: &Value, args: &Args, meter: &Meter) -> Result<Value> {
    meter.step()?;
    if let Some(text) = value.text() {
        meter.spend(text.len() / 8)?;
    }
    let text = || string(value, meter);
    let safely =
        |text: String| if let Value::Safe(_) = value { Value::Safe(text.into()) } else { text.into() };
    let none = |what: &str| args.bind::<0>(what, [], 0);
    Ok(match name {
        "default" | "d" => {
            let [default, boolean] = args.bind(name, ["default_value", "boolean"], 0)?;
            if value.is_undefined() || flag(&boolean) && !value.is_true() {
                default.unwrap_or_else(|| "".into())
            } else {
                value.clone()
            }
        }
        "string" => {
            none(name)?;
            if let Value::Safe(_) = value { value.clone() } else { Value::Str(text()?) }
        }
        "safe" => Value::Safe(text()?),
        "e" | "escape" => repr::escaped(value, meter)?,
        "forceescape" => repr::escaped(&Value::Str(text()?), meter)?,
        "upper" | "lower" | "title" | "capitalize" => {
            none(name)?;
            let text = text()?;
            meter.spend(2 * text.len())?;
            safely(match name {
                "upper" => text.to_uppercase(),
                "lower" => text.to_lowercase(),
                "title" => text::titled(&text),
                _ => python::capitalized(&text),
            })
        }
        "trim" => {
            let [chars] = args.bind(name, ["chars"], 0)?;
            let text = text()?;
            meter.spend(text.len())?;
            safely(python::stripped(&text, &chars, true, true)?.to_owned())
        }
        "replace" => {
            let [old, new, count] = args.bind("do_replace", ["old", "new", "count"], 2)?;
            let (old, new) = (old.unwrap_or(Value::None), new.unwrap_or(Value::None));
            let count = if let Some(Value::None) = count { None } else { count };
            let (old, new) = (string(&old, meter)?, string(&new, meter)?);
            python::replaced(&text()?, &old, &new, integer_or(&count, -1)?, meter)?.into()
        }
        "format" => {
            if !args.positional.is_empty() && !args.named.is_empty() {
                return Err(Error::value("can't handle positional and keyword arguments at the same time"));
            }
            let given = if args.named.is_empty() {
                Value::tuple(args.positional.clone())?
            } else {
                Value::dict(args.named.iter().map(|(k, v)| (Key::text(k), v.clone())).collect())?
            };
            let template = if let Value::Safe(_) = value { value.clone() } else { Value::Str(text()?) };
            percent::format(&template, &given, meter)?
        }
        "indent" => text::indent(value, args, meter)?,
        "center" => {
            let [width] = args.bind(name, ["width"], 0)?;
            let args = Args { positional: vec![width.unwrap_or(Value::Int(80))], named: Vec::new() };
            strings::call(&Value::Str(text()?), "center", &args, meter)?
        }
        "truncate" => text::truncate(&text()?, args, meter)?,
        "wordcount" => {
            none(name)?;
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            text()?.split(|c| !is_word(c)).filter(|word| !word.is_empty()).count().into()
        }
        "wordwrap" => text::wordwrap(&text()?, args, meter)?,
        "striptags" => text::striptags(&text()?, meter)?.into(),
        "urlencode" => text::urlencode(value, meter)?.into(),
        "filesizeformat" => numbers::filesize(value, args)?.into(),
        "tojson" => tojson(value, args, meter)?,
        "pprint" => {
            let mut out = Text::new(meter);
            repr::repr(&mut out, value)?;
            let text = out.finish();
            if text.len() > 78 {
                return Err(Error::value("the filter 'pprint' is not supported for long values"));
            }
            text.into()
        }
        "int" => numbers::to_int(value, args)?,
        "float" => numbers::to_float(value, args)?,
        "abs" => match number(value.defined()?) {
            Some(Number::Int(number)) => Value::big(number.abs()),
            Some(Number::Float(number)) => Value::Float(number.abs()),
            None => {
                let class = value.class();
                return Err(Error::of_type(format!("bad operand type for abs(): '{class}'")));
            }
        },
        "round" => numbers::round(value, args)?,
        "attr" => {
            let [name] = args.bind("do_attr", ["name"], 1)?;
            let name = name.unwrap_or(Value::None);
            match value {
                // Only attributes, not keys: a dictionary has methods.
                Value::Dict(_) => match access::attribute(value, args::text(&name, "attribute name")?)? {
                    method @ Value::Method(_) => method,
                    _ => Value::undefined(format!(
                        "'dict object' has no attribute '{}'",
                        string(&name, meter)?
                    )),
                },
                _ => access::attribute(value, args::text(&name, "attribute name")?)?,
            }
        }
        "map" => map(value, args, meter)?,
        _ => return sequences::apply(name, value, args, meter),
    })
}

fn tojson(value: &Value, args: &Args, meter: &Meter) -> Result<Value> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, separators, sort] = args.bind("tojson", names, 0)?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(text) if text.text().is_some() => Some(string(&text, meter)?.to_string()),
        Some(width) => {
            let width = usize::try_from(integer(&width)?).unwrap_or(0);
            meter.spend(width)?;
            Some(" ".repeat(width))
        }
    };
    let (item, key) = match separators {
        None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(pair) => match &pair.iterate(meter)?[..] {
            [item, key] => {
                (args::text(item, "separator")?.to_string(), args::text(key, "separator")?.to_string())
            }
            _ => return Err(Error::value("too many values to unpack (expected 2)")),
        },
    };
    let style = json::Style { ascii: flag(&ascii), indent, item, key, sort: flag(&sort) };
    json::dumps(value, &style, meter).map(Value::from)
}

/// Applies a filter to each item, or takes an attribute of each.
fn map(value: &Value, args: &Args, meter: &Meter) -> Result<Value> {
    if !value.is_true() {
        return Value::iterator(Vec::new());
    }
    let items = value.iterate(meter)?;
    let named = |name: &str| args.named.iter().find(|(known, _)| **known == *name).map(|(_, value)| value);
    let mapped: Vec<Value> = match (args.positional.split_first(), named("attribute")) {
        (None, Some(attribute)) => {
            let known: IndexSet<&str> = ["attribute", "default"].into();
            if let Some((name, _)) = args.named.iter().find(|(name, _)| !known.contains(&**name)) {
                return Err(Error::value(format!("Unexpected keyword argument '{name}'")));
            }
            let default = named("default").filter(|value| !matches!(value, Value::None)).cloned();
            let path = sequences::Path::new(attribute, default);
            items.iter().map(|item| path.get(item, meter)).collect::<Result<_>>()?
        }
        (Some((name, rest)), _) => {
            let name = args::text(name, "filter name")?;
            if !is_known(name)? {
                return Err(Error::value(format!("No filter named '{name}'.")));
            }
            let args = Args { positional: rest.to_vec(), named: args.named.clone() };
            items
                .iter()
                .map(|item| meter.nested(|| apply(name, item, &args, meter)))
                .collect::<Result<_>>()?
        }
        (None, None) => return Err(Error::value("map requires a filter argument")),
    };
    Value::iterator(mapped)
}
