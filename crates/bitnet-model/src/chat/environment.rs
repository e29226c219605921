//! The environment that Hugging Face gives to templates: Jinja's filters, Python's methods, `raise_exception`,
//! `strftime_now` and its own `tojson`.

use std::sync::LazyLock;

use minijinja::{
    Environment, Error, ErrorKind,
    value::{Value, ValueKind},
};

use super::{date, meter};

/// Maximum number of instructions in a rendering. A hundred messages take about ten thousand.
const FUEL: u64 = 500_000;
const RECURSION: usize = 64;

/// The environment of every template.
pub(super) fn shared() -> &'static Environment<'static> {
    static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| date::today(&format));
        environment.add_filter("tojson", |value: &Value| {
            meter::spend(meter::JSON * meter::shown(value))?;
            json(value)
        });
        meter::install(&mut environment);
        environment
    });
    &ENVIRONMENT
}

/// Hugging Face's `tojson`: Python's `json.dumps(value, ensure_ascii=False)`, without the HTML escapes of Jinja's own.
fn json(value: &Value) -> Result<String, Error> {
    let items = |value: &Value| value.try_iter()?.map(|v| json(&v)).collect::<Result<Vec<_>, _>>();
    Ok(match value.kind() {
        ValueKind::Undefined | ValueKind::None => "null".into(),
        ValueKind::Bool => value.is_true().to_string(),
        ValueKind::Number => value.to_string(),
        ValueKind::Seq | ValueKind::Iterable => format!("[{}]", items(value)?.join(", ")),
        ValueKind::Map => {
            let entry = |key: Value| Ok(format!("{}: {}", json(&key)?, json(&value.get_item(&key)?)?));
            let entries: Result<Vec<_>, Error> = value.try_iter()?.map(entry).collect();
            format!("{{{}}}", entries?.join(", "))
        }
        _ => serde_json::Value::from(value.to_string()).to_string(),
    })
}
