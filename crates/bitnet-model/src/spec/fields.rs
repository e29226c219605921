//! Typed access to the fields of a JSON object: a file that describes a model, or the metadata of a GGUF file.
//! An error names the file, the field and the cure.

use serde_json::Value;

use crate::ModelError;

/// Maximum size in bytes of a JSON file that describes a model.
pub(crate) const MAX_JSON: u64 = 4 << 20;

/// A JSON object; errors in its fields name the field.
pub(crate) struct Fields<'a> {
    pub file: &'a str,
    /// Path of the object within the file, with a dot at the end; in a GGUF file, what its keys begin with.
    pub prefix: &'a str,
    pub json: &'a Value,
}

impl<'a> Fields<'a> {
    /// The value of a field, if it is present and not null.
    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.json.get(field).filter(|v| !v.is_null())
    }

    fn typed<T>(
        &self,
        field: &str,
        kind: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        self.get(field).map(|v| read(v).ok_or_else(|| self.bad(field, format!("is not {kind}")))).transpose()
    }

    pub(crate) fn size(&self, field: &str) -> Result<Option<usize>, ModelError> {
        self.typed(field, "a whole number", |v| whole(v)?.try_into().ok())
    }

    /// A number that all `layers` layers share: written once, or in a list with a value for each layer. `skip` says for
    /// which layers the value does not matter.
    pub(crate) fn shared_size(
        &self,
        field: &str,
        layers: usize,
        skip: impl Fn(usize) -> bool,
    ) -> Result<Option<usize>, ModelError> {
        let Some(Value::Array(list)) = self.get(field) else { return self.size(field) };
        if list.len() < layers {
            return Err(self.bad(field, format!("is a list of {}, fewer than {layers} layers", list.len())));
        }
        let mut values = list.iter().take(layers).enumerate().filter(|&(layer, _)| !skip(layer));
        let Some((_, first)) = values.next() else { return Ok(None) };
        let size = || whole(first)?.try_into().ok();
        if let Some((layer, other)) = values.find(|&(_, value)| whole(value) != whole(first)) {
            let value = format!("a list ({first}, and {other} in layer {layer})");
            return Err(self.unsupported(field, value, "use a model in which it is the same in every layer"));
        }
        size().map(Some).ok_or_else(|| self.bad(field, "is not a list of whole numbers"))
    }

    pub(crate) fn float(&self, field: &str) -> Result<Option<f32>, ModelError> {
        self.typed(field, "a number", |v| Some(v.as_f64()? as f32))
    }

    pub(crate) fn text(&self, field: &str) -> Result<Option<&'a str>, ModelError> {
        self.typed(field, "a string", Value::as_str)
    }

    pub(crate) fn flag(&self, field: &str) -> Result<Option<bool>, ModelError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    pub(crate) fn need_size(&self, field: &str) -> Result<usize, ModelError> {
        self.size(field)?.ok_or_else(|| self.missing(field))
    }

    pub(crate) fn need_float(&self, field: &str) -> Result<f32, ModelError> {
        self.float(field)?.ok_or_else(|| self.missing(field))
    }

    /// A list whose elements `read` accepts.
    pub(crate) fn list<T>(
        &self,
        field: &str,
        kind: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, ModelError> {
        self.typed(field, kind, |v| v.as_array()?.iter().map(read).collect())
    }

    /// A token id or a list of them; -1 stands for none.
    pub(crate) fn ids(&self, field: &str) -> Result<Vec<u32>, ModelError> {
        let id = |v: &&Value| whole(v)?.try_into().ok();
        let ids = self.typed(field, "a token id or a list of them", |v| {
            let listed = v.as_array().map_or(std::slice::from_ref(v), Vec::as_slice);
            listed.iter().filter(|v| v.as_f64() != Some(-1.0)).map(|v| id(&v)).collect()
        })?;
        Ok(ids.unwrap_or_default())
    }

    fn name(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    pub(crate) fn missing(&self, field: &str) -> ModelError {
        ModelError::missing_field(self.file, self.name(field))
    }

    pub(crate) fn bad(&self, field: &str, problem: impl ToString) -> ModelError {
        ModelError::field(self.file, self.name(field), problem)
    }

    pub(crate) fn unsupported(&self, field: &str, value: impl ToString, cure: &str) -> ModelError {
        ModelError::unsupported(self.file, self.name(field), value, cure)
    }
}

/// A number without a fraction and a sign, which some tools write as 256.0.
fn whole(value: &Value) -> Option<u64> {
    let exact = |v: &f64| v.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(v);
    value.as_u64().or_else(|| value.as_f64().filter(exact).map(|v| v as u64))
}

/// Reads a JSON file as Python writes it: with a byte order mark or without, and with `NaN` and `Infinity`, which become
/// null.
pub(crate) fn json(file: &str, bytes: &[u8]) -> Result<Value, ModelError> {
    if bytes.len() as u64 > MAX_JSON {
        return Err(ModelError::TooLarge { file: file.into(), size: bytes.len() as u64, limit: MAX_JSON });
    }
    let bytes = without_mark(bytes);
    let first = match serde_json::from_slice(bytes) {
        Ok(json) => return Ok(json),
        Err(error) => error,
    };
    let Ok(text) = str::from_utf8(bytes) else { return Err(ModelError::damaged(file, first)) };
    serde_json::from_str(&finite(text)).map_err(|_| ModelError::damaged(file, first))
}

/// A file's bytes behind the mark that some editors put before UTF-8.
pub(crate) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes)
}

/// The text with null in place of Python's numbers that JSON lacks, except within strings.
fn finite(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Every second part is a string, once escaped quotes are joined to it.
    let (mut rest, mut quoted) = (text, false);
    while !rest.is_empty() {
        let end = if quoted { end_of_string(rest) } else { rest.find('"').map_or(rest.len(), |at| at + 1) };
        let (part, after) = rest.split_at(end);
        if quoted {
            out.push_str(part)
        } else {
            let part = part.replace("-Infinity", "null").replace("Infinity", "null");
            out.push_str(&part.replace("NaN", "null"));
        }
        (rest, quoted) = (after, !quoted);
    }
    out
}

/// The number of bytes up to the quote that ends a string, and with it.
fn end_of_string(text: &str) -> usize {
    let mut escaped = false;
    let end = text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |at| at + 1)
}
