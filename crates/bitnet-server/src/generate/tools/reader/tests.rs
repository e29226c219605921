//! Readers of each form of calls.

use bitnet::model::Literals;
use serde_json::json;

use super::*;
use crate::generate::tools::form::taught;

fn reader(form: CallForm) -> Reader {
    let schema =
        json!({"properties": {"a": {"type": "integer"}, "b": {"type": "array"}, "t": {"type": "string"}}});
    let tool = |name: &str| Tool { name: name.into(), arguments: schema.clone() };
    Reader::new(Some(Calls { form: Arc::new(form), tools: [tool("add"), tool("now")].into() }))
}

fn bare() -> CallForm {
    let syntax = CallSyntax::Json { name: "name".into(), arguments: "parameters".into() };
    CallForm { syntax, open: String::new(), close: String::new(), parallel: false, ..taught() }
}

fn array() -> CallForm {
    let syntax = CallSyntax::Array { name: "name".into(), arguments: "arguments".into() };
    CallForm { syntax, ..taught() }
}

fn xml() -> CallForm {
    CallForm { syntax: CallSyntax::Xml { literals: Literals::Json }, ..taught() }
}

/// The parts of an answer, with neighbouring parts of one kind put together.
fn parts(mut reader: Reader, pieces: impl IntoIterator<Item = impl AsRef<str>>) -> Vec<AnswerPart> {
    let mut all: Vec<AnswerPart> = Vec::new();
    let mut add = |parts: Vec<AnswerPart>| {
        for part in parts {
            match (all.last_mut(), part) {
                (Some(AnswerPart::Text(text)), AnswerPart::Text(more)) => text.push_str(&more),
                (Some(AnswerPart::Arguments(a, text)), AnswerPart::Arguments(b, more)) if *a == b => {
                    text.push_str(&more);
                }
                (_, part) => all.push(part),
            }
        }
    };
    for piece in pieces {
        add(reader.push(piece.as_ref()));
    }
    add(reader.finish(false));
    all
}

fn text(text: &str) -> AnswerPart {
    AnswerPart::Text(text.into())
}

fn call(index: usize, name: &str, arguments: &str) -> [AnswerPart; 2] {
    [AnswerPart::Call(index, name.into()), AnswerPart::Arguments(index, arguments.into())]
}

const TWO: &str = "I add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"}\\\"{\", \"b\": [{}]}}\n\
                   </tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n";

#[test]
fn calls_are_the_same_however_the_text_is_cut() {
    let mut want = vec![text("I add.")];
    want.extend(call(0, "add", "{\"a\": \"}\\\"{\", \"b\": [{}]}"));
    want.extend(call(1, "now", "{}"));
    assert_eq!(parts(reader(taught()), [TWO]), want);
    assert_eq!(parts(reader(taught()), TWO.chars().map(String::from)), want);
    for at in 0..TWO.len() {
        assert_eq!(parts(reader(taught()), [&TWO[..at], &TWO[at..]]), want, "{at}");
    }
}

#[test]
fn a_whole_answer_is_a_call_where_the_form_has_no_tags() {
    let answer = "\n{\"name\": \"add\", \"parameters\": {\"a\": 1}}";
    assert_eq!(parts(reader(bare()), [answer]), call(0, "add", "{\"a\": 1}"));
    assert_eq!(parts(reader(bare()), answer.chars().map(String::from)), call(0, "add", "{\"a\": 1}"));
    let later = format!("Here: {answer}");
    assert_eq!(parts(reader(bare()), [&later]), [text(&later)], "only at the beginning");
}

#[test]
fn what_is_no_call_is_text() {
    for other in [
        "no call",
        "a < b <tool_cal",
        "<tool_call>",
        "<tool_call>\nhello</tool_call>",
        "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"add\", \"arguments\": [1]}\n</tool_call>",
        "<tool_call>\n{\"arguments\": {}, \"name\": \"add\"}\n</tool_call>",
        "<tool_call>\n{\"name\": \"add\", \"argu",
        "{\"name\": \"add\", \"parameters\": {}}",
        "trailing space \n ",
    ] {
        assert_eq!(parts(reader(taught()), [other]), [text(other)], "{other}");
        assert_eq!(parts(reader(taught()), other.chars().map(String::from)), [text(other)], "{other}");
    }
    for other in ["{\"name\": \"other\", \"parameters\": {}}", "{\"a\": 1}", "{", " {\"nam", TWO] {
        assert_eq!(parts(reader(bare()), [other]), [text(other)], "{other}");
    }
    assert_eq!(parts(Reader::new(None), [TWO]), [text(TWO)], "none was offered");
}

#[test]
fn a_call_that_is_cut_off_keeps_the_arguments_that_came() {
    let cut = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1";
    assert_eq!(parts(reader(taught()), [cut]), call(0, "add", "{\"a\": 1"));
    assert_eq!(parts(reader(taught()), [&format!("{cut}}}}}\n</tool")]), call(0, "add", "{\"a\": 1}"));
}

