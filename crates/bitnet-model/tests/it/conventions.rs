//! What the probes find out about templates: `fixtures/thinking` has one for each property.

use bitnet_model::{
    CallSyntax, ChatTemplate, Effort, Literals, Memory, Message, ModelError, Switch, TemplateInput,
    ThoughtState, Tokenizer, ToolCall,
};

use crate::support::fixture;

fn template(name: &str) -> ChatTemplate {
    let source = std::fs::read_to_string(fixture("thinking/templates").join(name)).unwrap();
    ChatTemplate::new(&source, "<|endoftext|>", "<|im_end|>").unwrap()
}

fn variables(of: Vec<(String, String)>) -> String {
    let texts: Vec<String> = of.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    texts.join(" ")
}

#[test]
fn markers_and_the_space_around_them_are_found() {
    let markers = |name: &str| {
        let conventions = template(name).conventions().clone();
        conventions.thought.map(|t| [t.open, t.lead, t.tail, t.close, t.gap])
    };
    let spaced = ["<think>", "\n", "\n", "</think>", "\n\n"].map(String::from);
    for name in ["xml.jinja", "xml-python.jinja", "json.jinja"] {
        assert_eq!(markers(name), Some(spaced.clone()), "{name}");
    }
    assert_eq!(markers("kept.jinja"), Some(["<think>", "", "", "</think>", "\n"].map(String::from)));
    for name in ["array.jinja", "bare.jinja", "strict.jinja"] {
        assert_eq!(markers(name), None, "{name}");
    }
}

#[test]
fn the_end_of_a_prompt_tells_whether_a_thought_is_open() {
    use ThoughtState::{Absent, Closed, Open};
    let user = [Message::new("user", "Hi")];
    for (name, variable, default, [absent, on, off]) in [
        ("xml.jinja", "enable_thinking", true, [Open, Open, Closed]),
        ("xml-python.jinja", "enable_thinking", false, [Closed, Open, Closed]),
        ("json.jinja", "enable_thinking", true, [Absent, Absent, Closed]),
        ("kept.jinja", "thinking", false, [Closed, Open, Closed]),
    ] {
        let chat = template(name);
        let thought = chat.conventions().thought.clone().unwrap();
        assert_eq!(thought.switch, Some(Switch { variable: variable.into(), default }), "{name}");
        let state = |thinks: Option<bool>| {
            let variables = thinks.map(|thinks| (variable.to_owned(), thinks.to_string()));
            let input =
                TemplateInput { variables: variables.into_iter().collect(), ..TemplateInput::default() };
            thought.state(&chat.render_with(&user, true, &input).unwrap())
        };
        assert_eq!(state(None), absent, "{name}");
        assert_eq!(state(Some(true)), on, "{name}");
        assert_eq!(state(Some(false)), off, "{name}");
    }
}

#[test]
fn memory_of_thoughts_is_found_with_its_variable() {
    for (name, kept, switch) in [
        ("xml.jinja", false, Some(("preserve_thinking", true))),
        ("xml-python.jinja", false, None),
        ("json.jinja", false, None),
        ("kept.jinja", true, Some(("clear_thinking", false))),
    ] {
        let chat = template(name);
        let memory = &chat.conventions().thought.as_ref().unwrap().memory;
        let switch = switch.map(|(variable, keeps)| (variable.to_owned(), keeps));
        assert_eq!(*memory, Memory { kept, switch }, "{name}");
    }
    let keep =
        |name: &str, keep| variables(template(name).conventions().keep_thoughts(keep).into_iter().collect());
    assert_eq!(keep("xml.jinja", true), "preserve_thinking=true");
    assert_eq!(keep("kept.jinja", true), "clear_thinking=false");
    assert_eq!(keep("kept.jinja", false), "clear_thinking=true");
    assert_eq!(keep("json.jinja", true), "");
    let splits = |name: &str| template(name).conventions().thought.as_ref().unwrap().splits_content;
    assert!(splits("xml.jinja") && splits("xml-python.jinja") && !splits("json.jinja"));
}

