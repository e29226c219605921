//! Reads the contract of rotated weights, `prism.hadamard.*`, from the metadata of a GGUF file or from `hadamard.json`.
//!
//! Without the transform a model writes fluent nonsense, so every key and value that is not known is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Map, Value};

use crate::{
    ModelError,
    error::one_line,
    files::gguf::Gguf,
    names::{self, Part},
    spec::{Rotation, fields::Fields},
};

const PREFIX: &str = "prism.hadamard.";
pub(crate) const TRANSFORM: &str = "normalized-sylvester-walsh-hadamard";
pub(crate) const AXIS: &str = "input-last-dimension";
const KEYS: [&str; 11] = [
    "version",
    "block_size",
    "transform",
    "axis",
    "sign_mode",
    "sign_widths",
    "sign_values",
    "weight_names",
    "inverse_weight_names",
    "tied_output",
    "gdn_v_grouped",
];

/// The products that may be rotated, besides the output head.
const ROTATED: [Part; 10] = [
    Part::Query,
    Part::Key,
    Part::Value,
    Part::Output,
    Part::DeltaInput,
    Part::DeltaGate,
    Part::DeltaOutput,
    Part::Gate,
    Part::Up,
    Part::Down,
];

/// The rotation that `hadamard.json` describes, or `None` if it has no key of the contract. `output_gate` says whether
/// tensors of queries also hold output gates.
pub(crate) fn of_json(
    file: &str,
    json: &Value,
    output_gate: bool,
) -> Result<Option<Arc<Rotation>>, ModelError> {
    let keys = json.as_object().into_iter().flatten();
    let keys = keys.filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?.to_owned(), value.clone())));
    read(file, Value::Object(keys.collect()), |stored| Some(names::unwrapped(stored)), output_gate)
}

/// As [`of_json`], for the metadata of a GGUF file.
pub(crate) fn of_gguf(gguf: &Gguf, output_gate: bool) -> Result<Option<Arc<Rotation>>, ModelError> {
    let lists = ["sign_widths", "sign_values", "weight_names", "inverse_weight_names"];
    read(&gguf.file, gguf.json(PREFIX, &lists), names::from_gguf, output_gate)
}

/// The full name of a key of the contract.
pub(crate) fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Reads the keys of the contract, without their prefix. `name` returns the Hugging Face name of a tensor, if its name in
/// this file has the right form.
fn read(
    file: &str,
    json: Value,
    name: fn(&str) -> Option<String>,
    output_gate: bool,
) -> Result<Option<Arc<Rotation>>, ModelError> {
    if json.as_object().is_none_or(Map::is_empty) {
        return Ok(None);
    }
    let contract = Contract { fields: Fields { file, prefix: PREFIX, json: &json }, name };
    let fields = &contract.fields;
    if let Some(unknown) =
        json.as_object().and_then(|keys| keys.keys().find(|key| !KEYS.contains(&key.as_str())))
    {
        // The name of an unknown key comes from the file.
        return Err(contract.unsupported(&one_line(unknown), "unknown"));
    }
    let tied_output = contract.tied_output()?;
    for (name, only) in [("transform", TRANSFORM), ("axis", AXIS)] {
        let value = contract.need(name, fields.text(name)?)?;
        if value != only {
            return Err(contract.unsupported(name, value));
        }
    }
    let block = contract.need("block_size", fields.size("block_size")?)?;
    let (weights, embedding) = contract.names(output_gate)?;
    if tied_output && !embedding {
        let problem = "does not name the embedding, though tied_output is true";
        return Err(fields.bad("inverse_weight_names", problem));
    }
    if tied_output && weights.contains(names::HEAD) {
        return Err(fields.bad("weight_names", "names the output head, though tied_output is true"));
    }
    let grouped_values = fields.flag("gdn_v_grouped")?.unwrap_or(false);
    let signs = contract.signs()?;
    Ok(Some(Arc::new(Rotation { block, signs, weights, embedding, tied_output, grouped_values })))
}

struct Contract<'a> {
    fields: Fields<'a>,
    name: fn(&str) -> Option<String>,
}

