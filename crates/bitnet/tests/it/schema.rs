//! What JSON schemas allow, keyword by keyword.

use bitnet::{Constraint, Error, Model, TokenSet, schema::Schema};
use serde_json::{Value, json};

fn model() -> Model {
    Model::builder().threads(1).open("demo").unwrap()
}

fn compiled(model: &Model, schema: &Value) -> Schema {
    model.schemas().json(schema.clone()).unwrap_or_else(|refused| panic!("{schema}: {refused}"))
}

/// Checks which values follow a schema.
fn check(model: &Model, schema: Value, follow: &[Value], others: &[Value]) {
    let compiled = compiled(model, &schema);
    for (values, holds) in [(follow, true), (others, false)] {
        for value in values {
            assert_eq!(compiled.is_followed_by(&value.to_string()), holds, "{schema}: {value}");
        }
    }
}

/// Asks a constraint about texts that end in drafts, which are then taken back.
#[test]
fn a_constraint_that_was_asked_about_drafts_answers_as_one_that_was_not() {
    let model = model();
    let (vocab, eos) = (model.checkpoint().spec.vocab, &model.checkpoint().defaults.eos);
    let schema = json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 12},
        "list": {"type": "array", "items": {"type": "number"}, "maxItems": 3},
        "sure": {"type": "boolean"}
    }, "required": ["name", "list", "sure"], "additionalProperties": false});
    let compiled = compiled(&model, &schema);
    let allowed = |constraint: &dyn Constraint, text: &[u32]| {
        let mut allowed = TokenSet::new(vocab);
        constraint.allow(0, text, &mut allowed).unwrap();
        allowed
    };
    let pick = |set: &TokenSet, n: usize| {
        let tokens: Vec<u32> = (0..vocab as u32).filter(|&token| set.contains(token)).collect();
        tokens[n % tokens.len()]
    };
    let (asked, plain) = (compiled.constraint(), compiled.constraint());
    let (mut text, mut taken_back) = (Vec::new(), 0);
    for step in 0..60 {
        let set = allowed(&*plain, &text);
        assert_eq!(allowed(&*asked, &text), set, "after {text:?}");
        let next = pick(&set, 17 * step);
        if eos.contains(&next) {
            break;
        }
        // Drafts that the constraint allows, one after the other.
        let mut drafted = text.clone();
        for draft in 0..step % 6 {
            let next = pick(&allowed(&*asked, &drafted), 31 * step + 7 * draft + 1);
            if eos.contains(&next) {
                break;
            }
            drafted.push(next);
        }
        text.push(next);
        taken_back += usize::from(!text.starts_with(&drafted) && !drafted.starts_with(&text));
        // A text that nothing allows spoils no other.
        if step % 9 == 0 {
            let wrong = [&text[..], &[u32::MAX]].concat();
            assert!(asked.allow(0, &wrong, &mut TokenSet::new(vocab)).is_err());
        }
    }
    assert!(taken_back > 5, "{taken_back}");
}

fn refusal(model: &Model, schema: Value) -> String {
    match model.schemas().json(schema.clone()) {
        Err(Error::Schema { problem }) => problem,
        other => panic!("{schema}: {other:?}"),
    }
}