#[test]
fn every_effort_of_the_apis_becomes_one_that_the_template_accepts() {
    let efforts = |name: &str| {
        let chat = template(name);
        let rendered = |effort: &Effort| {
            let variables = chat.conventions().effort(*effort);
            let input = TemplateInput { variables: variables.clone(), ..TemplateInput::default() };
            let user = [Message::new("user", "Hi")];
            chat.render_with(&user, true, &input).unwrap_or_else(|e| panic!("{name}: {e}"));
            self::variables(variables)
        };
        Effort::ALL.iter().map(rendered).collect::<Vec<_>>()
    };
    assert_eq!(
        efforts("xml.jinja"),
        ["enable_thinking=false", "low", "low", "high", "high", "high", "high"].map(|effort| match effort {
            "enable_thinking=false" => effort.to_owned(),
            level => format!("enable_thinking=true reasoning_effort=\"{level}\""),
        })
    );
    let switched = ["false", "true", "true", "true", "true", "true", "true"];
    assert_eq!(efforts("json.jinja"), switched.map(|on| format!("enable_thinking={on}")));
    // A template that writes any effort down gets each.
    assert_eq!(efforts("kept.jinja")[6], "thinking=true reasoning_effort=\"max\"");
    assert_eq!(efforts("bare.jinja"), [""; 7]);
    let found = template("xml.jinja").conventions().efforts.clone();
    assert_eq!((found.accepted, found.default), (vec![Effort::Low, Effort::High], Some(Effort::High)));
}

#[test]
fn the_form_of_calls_is_found_byte_by_byte() {
    let json = |arguments: &str| CallSyntax::Json { name: "name".into(), arguments: arguments.into() };
    let text = |text: &str| Some(text.to_owned());
    for (name, syntax, [open, close, between, thought], after_text, parallel) in [
        (
            "xml.jinja",
            CallSyntax::Xml { literals: Literals::Json },
            ["<tool_call>\n", "\n</tool_call>", "\n", "\n\n"],
            text("\n\n"),
            true,
        ),
        (
            "xml-python.jinja",
            CallSyntax::Xml { literals: Literals::Python },
            ["<tool_call>\n", "\n</tool_call>", "\n", "\n\n\n"],
            text("\n"),
            true,
        ),
        (
            "json.jinja",
            json("arguments"),
            ["<tool_call>\n", "\n</tool_call>", "\n", "\n\n"],
            text("\n"),
            true,
        ),
        (
            "array.jinja",
            CallSyntax::Array { name: "name".into(), arguments: "arguments".into() },
            ["<tool_call>\n", "\n</tool_call>", "", ""],
            text("\n"),
            true,
        ),
        ("bare.jinja", json("parameters"), ["", "", "", ""], None, false),
    ] {
        let found = template(name).conventions().calls.clone().unwrap_or_else(|| panic!("{name}"));
        assert_eq!(found.syntax, syntax, "{name}");
        let bytes = [&found.open, &found.close, &found.between, &found.after_thought].map(|s| s.as_str());
        assert_eq!(bytes, [open, close, between, thought], "{name}");
        assert_eq!(
            (found.after_text, found.after, found.parallel),
            (after_text, String::new(), parallel),
            "{name}"
        );
    }
    for (name, tools) in
        [("xml.jinja", true), ("bare.jinja", true), ("kept.jinja", false), ("strict.jinja", false)]
    {
        assert_eq!(template(name).conventions().tools, tools, "{name}");
    }
    assert_eq!(template("strict.jinja").conventions().calls, None);
    assert_eq!(template("kept.jinja").conventions().calls, None);
}

#[test]
fn roles_and_their_places_are_found() {
    let roles = |name: &str| template(name).conventions().roles.clone();
    let xml = roles("xml.jinja");
    assert!(
        xml.system
            && !xml.several_systems
            && !xml.later_system
            && !xml.developer
            && xml.parts
            && xml.no_content
    );
    let python = roles("xml-python.jinja");
    assert!(python.several_systems && python.later_system && python.parts);
    let kept = roles("kept.jinja");
    assert!(kept.developer && !kept.parts && !kept.no_content);
    let strict = roles("strict.jinja");
    assert!(strict.system && !strict.several_systems && !strict.later_system);
}

#[test]
fn system_messages_are_merged_or_refused_where_the_template_takes_one() {
    let chat = template("xml.jinja");
    let system = |text: &str| Message::new("system", text);
    let user = Message::new("user", "Hi");
    let merged = chat.render(&[system("A"), Message::new("developer", "B"), user.clone()], true).unwrap();
    assert!(merged.starts_with("<|im_start|>system\nA\n\nB<|im_end|>\n<|im_start|>user\nHi"), "{merged}");
    let error = chat.render(&[system("A"), user.clone(), system("B"), user.clone()], true).unwrap_err();
    assert!(matches!(&error, ModelError::Message { index: 2, .. }), "{error}");
    assert!(error.to_string().starts_with("messages[2]: "), "{error}");
    // A template that has places for them gets them as they are.
    let several =
        template("xml-python.jinja").render(&[system("A"), system("B"), user.clone(), system("C")], false);
    assert_eq!(several.unwrap().matches("<|im_start|>system").count(), 3);
    let own = template("kept.jinja").render(&[Message::new("developer", "A"), user], false).unwrap();
    assert!(own.contains("# From the developer\nA"), "{own}");
}

