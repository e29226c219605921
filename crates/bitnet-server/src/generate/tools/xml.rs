//! The grammar of calls that are written as tags with a parameter each, and its values without quotes.

use bitnet::{model::Literals, schema::type_of};
use serde_json::{Map, Value, json};

use super::{Tool, values::resolved};

/// The tag after a value; the line end before it does not belong to the value.
pub(super) const END: &str = "\n</parameter>";
/// The same in a regular expression.
const END_REGEX: &str = "\\n<\\/parameter>";
/// Most parameters that may come in any order; more come in the order of the schema.
const ANY_ORDER: usize = 5;
/// Keywords about an object as a whole that values without a common text cannot follow.
const WHOLE: [&str; 11] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "minProperties",
    "maxProperties",
    "patternProperties",
    "dependentRequired",
    "dependentSchemas",
    "propertyNames",
];

/// Builds the rules of one tool.
struct Builder<'t> {
    root: &'t Value,
    /// The beginning of the names of its rules, and of those of its terminals.
    prefix: String,
    literals: Literals,
    rules: String,
    terminals: usize,
}

/// The rules of a call of tool number `i`, from `<function=` to `</function>`; the first is `call_i`.
///
/// # Errors
/// What in the tool's schema the grammar cannot hold.
pub(super) fn rules(i: usize, tool: &Tool, literals: Literals) -> Result<String, String> {
    let root = &tool.arguments;
    let mut builder = Builder { root, prefix: format!("x{i}"), literals, rules: String::new(), terminals: 0 };
    let body = builder.body(resolved(root, root))?;
    let open = json!(format!("<function={}>\n", tool.name));
    Ok(format!("call_{i}: {open} {body}\n{}", builder.rules))
}

