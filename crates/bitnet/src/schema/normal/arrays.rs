//! Keywords of arrays: items, tuples, counts, `contains` and `uniqueItems`.

use serde_json::{Value, json};

use super::{Draft, Normaliser, Place, any_of, both, disjoint::values, numbers};

/// Maximum number of values whose arrays without repetition are listed in every order: 65 arrays of 4 values.
const MAX_ORDERED: usize = 4;

/// Maximum number of values whose arrays without repetition are listed in one order: 256 arrays of 8 values.
const MAX_DISTINCT: usize = 8;

/// Maximum number of items that an array must contain.
const MAX_CONTAINED: u64 = 16;

impl Normaliser<'_> {
    /// Rewrites the keywords of arrays.
    pub(super) fn arrays(&mut self, draft: &mut Draft<'_>, place: &Place) -> Result<(), String> {
        self.items(draft, place)?;
        self.contained(draft, place)?;
        match draft.sent.get("uniqueItems") {
            Some(Value::Bool(true)) => self.distinct(draft, place),
            None | Some(Value::Bool(false)) => Ok(()),
            Some(_) => Err(place.problem("uniqueItems", "it must be true or false")),
        }
    }

    fn items(&mut self, draft: &mut Draft<'_>, place: &Place) -> Result<(), String> {
        // A list of `items` is what older drafts call `prefixItems`.
        let (listed, rest) = match draft.sent.get("items") {
            Some(Value::Array(_)) => ("items", "additionalItems"),
            _ => ("prefixItems", "items"),
        };
        if let Some(value) = draft.sent.get(listed) {
            draft.out.insert("prefixItems".into(), self.each(value, listed, place)?.into());
        }
        let unevaluated = "unevaluatedItems";
        let rest = match draft.sent.contains_key(rest) {
            false if draft.sent.contains_key(unevaluated) => {
                let applicators = ["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "contains"];
                let met = applicators.into_iter().find(|keyword| draft.sent.contains_key(*keyword));
                match (draft.sent.get(unevaluated), met) {
                    (Some(Value::Bool(true)), _) => return Ok(()),
                    (_, Some(met)) => {
                        let problem = format!("it cannot be combined with {met}: use items");
                        return Err(place.problem(unevaluated, problem));
                    }
                    _ => unevaluated,
                }
            }
            _ => rest,
        };
        if let Some(value) = draft.sent.get(rest) {
            let items = self.schema(value, &place.inside(rest))?;
            draft.out.insert("items".into(), items);
        }
        Ok(())
    }

    /// Rewrites `contains`: the first item is the one that is asked for.
    fn contained(&mut self, draft: &mut Draft<'_>, place: &Place) -> Result<(), String> {
        let Some(value) = draft.sent.get("contains") else { return Ok(()) };
        let number = |keyword: &str| match draft.sent.get(keyword).map(numbers::count) {
            Some(None) => Err(place.problem(keyword, "it must be a whole number that is not negative")),
            count => Ok(count.flatten()),
        };
        let least = number("minContains")?.unwrap_or(1);
        let most = number("maxContains")?;
        let item = self.schema(value, &place.inside("contains"))?;
        if item == json!(true) || item == json!({}) {
            let mut bounds = json!({"minItems": least});
            if let Some(most) = most {
                bounds["maxItems"] = most.into();
            }
            draft.also.push(bounds);
            return Ok(());
        }
        if least > MAX_CONTAINED {
            return Err(place.problem("minContains", format!("it is over {MAX_CONTAINED}")));
        }
        if least == 0 && most.is_none() {
            return Ok(());
        }
        self.narrowed = true;
        let mut bounds = json!({"prefixItems": vec![item; least as usize], "minItems": least});
        if let Some(most) = most {
            let exact = self.exactly(value, "contains", place)?;
            let others = self.negated(&exact, 0)?;
            if most < least || others == json!(false) {
                return Err(place.problem("maxContains", "what `contains` says cannot be negated"));
            }
            bounds["items"] = others;
        }
        draft.also.push(bounds);
        Ok(())
    }

    /// Rewrites `uniqueItems` for arrays of at most one item, and of a few values that are listed.
    fn distinct(&mut self, draft: &mut Draft<'_>, place: &Place) -> Result<(), String> {
        let number = |keyword: &str| draft.out.get(keyword).and_then(Value::as_u64);
        let (least, most) = (number("minItems").unwrap_or(0), number("maxItems"));
        if most.is_some_and(|most| most <= 1) {
            return Ok(());
        }
        let whole = |kind: &Value| kind == "array";
        let kinds = draft.out.get("type");
        if kinds.is_some_and(|kinds| match kinds {
            Value::Array(kinds) => !kinds.iter().any(whole),
            kind => !whole(kind),
        }) {
            return Ok(());
        }
        let item = draft.out.get("items").cloned().unwrap_or(json!(true));
        let listed = match item.get("type") {
            Some(Value::String(kind)) if kind == "boolean" && values(&item).is_none() => {
                Some(vec![json!(true), json!(false)])
            }
            _ => values(&item).map(<[Value]>::to_vec),
        };
        let mut listed = listed.filter(|_| !draft.out.contains_key("prefixItems")).unwrap_or_default();
        let mut different: Vec<Value> = Vec::new();
        for value in std::mem::take(&mut listed) {
            if !different.contains(&value) {
                different.push(value);
            }
        }
        listed = different;
        if listed.is_empty() || listed.len() > MAX_DISTINCT {
            let problem = format!(
                "it is supported for at most one item, and for items that are one of up to {MAX_DISTINCT} listed values"
            );
            return Err(place.problem("uniqueItems", problem));
        }
        let mut arrays = Vec::new();
        if listed.len() <= MAX_ORDERED {
            orders(&listed, &mut Vec::new(), &mut arrays)
        } else {
            self.narrowed = true;
            arrays.extend((0..1_u32 << listed.len()).map(|set| {
                let chosen = listed.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1);
                chosen.map(|(_, value)| value.clone()).collect::<Vec<_>>()
            }));
        }
        arrays.retain(|array| array.len() as u64 >= least);
        let arrays = any_of(arrays.iter().map(|array| exactly(array, &item)).collect());
        let other = json!({"type": ["null", "boolean", "number", "string", "object"]});
        draft.out.shift_remove("items");
        draft.also.push(any_of(vec![arrays, other]));
        Ok(())
    }
}

/// All arrays of different values.
fn orders(values: &[Value], array: &mut Vec<Value>, all: &mut Vec<Vec<Value>>) {
    all.push(array.clone());
    for value in values {
        if !array.contains(value) {
            array.push(value.clone());
            orders(values, array, all);
            array.pop();
        }
    }
}

/// The schema of one array.
fn exactly(array: &[Value], item: &Value) -> Value {
    let items: Vec<Value> = array.iter().map(|value| both(json!({"const": value}), item.clone())).collect();
    json!({
        "type": "array", "prefixItems": items, "items": false, "minItems": array.len(), "maxItems": array.len(),
    })
}
