//! Calls of methods of lists, dictionaries and the other classes.

use super::{
    args::Args,
    error::{Error, Result},
    meter::Meter,
    strings,
    value::key::{Key, Number, equal, number},
    value::{Value, View},
};

/// Calls a method.
pub(super) fn call(subject: &Value, name: &str, args: &Args, meter: &Meter) -> Result<Value> {
    match subject {
        Value::Str(_) | Value::Safe(_) => strings::call(subject, name, args, meter),
        Value::Dict(dict) => match name {
            "get" => {
                let [key, default] = args.plain(name, 1)?;
                let found = dict.map.get(&Key::new(key.unwrap_or(Value::None))?).cloned();
                Ok(found.or(default).unwrap_or(Value::None))
            }
            "keys" | "values" | "items" => {
                args.plain::<0>(name, 0)?;
                let view = match name {
                    "keys" => View::Keys,
                    "values" => View::Values,
                    _ => View::Items,
                };
                Ok(Value::View(view, dict.clone()))
            }
            "copy" => Ok(subject.clone()),
            _ => unsupported(subject, name),
        },
        Value::List(_) | Value::Tuple(_) | Value::Group(_) | Value::Range(_) => {
            let items = subject.iterate(meter)?;
            match name {
                "count" => {
                    let [wanted] = args.plain(name, 1)?;
                    let wanted = wanted.unwrap_or(Value::None);
                    Ok(items.iter().filter(|item| equal(item, &wanted)).count().into())
                }
                "index" => {
                    let [wanted, start, end] = args.plain(name, 1)?;
                    let wanted = wanted.unwrap_or(Value::None);
                    let bound = |value: &Option<Value>, default: usize| -> Result<usize> {
                        let at = super::args::integer_or(value, default as i64)?;
                        Ok(if at < 0 { (at + items.len() as i64).max(0) } else { at } as usize)
                    };
                    let start = bound(&start, 0)?;
                    let end = bound(&end, items.len())?.min(items.len());
                    let found = (start..end).find(|&at| equal(&items[at], &wanted));
                    found
                        .map(Value::from)
                        .ok_or_else(|| Error::value(format!("value is not in {}", subject.class())))
                }
                "copy" => Ok(subject.clone()),
                _ => unsupported(subject, name),
            }
        }
        Value::Loop(of) => match name {
            "cycle" => match args.positional.len() {
                0 => Err(Error::of_type("no items for cycling given")),
                count => Ok(args.positional[of.index.get() % count].clone()),
            },
            "changed" => {
                let now = Value::tuple(args.positional.clone())?;
                let before = of.changed.replace(Some(now.clone()));
                Ok((!before.is_some_and(|before| equal(&before, &now))).into())
            }
            _ => unsupported(subject, name),
        },
        Value::Cycler(cycler) => {
            if name == "reset" {
                cycler.at.set(0);
                return Ok(Value::None);
            }
            let at = cycler.at.get();
            cycler.at.set((at + 1) % cycler.items.items.len());
            Ok(cycler.items.items[at].clone())
        }
        _ => match (number(subject), name) {
            (Some(Number::Int(number)), "bit_length") => Ok((number.bits() as usize).into()),
            (Some(Number::Int(number)), "bit_count") => Ok(number
                .magnitude()
                .iter_u64_digits()
                .map(|d| d.count_ones() as usize)
                .sum::<usize>()
                .into()),
            (Some(Number::Float(number)), "is_integer") => {
                Ok((number.is_finite() && number.fract() == 0.0).into())
            }
            (Some(_), "conjugate") => Ok(subject.clone()),
            _ => unsupported(subject, name),
        },
    }
}

fn unsupported(subject: &Value, name: &str) -> Result<Value> {
    Err(Error::of_type(format!("the method '{name}' of '{}' is not supported", subject.class())))
}