impl Builder<'_> {
    /// An expression for the parameters and the end tag of the function.
    fn body(&mut self, object: &Value) -> Result<String, String> {
        if let Some(word) = WHOLE.iter().find(|word| object.get(**word).is_some()) {
            return Err(format!("`{word}` cannot be held by parameters that are written one by one"));
        }
        let none = Map::new();
        let properties = object.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let listed = object.get("required").and_then(Value::as_array).into_iter().flatten();
        let required: Vec<&str> = listed.filter_map(Value::as_str).collect();
        if let Some(missing) = required.iter().find(|key| !properties.contains_key(**key)) {
            return Err(format!("`required` names {missing:?}, which is not in `properties`"));
        }
        let mut parameters = Vec::new();
        for (i, (key, schema)) in properties.iter().enumerate() {
            if key.contains(['>', '\n']) {
                return Err(format!("the name {key:?} cannot be written in a tag"));
            }
            // A parameter that allows nothing is never written.
            if *schema != Value::Bool(false) || required.contains(&key.as_str()) {
                let name = format!("{}p{i}", self.prefix);
                let value = self.value(schema)?;
                self.rules += &format!("{name}: {} ({value})\n", json!(format!("<parameter={key}>")));
                parameters.push((name, required.contains(&key.as_str())));
            }
        }
        let others = self.others(object, properties)?;
        Ok(format!("{}{others} \"</function>\"", self.in_order(&parameters)))
    }

    /// Each parameter at most once, and the required ones.
    fn in_order(&mut self, parameters: &[(String, bool)]) -> String {
        if parameters.len() > ANY_ORDER {
            let each = parameters
                .iter()
                .map(|(name, required)| if *required { format!("{name} ") } else { format!("{name}? ") });
            return each.collect();
        }
        let done =
            |set: usize| parameters.iter().enumerate().all(|(i, (_, needed))| !needed || set >> i & 1 == 1);
        for set in 0..1usize << parameters.len() {
            let next = (0..parameters.len()).filter(|i| set >> i & 1 == 0);
            let next = next.map(|i| format!("{} {}s{}", parameters[i].0, self.prefix, set | 1 << i));
            let alternatives: Vec<String> = next.chain(done(set).then(|| "\"\"".to_owned())).collect();
            self.rules += &format!("{}s{set}: {}\n", self.prefix, alternatives.join(" | "));
        }
        format!("{}s0 ", self.prefix)
    }

    /// Parameters that the schema does not list, if it allows some.
    fn others(&mut self, object: &Value, properties: &Map<String, Value>) -> Result<String, String> {
        let any = json!({});
        let schema = match object.get("additionalProperties").or(object.get("unevaluatedProperties")) {
            Some(Value::Bool(false)) => return Ok(String::new()),
            None | Some(Value::Bool(true)) => &any,
            Some(schema) => schema,
        };
        let value = self.value(schema)?;
        let known = properties.keys().map(|key| format!("& ~{} ", json!(format!("<parameter={key}>"))));
        let known: String = known.collect();
        let rule = format!("{}o", self.prefix);
        let key = format!("{}O", self.prefix.to_uppercase());
        self.rules += &format!("{key}: /<parameter=[^>\\n]{{1,64}}>/ {known}\n{rule}: {key} ({value})\n");
        Ok(format!("{rule}*"))
    }

    /// An expression for the text from a parameter's opening tag to the line after its value.
    fn value(&mut self, schema: &Value) -> Result<String, String> {
        let alternatives = self.alternatives(schema, 0)?;
        if alternatives.is_empty() {
            Err("no value of a parameter can be written".into())
        } else {
            Ok(format!("({}) \"\\n\"", alternatives.join(" | ")))
        }
    }

    /// Expressions for the values that a schema allows, each with the end tag.
    fn alternatives(&mut self, schema: &Value, depth: usize) -> Result<Vec<String>, String> {
        let schema = resolved(self.root, schema);
        if depth > 8 {
            return Err("the schema of a parameter is too deep".into());
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            return Ok(values
                .iter()
                .filter(|value| fits(schema, value))
                .filter_map(|v| self.literal(v))
                .collect());
        }
        if let Some(value) = schema.get("const") {
            return Ok(self.literal(value).into_iter().collect());
        }
        for word in ["anyOf", "oneOf"] {
            if let Some(parts) = schema.get(word).and_then(Value::as_array) {
                let parts: Result<Vec<_>, String> =
                    parts.iter().map(|part| self.alternatives(part, depth + 1)).collect();
                return Ok(parts?.concat());
            }
        }
        match (schema.get("allOf").and_then(Value::as_array).map(Vec::as_slice), schema.get("type")) {
            (Some([one]), _) => self.alternatives(one, depth + 1),
            (Some(_), _) => Err("`allOf` in a parameter that is written without quotes".into()),
            (None, Some(Value::String(name))) => self.typed(name, schema),
            (None, Some(Value::Array(names))) => {
                let each = names.iter().filter_map(Value::as_str).map(|name| self.typed(name, schema));
                Ok(each.collect::<Result<Vec<_>, String>>()?.concat())
            }
            (None, _) if schema.get("properties").is_some() => self.typed("object", schema),
            (None, _) if schema.get("items").is_some() => self.typed("array", schema),
            (None, _) if *schema == Value::Bool(false) => Ok(Vec::new()),
            (None, _) => self.typed("string", schema),
        }
    }

    fn typed(&mut self, name: &str, schema: &Value) -> Result<Vec<String>, String> {
        let bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
        let bounded = bounds.iter().any(|word| schema.get(*word).is_some());
        Ok(match name {
            "string" => vec![self.text(schema)?],
            "boolean" => [true, false].iter().filter_map(|value| self.literal(&json!(value))).collect(),
            "null" => self.literal(&Value::Null).into_iter().collect(),
            // As many digits as in JSON, where a number of any length would let a model write digits for ever.
            "integer" if !bounded => vec![format!("/\\n-?(0|[1-9][0-9]{{0,19}}){END_REGEX}/")],
            "number" if !bounded => vec![format!(
                "/\\n-?(0|[1-9][0-9]{{0,19}})(\\.[0-9]{{1,20}})?([eE][+-]?[0-9]{{1,3}})?{END_REGEX}/"
            )],
            _ => {
                let mut own = schema.as_object().cloned().unwrap_or_default();
                own.insert("type".into(), json!(name));
                for word in ["$defs", "definitions", "x-guidance"] {
                    if let Some(value) = self.root.get(word) {
                        own.insert(word.into(), value.clone());
                    }
                }
                vec![format!("\"\\n\" %json {} {}", Value::Object(own), json!(END))]
            }
        })
    }

    /// A text without quotes, which cannot contain the end tag.
    fn text(&mut self, schema: &Value) -> Result<String, String> {
        let number = |word: &str| schema.get(word).and_then(Value::as_u64);
        let (least, most) = (number("minLength"), number("maxLength"));
        let pattern = schema.get("pattern").and_then(Value::as_str);
        let name = format!("{}t{}", self.prefix, self.terminals);
        self.terminals += 1;
        if least.unwrap_or(0) == 0 && most.is_none() && pattern.is_none() {
            // Also an empty value in one line, which some models write.
            self.rules += &format!("{name}[lazy]: /\\n((.|\\n)*\\n)?<\\/parameter>/\n");
            return Ok(name);
        }
        let most = most.map_or(String::new(), |most| most.to_string());
        let length = format!("/(.|\\n){{{},{most}}}/", least.unwrap_or(0));
        let pattern = pattern.map(regex).transpose()?.map(|regex| format!(" & {regex}")).unwrap_or_default();
        let name = name.to_uppercase();
        self.rules += &format!("{name}V: {length}{pattern}\n");
        self.rules += &format!("{name}: (\"\\n\" {name}V {}) & ~/(.|\\n)*{END_REGEX}(.|\\n)+/\n", json!(END));
        Ok(name)
    }

    /// One value with its end tag, unless it cannot be written.
    fn literal(&self, value: &Value) -> Option<String> {
        let python = self.literals == Literals::Python;
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Null if python => "None".into(),
            Value::Bool(true) if python => "True".into(),
            Value::Bool(false) if python => "False".into(),
            Value::Object(_) | Value::Array(_) => spaced(value),
            other => other.to_string(),
        };
        let written = format!("\n{text}{END}");
        (written.find(END)? == written.len() - END.len()).then(|| json!(written).to_string())
    }
}