#[test]
fn keywords_that_constrain_nothing_change_nothing() {
    let model = model();
    for (keyword, value) in [
        ("$schema", json!("https://example.com/of-its-own")),
        ("$comment", json!("x")),
        ("$id", json!("https://example.com/a")),
        ("title", json!("x")),
        ("description", json!("x")),
        ("default", json!("x")),
        ("examples", json!(["x"])),
        ("readOnly", json!(true)),
        ("writeOnly", json!(true)),
        ("deprecated", json!(true)),
        ("contentEncoding", json!("base64")),
        ("contentMediaType", json!("application/json")),
        ("contentSchema", json!({"type": "object"})),
        ("format", json!("byte")),
        ("format", json!("of-its-own")),
        ("uniqueItems", json!(false)),
        ("propertyNames", json!({"type": "string"})),
        ("propertyNames", json!(true)),
        ("minContains", json!(3)),
        ("then", json!({"type": "null"})),
        ("x-of-its-own", json!({"type": "null"})),
        ("x-guidance", json!({"lenient": true, "whitespace_flexible": true})),
        ("unevaluatedProperties", json!(true)),
        ("unevaluatedItems", json!(true)),
    ] {
        let schema = json!({"anyOf": [{"const": 1}, {"const": "a"}, {"const": {"a": []}}], keyword: value});
        check(&model, schema, &[json!(1), json!("a"), json!({"a": []})], &[json!(2), json!("b"), json!({})]);
    }
}

#[test]
fn references_find_what_they_name() {
    let model = model();
    let definitions = json!({
        "A/B": {"const": 1}, "A~B": {"const": 2}, "A B": {"const": 3}, "A%B": {"const": 4}, "é": {"const": 5},
        "named": {"$anchor": "here", "const": 6},
        "whole": {"$id": "https://example.com/other/whole", "$defs": {"in": {"const": 7}}, "const": 8},
        "list": {"enum": [9], "prefixItems": [{"const": 9}]},
    });
    for (reference, value) in [
        ("#/$defs/A~1B", 1),
        ("#/$defs/A~0B", 2),
        ("#/$defs/A%20B", 3),
        ("#/$defs/A%25B", 4),
        ("#/$defs/%C3%A9", 5),
        ("#here", 6),
        ("https://example.com/root#here", 6),
        ("other/whole", 8),
        ("other/whole#/$defs/in", 7),
        ("/other/whole#/$defs/in", 7),
        ("#/$defs/list/prefixItems/0", 9),
    ] {
        let schema = json!({"$id": "https://example.com/root", "$ref": reference, "$defs": definitions});
        check(&model, schema, &[json!(value)], &[json!(0), json!(value + 1)]);
    }
    let tree = json!({"type": "array", "items": {"$ref": "#"}, "maxItems": 2});
    check(&model, tree, &[json!([]), json!([[], [[]]])], &[json!([1]), json!([[], [], []])]);
    for (reference, problem) in [
        ("#/$defs/none", "there is nothing"),
        ("#none", "no $anchor"),
        ("https://example.com/else", "nothing is fetched"),
        ("#/%ZZ", "percent"),
    ] {
        let refused = refusal(&model, json!({"properties": {"a": {"$ref": reference}}}));
        assert!(refused.contains("$ref of #/properties/a") && refused.contains(problem), "{refused}");
    }
}

