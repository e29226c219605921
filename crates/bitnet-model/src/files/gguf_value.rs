//! Metadata values of GGUF. Arrays stay in the file: a vocabulary of 128,256 tokens costs nothing until it is read,
//! and a hostile array never becomes a vector of values.

use std::io::Cursor;

use bitnet_tensor::SharedBytes;
use gguf_rs_lib::format::{GGUFValueType, MetadataValue};

/// Maximum depth of nested arrays; no model nests them deeper than two.
const MAX_DEPTH: usize = 8;

#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// A number, boolean or string.
    Scalar(MetadataValue),
    /// An array, not read yet.
    Array(Array),
}

/// An array of values in the file.
#[derive(Debug, Clone)]
pub(crate) struct Array {
    pub element: GGUFValueType,
    pub len: usize,
    bytes: SharedBytes,
}

impl Value {
    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Value::Scalar(MetadataValue::String(s)) => Some(s),
            _ => None,
        }
    }

    /// A whole number that is not negative.
    pub(crate) fn as_u64(&self) -> Option<u64> {
        let Value::Scalar(v) = self else { return None };
        v.as_u64().or_else(|| v.as_i64().and_then(|v| v.try_into().ok()))
    }

    pub(crate) fn as_i64(&self) -> Option<i64> {
        let Value::Scalar(v) = self else { return None };
        v.as_i64().or_else(|| v.as_u64().and_then(|v| v.try_into().ok()))
    }

    pub(crate) fn as_f64(&self) -> Option<f64> {
        let Value::Scalar(v) = self else { return None };
        v.as_f64()
    }

    pub(crate) fn as_bool(&self) -> Option<bool> {
        let Value::Scalar(v) = self else { return None };
        v.as_bool()
    }

    pub(crate) fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(a) => Some(a),
            Value::Scalar(_) => None,
        }
    }

    /// This value as JSON; a number that JSON lacks, or an array, is a list of nothing.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let text = self.as_str().map(serde_json::Value::from);
        let flag = || self.as_bool().map(serde_json::Value::from);
        let whole = || self.as_u64().map(Into::into).or(self.as_i64().map(Into::into));
        let number = || self.as_f64().filter(|number| number.is_finite()).map(Into::into);
        text.or_else(flag).or_else(whole).or_else(number).unwrap_or_else(nothing)
    }
}

/// A list of nothing, which is no value that any field has.
fn nothing() -> serde_json::Value {
    serde_json::json!([null])
}

impl Array {
    /// The strings of an array of strings, with `None` for each that is not UTF-8.
    pub(crate) fn strings(&self) -> Option<impl Iterator<Item = Option<&str>>> {
        (self.element == GGUFValueType::String).then(|| {
            let mut at = Walker { bytes: &self.bytes, at: 0 };
            // The walk that found the end of the array checked every length.
            (0..self.len).map(move |_| str::from_utf8(at.string()?).ok())
        })
    }

    /// The values of an array of integers of any width; those above the largest `i64` become that.
    pub(crate) fn integers(&self) -> Option<impl Iterator<Item = i64>> {
        type Read = fn(&[u8; 8]) -> i64;
        let (size, read): (usize, Read) = match self.element {
            GGUFValueType::U8 => (1, |b| i64::from(b[0])),
            GGUFValueType::I8 => (1, |b| i64::from(b[0] as i8)),
            GGUFValueType::U16 => (2, |b| i64::from(u16::from_le_bytes([b[0], b[1]]))),
            GGUFValueType::I16 => (2, |b| i64::from(i16::from_le_bytes([b[0], b[1]]))),
            GGUFValueType::U32 => (4, |b| i64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
            GGUFValueType::I32 => (4, |b| i64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
            GGUFValueType::U64 => (8, |b| i64::try_from(u64::from_le_bytes(*b)).unwrap_or(i64::MAX)),
            GGUFValueType::I64 => (8, |b| i64::from_le_bytes(*b)),
            _ => return None,
        };
        Some(self.bytes.chunks_exact(size).map(move |bytes| {
            let mut word = [0; 8];
            word[..size].copy_from_slice(bytes);
            read(&word)
        }))
    }

    /// The texts, whole numbers or booleans of an array as JSON; a list of nothing for any other array.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        if self.element == GGUFValueType::Bool {
            return self.bytes.iter().map(|&byte| byte != 0).collect();
        }
        let texts = self.strings().map(|texts| texts.collect());
        let numbers = texts.or_else(|| self.integers().map(|integers| integers.collect()));
        numbers.or_else(|| self.floats().map(|floats| floats.collect())).unwrap_or_else(nothing)
    }

    /// The values of an array of 32-bit floats.
    pub(crate) fn floats(&self) -> Option<impl Iterator<Item = f32>> {
        (self.element == GGUFValueType::F32).then(|| {
            let (words, _) = self.bytes.as_chunks::<4>();
            words.iter().map(|w| f32::from_le_bytes(*w))
        })
    }
}

/// A position in the bytes of a file; every read checks that the file is long enough.
pub(crate) struct Walker<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Walker<'a> {
    pub(crate) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(n)?;
        let part = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(part)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(*self.take(4)?.first_chunk()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.take(8)?.first_chunk()?))
    }

    /// A string: its length in 8 bytes, then that many bytes.
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let n = self.u64()?;
        self.take(n.try_into().ok()?)
    }

    /// Reads a value of type `kind`; `file` is the whole file, whose bytes this walks.
    pub(crate) fn value(&mut self, file: &SharedBytes, kind: GGUFValueType) -> Result<Value, String> {
        if kind == GGUFValueType::Array {
            let (element, len) = self.array_head()?;
            let start = self.at;
            self.skip_elements(element, len, 1)?;
            let bytes = file.slice(start..self.at).ok_or("it reaches past the end of the file")?;
            return Ok(Value::Array(Array { element, len, bytes }));
        }
        // Check that the value fits in the file before copying it.
        let start = self.at;
        self.skip(kind, 0)?;
        MetadataValue::read_from(&mut Cursor::new(&self.bytes[start..self.at]), kind)
            .map(Value::Scalar)
            .map_err(|e| e.to_string())
    }

    fn array_head(&mut self) -> Result<(GGUFValueType, usize), String> {
        let cut = "the file ends within it";
        let element = GGUFValueType::from_u32(self.u32().ok_or(cut)?).map_err(|e| e.to_string())?;
        let len = self.u64().ok_or(cut)?.try_into().map_err(|_| "its length overflows")?;
        Ok((element, len))
    }

    fn skip_elements(&mut self, element: GGUFValueType, len: usize, depth: usize) -> Result<(), String> {
        if let Some(size) = element.size_in_bytes() {
            let bytes = len.checked_mul(size).ok_or("its length overflows")?;
            self.take(bytes).ok_or("the file ends within it")?;
        } else {
            // Every element takes at least 8 bytes, so this ends by the end of the file.
            for _ in 0..len {
                self.skip(element, depth)?;
            }
        }
        Ok(())
    }

    fn skip(&mut self, kind: GGUFValueType, depth: usize) -> Result<(), String> {
        match kind {
            GGUFValueType::String => {
                self.string().ok_or("the file ends within it")?;
                Ok(())
            }
            GGUFValueType::Array if depth >= MAX_DEPTH => {
                Err(format!("arrays are nested deeper than {MAX_DEPTH}"))
            }
            GGUFValueType::Array => {
                let (element, len) = self.array_head()?;
                self.skip_elements(element, len, depth + 1)
            }
            plain => self.skip_elements(plain, 1, depth),
        }
    }
}