/// Whether a value has a type that its schema allows.
fn fits(schema: &Value, value: &Value) -> bool {
    let of = |name: &str| name == type_of(value) || name == "integer" && value.is_number();
    match schema.get("type") {
        Some(Value::String(name)) => of(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).any(of),
        _ => true,
    }
}

/// JSON with the white space that templates write.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let each = map.iter().map(|(key, value)| format!("{}: {}", json!(key), spaced(value)));
            format!("{{{}}}", each.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// The regular expression of texts in which a schema's pattern occurs.
fn regex(pattern: &str) -> Result<String, String> {
    let begins = pattern.starts_with('^');
    let ends = pattern.ends_with('$') && !pattern.ends_with("\\$");
    let inner = pattern.strip_prefix('^').unwrap_or(pattern);
    let inner = if ends { &inner[..inner.len() - 1] } else { inner };
    if (begins || ends) && alternates(inner) {
        return Err(format!("the pattern {pattern:?}, whose alternatives have ends of their own"));
    }
    let mut lark = String::from(if begins { "/(" } else { "/(.|\\n)*(" });
    let mut escaped = false;
    for c in inner.chars() {
        if c == '/' && !escaped {
            lark.push('\\');
        }
        lark.push(c);
        escaped = c == '\\' && !escaped;
    }
    Ok(lark + if ends { ")/" } else { ")(.|\\n)*/" })
}

/// Whether a regular expression has alternatives outside of parentheses.
fn alternates(regex: &str) -> bool {
    let (mut depth, mut class, mut escaped) = (0, false, false);
    for c in regex.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => class = true,
            ']' => class = false,
            '(' if !class => depth += 1,
            ')' if !class => depth -= 1,
            '|' if !class && depth == 0 => return true,
            _ => {}
        }
    }
    false
}
