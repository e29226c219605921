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
        self.typed(field, "a whole number", |v| v.as_u64()?.try_into().ok())
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

    /// A token id or a list of them.
    pub(crate) fn ids(&self, field: &str) -> Result<Vec<u32>, ModelError> {
        let id = |v: &Value| v.as_u64()?.try_into().ok();
        let ids = self.typed(field, "a token id or a list of them", |v| match v {
            Value::Array(list) => list.iter().map(id).collect(),
            one => Some(vec![id(one)?]),
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

pub(crate) fn json(file: &str, bytes: &[u8]) -> Result<Value, ModelError> {
    if bytes.len() as u64 > MAX_JSON {
        return Err(ModelError::TooLarge { file: file.into(), size: bytes.len() as u64, limit: MAX_JSON });
    }
    serde_json::from_slice(bytes).map_err(|e| ModelError::damaged(file, e))
}