impl Contract<'_> {
    fn need<T>(&self, name: &str, value: Option<T>) -> Result<T, ModelError> {
        value.ok_or_else(|| self.fields.missing(name))
    }

    fn unsupported(&self, name: &str, value: impl ToString) -> ModelError {
        let cure = "this program knows versions 1 and 2 of the contract; use a file of one of them";
        self.fields.unsupported(name, value, cure)
    }

    fn texts(&self, name: &str) -> Result<Option<Vec<&str>>, ModelError> {
        self.fields.list(name, "a list of strings", Value::as_str)
    }

    fn integers(&self, name: &str) -> Result<Option<Vec<i64>>, ModelError> {
        self.fields.list(name, "a list of whole numbers", Value::as_i64)
    }

    /// Whether the rotated embedding is also the output head. That, and nothing else, makes a contract version 2.
    fn tied_output(&self) -> Result<bool, ModelError> {
        let version = self.need("version", self.fields.size("version")?)?;
        let tied_output = self.fields.flag("tied_output")?.unwrap_or(false);
        match (version, tied_output) {
            (1, false) | (2, true) => Ok(tied_output),
            (1 | 2, _) => {
                let problem = format!("is {tied_output}, though version is {version}");
                Err(self.fields.bad("tied_output", problem))
            }
            _ => Err(self.unsupported("version", version)),
        }
    }

    /// The signs of every width.
    fn signs(&self) -> Result<BTreeMap<usize, Arc<[i8]>>, ModelError> {
        let mode = self.need("sign_mode", self.fields.text("sign_mode")?)?;
        let widths = self.integers("sign_widths")?;
        let values = self.integers("sign_values")?;
        let (widths, values) = match mode {
            "explicit" => (self.need("sign_widths", widths)?, self.need("sign_values", values)?),
            "identity" if widths.is_none_or(|w| w.is_empty()) && values.is_none_or(|v| v.is_empty()) => {
                return Ok(BTreeMap::new());
            }
            "identity" => {
                return Err(self.fields.bad("sign_values", "is not empty though sign_mode is identity"));
            }
            other => return Err(self.unsupported("sign_mode", other)),
        };
        if let Some(value) = values.iter().find(|value| ![-1, 1].contains(*value)) {
            return Err(self.fields.bad("sign_values", format!("holds {value}, not 1 or -1")));
        }
        if widths.is_empty() || widths.iter().any(|&w| w <= 0) || widths.windows(2).any(|w| w[0] >= w[1]) {
            return Err(self.fields.bad("sign_widths", "is not a list of ascending widths"));
        }
        let mut rest: Vec<i8> = values.into_iter().map(|sign| sign as i8).collect();
        let (length, mut signs) = (rest.len(), BTreeMap::new());
        for width in widths {
            let Some(width) = usize::try_from(width).ok().filter(|&width| width <= rest.len()) else {
                let problem = format!("has {length} values, fewer than the sum of sign_widths");
                return Err(self.fields.bad("sign_values", problem));
            };
            let later = rest.split_off(width);
            signs.insert(width, std::mem::replace(&mut rest, later).into());
        }
        match rest.len() {
            0 => Ok(signs),
            more => Err(self
                .fields
                .bad("sign_values", format!("has {more} values more than the sum of sign_widths"))),
        }
    }

    /// The rotated products, and whether the embedding is rotated.
    fn names(&self, output_gate: bool) -> Result<(BTreeSet<String>, bool), ModelError> {
        let mut weights = BTreeSet::new();
        for stored in self.need("weight_names", self.texts("weight_names")?)? {
            let known = (self.name)(stored).filter(|name| {
                let part = Part::of(name);
                name == names::HEAD || part.is_some_and(|part| ROTATED.contains(&part))
            });
            let Some(name) = known else {
                return Err(self.unsupported("weight_names", format!("a list with {stored}")));
            };
            if output_gate && Part::of(&name) == Some(Part::Query) {
                weights.insert(name.replace(Part::Query.name(), Part::OutputGate.name()));
            }
            if !weights.insert(name) {
                return Err(self.fields.bad("weight_names", format!("names {stored} twice")));
            }
        }
        let inverse = self.texts("inverse_weight_names")?.unwrap_or_default();
        match &inverse[..] {
            [] => Ok((weights, false)),
            [stored] if (self.name)(stored).as_deref() == Some(names::EMBEDDING) => Ok((weights, true)),
            _ => Err(self.unsupported("inverse_weight_names", format!("a list of {}", inverse.join(", ")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rotation(json: &Value) -> Result<Option<Arc<Rotation>>, String> {
        of_json("hadamard.json", json, true).map_err(|e| e.to_string())
    }

    fn contract() -> Value {
        json!({
            "prism.hadamard.version": 1,
            "prism.hadamard.block_size": 2,
            "prism.hadamard.transform": TRANSFORM,
            "prism.hadamard.axis": AXIS,
            "prism.hadamard.sign_mode": "explicit",
            "prism.hadamard.sign_widths": [2, 4],
            "prism.hadamard.sign_values": [1, -1, -1, 1, 1, 1],
            "prism.hadamard.weight_names": [
                "language_model.model.layers.0.self_attn.q_proj.weight",
                "language_model.lm_head.weight",
            ],
            "prism.hadamard.inverse_weight_names": ["language_model.model.embed_tokens.weight"],
            "prism.hadamard.gdn_v_grouped": true,
        })
    }

    #[test]
    fn a_contract_is_read_in_full() {
        let rotation = rotation(&contract()).unwrap().unwrap();
        assert_eq!((rotation.block, rotation.embedding, rotation.grouped_values), (2, true, true));
        assert_eq!((&*rotation.signs[&2], &*rotation.signs[&4]), (&[1, -1][..], &[-1, 1, 1, 1][..]));
        let names: Vec<&str> = rotation.weights.iter().map(String::as_str).collect();
        let layer = |part: Part| part.tensor(0);
        assert_eq!(names, [names::HEAD.to_string(), layer(Part::OutputGate), layer(Part::Query)]);
        assert_eq!(self::rotation(&json!({"other": 1})), Ok(None));
    }

    #[test]
    fn whatever_is_unknown_or_does_not_add_up_is_refused_by_its_key() {
        let cases: [(&str, Value, &str); 22] = [
            ("version", json!(3), "version is 3, which is not supported"),
            ("version", json!(2), "tied_output is false, though version is 2"),
            ("version", Value::Null, "version is missing"),
            ("transform", json!("fast"), "transform is fast"),
            ("axis", json!("output"), "axis is output"),
            ("sign_mode", json!("random"), "sign_mode is random"),
            ("sign_mode", json!("identity"), "sign_values is not empty"),
            ("sign_values", json!([1, 0, -1, 1, 1, 1]), "sign_values holds 0"),
            ("sign_values", json!([1, i64::MIN, -1, 1, 1, 1]), "sign_values holds -9223372036854775808"),
            ("sign_values", json!([1, -1, 1]), "has 3 values, fewer than the sum"),
            ("sign_values", json!([1, -1, 1, 1, 1, 1, 1]), "has 1 values more than the sum"),
            ("sign_values", json!("1"), "sign_values is not a list of whole numbers"),
            ("sign_values", Value::Null, "sign_values is missing"),
            ("sign_widths", json!([4, 2]), "sign_widths is not a list of ascending widths"),
            ("sign_widths", json!([-2, 8]), "sign_widths is not a list of ascending widths"),
            ("weight_names", json!(["model.layers.0.linear_attn.in_proj_a.weight"]), "in_proj_a.weight"),
            ("weight_names", json!(["model.embed_tokens.weight"]), "a list with model.embed_tokens.weight"),
            ("weight_names", json!(["lm_head.weight", "lm_head.weight"]), "names lm_head.weight twice"),
            ("inverse_weight_names", json!(["lm_head.weight"]), "inverse_weight_names is a list of lm_head"),
            ("gdn_v_grouped", json!("yes"), "gdn_v_grouped is not true or false"),
            ("tied_output", json!(true), "tied_output is true, though version is 1"),
            ("seed", json!(7), "seed is unknown"),
        ];
        for (field, value, told) in cases {
            let mut json = contract();
            json[key(field)] = value;
            let error = rotation(&json).unwrap_err();
            assert!(error.contains(told) && error.contains("hadamard.json"), "{field}: {error}");
        }
        // A value of another type, under every key there is.
        for name in KEYS {
            let mut json = contract();
            json[key(name)] = json!({"a": 1});
            let error = rotation(&json).unwrap_err();
            assert!(error.contains(&format!("{} is not", key(name))), "{name}: {error}");
        }
        let mut json = contract();
        json[key(&format!("a\nb{}", "{".repeat(4000)))] = json!(1);
        let error = rotation(&json).unwrap_err();
        assert!(
            error.contains("hadamard.a\\nb") && error.lines().count() == 1 && error.len() < 1000,
            "{error}"
        );
    }
}