#[test]
fn a_final_message_is_continued_where_its_text_ends() {
    let user = Message::new("user", "Hi");
    let continued = |name: &str, message: Message| {
        template(name).continue_final_message(&[user.clone(), message], &TemplateInput::default())
    };
    let spoken = |text: &str| Message::new("assistant", text);
    let prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(continued("json.jinja", spoken("So ")).unwrap(), format!("{prompt}So "));
    // The template trims, so that the space at the end goes too.
    assert_eq!(continued("bare.jinja", spoken("So ")).unwrap(), format!("{prompt}So"));
    // Without a text, the thought goes on.
    let thinking = Message { content: None, reasoning: Some("Hm".into()), ..spoken("") };
    let open = continued("kept.jinja", thinking).unwrap();
    assert!(open.ends_with("<think>Hm"), "{open}");
    let thought = template("kept.jinja").conventions().thought.clone().unwrap();
    assert_eq!(thought.state_within(&open), ThoughtState::Open);
    assert_eq!(thought.state_within(&format!("{open}</think>So ")), ThoughtState::Closed);
    for refused in [user.clone(), Message { content: None, ..spoken("") }] {
        let error = continued("json.jinja", refused).unwrap_err();
        assert!(matches!(&error, ModelError::Message { index: 1, .. }), "{error}");
    }
    let lost = ChatTemplate::new("{{ messages[0].content }}", "", "").unwrap();
    let error =
        lost.continue_final_message(&[user.clone(), spoken("x")], &TemplateInput::default()).unwrap_err();
    assert!(matches!(&error, ModelError::Message { index: 1, .. }), "{error}");
}

#[test]
fn thoughts_and_calls_of_a_message_reach_the_template() {
    let call = ToolCall {
        id: "c".into(),
        name: "f".into(),
        arguments: r#"{"n": 12345678901234567890123, "b": true, "x": 1e-7}"#.into(),
    };
    let message = Message {
        content: None,
        reasoning: Some("hm".into()),
        tool_calls: vec![call],
        ..Message::new("assistant", "")
    };
    let messages = [Message::new("user", "Hi"), message];
    let text = template("xml.jinja").render(&messages, false).unwrap();
    let written = "<think>\nhm\n</think>\n\n<tool_call>\n<function=f>\n<parameter=n>\n12345678901234567890123\n</parameter>\n\
                   <parameter=b>\ntrue\n</parameter>\n<parameter=x>\n1e-07\n</parameter>\n</function>\n</tool_call><|im_end|>\n";
    assert!(text.ends_with(written), "{text}");
    let shown =
        ChatTemplate::new("{{ messages[1] | tojson }}", "", "").unwrap().render(&messages, false).unwrap();
    assert!(
        shown.starts_with(r#"{"thinking": "hm", "role": "assistant", "tool_calls": [{"id": "c""#),
        "{shown}"
    );
    assert!(
        shown.ends_with(r#"}}}], "reasoning_content": "hm"}"#) && !shown.contains("content\": null"),
        "{shown}"
    );
}

#[test]
fn a_template_for_tools_is_used_only_with_tools() {
    let chat = ChatTemplate::new("default", "", "").unwrap();
    let chat = chat.with_tools_template(ChatTemplate::new("tools: {{ tools | length }}", "", "").unwrap());
    let input = TemplateInput { tools: vec![r#"{"type": "function"}"#.into()], variables: Vec::new() };
    assert_eq!(chat.render_with(&[], false, &input).unwrap(), "tools: 1");
    assert_eq!(chat.render(&[], false).unwrap(), "default");
    assert!(chat.asks_for("tools"));
}

#[test]
fn markers_are_single_tokens_of_the_fixtures_for_thoughts() {
    for name in ["tokenizer.json", "tokenizer-recurrent.json"] {
        let tokenizer =
            Tokenizer::from_json(&std::fs::read(fixture("thinking").join(name)).unwrap()).unwrap();
        for marker in ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>"] {
            let id = tokenizer.token_id(marker).unwrap();
            assert_eq!(tokenizer.encode(marker, false).unwrap(), [id], "{name}: {marker}");
            assert_eq!(tokenizer.is_special(id), marker.starts_with("<|"), "{name}: {marker}");
        }
        let text = "Größe 中文 <think>\n\n</think>";
        assert_eq!(tokenizer.decode(&tokenizer.encode(text, false).unwrap(), false).unwrap(), text);
    }
}