#[test]
fn integers_beyond_doubles_are_exact() {
    let model = model();
    let large = 9_007_199_254_740_993_i64;
    let range = json!({"type": "integer", "minimum": large, "maximum": large + 2});
    let (within, outside) = ([large, large + 1, large + 2], [large - 1, large + 3]);
    type Wrap = fn(i64) -> Value;
    let wrapped: [(Value, Wrap); 6] = [
        (range.clone(), |n| json!(n)),
        (
            json!({"type": "object", "properties": {"a": range, "b": {"type": "null"}}, "required": ["a"],
                "additionalProperties": false}),
            |n| json!({"a": n, "b": null}),
        ),
        (json!({"type": "array", "items": range, "minItems": 1, "maxItems": 2}), |n| json!([n, n])),
        (json!({"type": "array", "prefixItems": [{"type": "null"}, range], "items": false}), |n| {
            json!([null, n])
        }),
        (json!({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}], "$defs": {"n": range}}), |n| json!(n)),
        (json!({"additionalProperties": range, "type": "object"}), |n| json!({"a": n, "b": n})),
    ];
    for (schema, wrap) in wrapped {
        check(&model, schema, &within.map(wrap), &outside.map(wrap));
    }
    for (schema, follow, others) in [
        (json!({"const": large}), vec![large], vec![large - 1, large + 1]),
        (json!({"enum": [1, large, "a"]}), vec![1, large], vec![large - 1, 2]),
        (json!({"type": "integer", "exclusiveMinimum": large}), vec![large + 1], vec![large, 5]),
        (json!({"type": "integer", "minimum": 0, "maximum": i64::MAX}), vec![0, i64::MAX], vec![-1]),
        (json!({"type": "integer", "minimum": i64::MIN}), vec![i64::MIN, 0], vec![]),
        (
            json!({"type": ["integer", "null"], "maximum": -large}),
            vec![-large, -large - 1],
            vec![-large + 1, 0],
        ),
    ] {
        let values = |numbers: Vec<i64>| numbers.into_iter().map(Value::from).collect::<Vec<_>>();
        check(&model, schema, &values(follow), &values(others));
    }
    let unsigned = json!({"type": "integer", "minimum": 0, "maximum": u64::MAX});
    check(&model, unsigned, &[json!(0), json!(u64::MAX)], &[json!(-1)]);
    let refused = refusal(&model, json!({"type": "number", "minimum": large}));
    assert!(refused.contains("minimum"), "{refused}");
}

#[test]
fn the_names_of_properties_are_held() {
    let model = model();
    let names = json!({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"}});
    check(&model, names, &[json!({}), json!({"a": null, "b": null})], &[json!({"c": null}), json!({"a": 1})]);
    let pattern = json!({"type": "object", "propertyNames": {"pattern": "^x_"}, "additionalProperties": {"type": "null"}});
    check(&model, pattern, &[json!({}), json!({"x_1": null})], &[json!({"a": null}), json!({"x_1": 1})]);
    let short = json!({"type": "object", "propertyNames": {"minLength": 1, "maxLength": 2}});
    check(&model, short, &[json!({"ab": 1})], &[json!({"": 1}), json!({"abc": 1})]);
    check(&model, json!({"type": "object", "propertyNames": false}), &[json!({})], &[json!({"a": 1})]);
    let declared = json!({"type": "object", "properties": {"grade": {"enum": ["B", 1]}}, "required": ["grade"],
        "patternProperties": {"^grade$": {"type": "string"}}, "additionalProperties": false});
    check(&model, declared, &[json!({"grade": "B"})], &[json!({"grade": 1}), json!({})]);
    let every = json!({"type": "object", "patternProperties": {"": {"type": "null"}}});
    check(&model, every, &[json!({}), json!({"a": null})], &[json!({"a": 1})]);
    let refused = refusal(&model, json!({"propertyNames": {"not": {"const": "a"}, "format": "email"}}));
    assert!(refused.starts_with("propertyNames"), "{refused}");
}

#[test]
fn the_number_of_properties_is_held() {
    let model = model();
    let two = json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}},
        "minProperties": 1, "maxProperties": 2, "additionalProperties": false});
    let follow = [json!({"a": null}), json!({"a": null, "c": null})];
    check(&model, two, &follow, &[json!({}), json!({"a": null, "b": null, "c": null})]);
    let open = json!({"type": "object", "properties": {"a": {"type": "null"}}, "minProperties": 2});
    check(
        &model,
        open,
        &[json!({"a": null, "x": 1}), json!({"x": 1, "y": 1})],
        &[json!({"a": null}), json!({"x": 1})],
    );
}