/// The parts of an answer that is cut off after `text`.
fn cut(form: CallForm, text: &str) -> Vec<AnswerPart> {
    let mut reader = reader(form);
    let mut parts = reader.push(text);
    parts.extend(reader.finish(true));
    parts
}

#[test]
fn an_answer_that_is_cut_off_in_a_call_shows_no_piece_of_its_markup() {
    let calls = [(taught(), TWO), (array(), LIST), (xml(), TAGS)];
    for (form, answer) in calls {
        for at in 0..answer.len() {
            for part in cut(form.clone(), &answer[..at]) {
                let AnswerPart::Text(text) = part else { continue };
                assert!("I add.".starts_with(text.trim()), "{text:?} after {at} bytes of {answer}");
            }
        }
    }
    assert_eq!(cut(xml(), "a <tool"), [text("a")]);
    assert_eq!(cut(taught(), "a < b"), [text("a < b")]);
    assert_eq!(cut(bare(), "{\"name\": \"ad"), []);
    assert_eq!(cut(bare(), "{ a"), [text("{ a")]);
}

const LIST: &str = "I add.\n<tool_call>\n[\n  {\"name\": \"add\", \"arguments\": {\"a\": 1}},\n  {\"name\": \"now\", \
                    \"arguments\": {}}\n]\n</tool_call>";

#[test]
fn an_array_holds_several_calls() {
    let mut want = vec![text("I add.")];
    want.extend(call(0, "add", "{\"a\": 1}"));
    want.extend(call(1, "now", "{}"));
    assert_eq!(parts(reader(array()), [LIST]), want);
    assert_eq!(parts(reader(array()), LIST.chars().map(String::from)), want);
    let one = "<tool_call>[{\"name\": \"now\", \"arguments\": {}}]</tool_call> and";
    let mut want = call(0, "now", "{}").to_vec();
    want.push(text(" and"));
    assert_eq!(parts(reader(array()), [one]), want);
}

const TAGS: &str = "I add.\n\n<tool_call>\n<function=add>\n<parameter=a>\n17\n</parameter>\n<parameter=t>\n a\n\
                    \"b\"</function>\n\n</parameter>\n<parameter=b>\n[1, {}]\n</parameter>\n</function>\n</tool_call>\n\
                    <tool_call>\n<function=now>\n</function>\n</tool_call>";

#[test]
fn parameters_in_tags_become_json_however_the_text_is_cut() {
    let mut want = vec![text("I add.")];
    want.extend(call(0, "add", "{\"a\": 17, \"t\": \" a\\n\\\"b\\\"</function>\\n\", \"b\": [1, {}]}"));
    want.extend(call(1, "now", "{}"));
    assert_eq!(parts(reader(xml()), [TAGS]), want);
    assert_eq!(parts(reader(xml()), TAGS.chars().map(String::from)), want);
    for at in 0..TAGS.len() {
        assert_eq!(parts(reader(xml()), [&TAGS[..at], &TAGS[at..]]), want, "{at}");
    }
}

#[test]
fn a_text_is_passed_on_before_it_ends() {
    let mut reader = reader(xml());
    reader.push("<tool_call>\n<function=add>\n<parameter=t>\nHello");
    assert_eq!(reader.push(" wor\n</par"), [AnswerPart::Arguments(0, " wor".into())]);
    assert_eq!(reader.push("ts"), [AnswerPart::Arguments(0, "\\n</parts".into())]);
}

#[test]
fn calls_in_tags_that_lack_a_tag_are_read() {
    let one = |inner: &str| parts(reader(xml()), [inner]);
    let want = call(0, "add", "{\"t\": \"x\"}").to_vec();
    assert_eq!(one("<function=add>\n<parameter=t>\nx\n</parameter>\n</function>"), want);
    assert_eq!(one("<tool_call>\n<function=add>\n<parameter=t>\nx\n</parameter>\n</function>"), want);
    assert_eq!(one("<tool_call><function=add><parameter=t>x</parameter></function></tool_call>"), want);
    assert_eq!(one("<tool_call>\n<function=add>\n<parameter=t>\nx"), want, "ended in a value");
    let empty = call(0, "add", "{\"t\": \"\"}").to_vec();
    assert_eq!(one("<tool_call>\n<function=add>\n<parameter=t>\n\n</parameter>\n</function>"), empty);
    assert_eq!(one("<tool_call>\n<function=add>\n<parameter=t>\n</parameter>\n</function>"), empty);
    for other in
        ["<tool_call>\n<function=other>\n</function>\n</tool_call>", "<function=", "<function=other>", "a <f"]
    {
        assert_eq!(one(other), [text(other)]);
    }
}