#[test]
fn what_one_property_asks_of_others_is_held() {
    let model = model();
    let properties = json!({"a": {"type": "null"}, "b": {"type": "null"}});
    for (keyword, value) in [
        ("dependentRequired", json!({"a": ["b"]})),
        ("dependencies", json!({"a": ["b"]})),
        ("dependentSchemas", json!({"a": {"required": ["b"]}})),
        ("if", json!({"required": ["a"]})),
    ] {
        let schema = json!({"type": "object", "properties": properties, "additionalProperties": false, keyword: value,
            "then": {"required": ["b"]}});
        let follow = [json!({}), json!({"b": null}), json!({"a": null, "b": null})];
        check(&model, schema, &follow, &[json!({"a": null})]);
    }
    let kinds = json!({"type": "object", "properties": {"kind": {"enum": ["x", "y"]}, "n": {"type": "null"}},
        "required": ["kind"], "additionalProperties": false,
        "if": {"properties": {"kind": {"const": "x"}}}, "then": {"required": ["n"]}, "else": {"properties": {"n": false}}});
    let follow = [json!({"kind": "x", "n": null}), json!({"kind": "y"})];
    check(&model, kinds, &follow, &[json!({"kind": "x"}), json!({"kind": "y", "n": null})]);
}

#[test]
fn exactly_one_of_several_schemas_is_held() {
    let model = model();
    let pet = |kind: &str| {
        json!({"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"],
        "additionalProperties": false})
    };
    let union = json!({"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "discriminator": {"propertyName": "kind"}, "$defs": {"cat": pet("cat"), "dog": pet("dog")}});
    check(
        &model,
        union,
        &[json!({"kind": "cat"}), json!({"kind": "dog"})],
        &[json!({"kind": "cow"}), json!({})],
    );
    let either = json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
        "additionalProperties": false, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]});
    check(
        &model,
        either,
        &[json!({"a": null}), json!({"b": null})],
        &[json!({}), json!({"a": null, "b": null})],
    );
    let overlapping =
        json!({"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}]});
    assert!(refusal(&model, overlapping).starts_with("oneOf"));
}

#[test]
fn what_a_schema_denies_is_held() {
    let model = model();
    check(
        &model,
        json!({"not": {"type": ["string", "null"]}}),
        &[json!(1), json!([])],
        &[json!("a"), json!(null)],
    );
    check(
        &model,
        json!({"not": {"enum": ["", "ab", 2]}}),
        &[json!("a"), json!("abc"), json!(3)],
        &[json!("ab"), json!(2), json!("")],
    );
    check(&model, json!({"type": "object", "not": {"required": ["a"]}}), &[json!({})], &[json!({"a": 1})]);
    check(&model, json!({"type": "integer", "not": {"minimum": 3}}), &[json!(2)], &[json!(3)]);
    assert!(refusal(&model, json!({"not": {"pattern": "a"}})).starts_with("not"));
}

#[test]
fn lists_are_held() {
    let model = model();
    let tuple = json!({"type": "array", "items": [{"const": 1}], "additionalItems": {"const": 2}});
    check(&model, tuple, &[json!([]), json!([1]), json!([1, 2, 2])], &[json!([2]), json!([1, 1])]);
    let set = json!({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": true, "minItems": 1});
    check(
        &model,
        set,
        &[json!(["b"]), json!(["a", "b"]), json!(["b", "a"])],
        &[json!([]), json!(["a", "a"]), json!(["c"])],
    );
    check(&model, json!({"type": "array", "contains": {}}), &[json!([1])], &[json!([])]);
    check(
        &model,
        json!({"type": "array", "contains": {"const": 1}}),
        &[json!([1, 2])],
        &[json!([]), json!([2])],
    );
    let six =
        json!({"type": "array", "items": {"enum": ["a", "b", "c", "d", "e", "f"]}, "uniqueItems": true});
    check(&model, six, &[json!([]), json!(["b", "f"])], &[json!(["a", "a"]), json!(["g"])]);
    let once =
        json!({"type": "array", "contains": {"const": 1}, "maxContains": 1, "items": {"type": "integer"}});
    check(
        &model,
        once,
        &[json!([1]), json!([1, 2, 3])],
        &[json!([]), json!([2]), json!([1, 1]), json!([1, 2, 1])],
    );
    assert!(refusal(&model, json!({"type": "array", "uniqueItems": true})).starts_with("uniqueItems"));
}

#[test]
fn older_drafts_are_read() {
    let model = model();
    let draft_3 = json!({"type": "object", "properties": {"a": {"type": "any", "required": true}}});
    check(&model, draft_3, &[json!({"a": 1})], &[json!({})]);
    let draft_4 =
        json!({"id": "x", "type": "integer", "minimum": 1, "exclusiveMinimum": true, "maximum": 2.0});
    check(&model, draft_4, &[json!(2)], &[json!(1), json!(3)]);
    check(&model, json!({"type": "string", "minLength": 2.0}), &[json!("ab")], &[json!("a")]);
    let beside = json!({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", "definitions": {
        "a": {"$id": "b", "$ref": "#/definitions/c"}, "c": {"const": 1}}});
    check(&model, beside, &[json!(1)], &[json!(2)]);
    let property =
        json!({"properties": {"a": {"id": "x", "$ref": "#/$defs/c"}}, "$defs": {"c": {"const": 1}}});
    check(&model, property, &[json!({"a": 1})], &[json!({"a": 2})]);
    let named = json!({"$ref": "#n", "definitions": {"x": {"$id": "#n", "const": 1}}});
    check(&model, named, &[json!(1)], &[json!(2)]);
}

#[test]
fn a_refusal_names_its_keyword_and_place() {
    let model = model();
    for (schema, named) in [
        (json!({"pattern": "(?=a)"}), "pattern of #/properties/a"),
        (json!({"minLength": -1}), "minLength of #/properties/a"),
        (json!({"minimum": "1"}), "minimum of #/properties/a"),
        (json!({"allOf": 1}), "allOf of #/properties/a"),
        (json!({"maxContains": 1, "contains": {"pattern": "a"}}), "maxContains of #/properties/a"),
        (json!({"$dynamicRef": "#b"}), "$dynamicRef of #/properties/a"),
    ] {
        let refused = refusal(&model, json!({"properties": {"a": schema}}));
        assert!(refused.starts_with(named), "{refused}");
    }
}

#[test]
fn a_schema_that_grows_or_turns_in_circles_is_refused_soon() {
    let model = model();
    let mut deep = json!({"type": "null"});
    for _ in 0..9 {
        deep = json!({"oneOf": [{"required": ["a"], "items": deep}, {"required": ["b"], "items": deep}]});
    }
    assert!(model.schemas().json(deep).is_err());
    let names: serde_json::Map<String, Value> =
        (0..6).map(|i| (format!("p{i}"), json!({"type": "null"}))).collect();
    let mut counted = json!({"type": "null"});
    for _ in 0..5 {
        let mut properties = names.clone();
        properties.insert("p0".into(), counted);
        counted = json!({"type": "object", "properties": properties, "minProperties": 2, "maxProperties": 3});
    }
    assert!(refusal(&model, counted).contains("too large"));
    let circle = json!({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {
        "a": {"oneOf": [{"$ref": "#/$defs/b"}, {"type": "null"}]}, "b": {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "boolean"}]}}});
    assert!(model.schemas().json(circle).is_err());
    let itself = json!({"not": {"$ref": "#"}});
    assert!(model.schemas().json(itself).is_err());
    let branches: Vec<Value> = (0..900).map(|i| json!({"type": "string", "minLength": i})).collect();
    assert!(model.schemas().json(json!({"oneOf": branches})).is_err());
    let chain: serde_json::Map<String, Value> = (0..1500)
        .map(|i| (i.to_string(), json!({"oneOf": [{"$ref": format!("#/$defs/{}", i + 1)}, false]})))
        .collect();
    let mut chain = json!({"$ref": "#/$defs/0", "$defs": chain});
    chain["$defs"]["1500"] = json!({"const": 9_007_199_254_740_993_u64});
    assert!(model.schemas().json(chain).is_err());
}
