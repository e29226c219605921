//! Text to ids and back, and conversations.

use bitnet_model::{ChatTemplate, Message, TemplateInput, Tokenizer};
use proptest::prelude::*;

use crate::support::{FOLDERS, GGUFS, GROUPED_FOLDERS, GROUPED_GGUFS, HYBRIDS, golden_text, open};

fn tokenizer(path: &str) -> Tokenizer {
    open(path).tokenizer.unwrap()
}

fn ids(json: &str) -> Vec<u32> {
    serde_json::from_str(json).unwrap()
}

const MIXED: [&str; 9] = [
    "In 2024 there were 1234567 of them, 3.14159 each.",
    "I'm sure they'll've said we'd go; DON'T, CAN'T, it'S",
    "你好，世界。これは日本語です。한국어도",
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 and 🙂🙃",
    "tabs\t\tand\t spaces    here ",
    "\n\n\nlines\r\n\r\n  \n \t\n end\n",
    "   leading, trailing   ",
    "é as e\u{301}, ﬁ ligature, ½, Ω, \u{0}\u{7f}",
    "",
];

#[test]
fn texts_encode_to_the_golden_ids() {
    for folder in FOLDERS {
        let tokenizer = tokenizer(folder);
        for text in ["text_0", "text_1"] {
            let expected = ids(&golden_text(folder, &format!("{text}_ids")));
            let text = golden_text(folder, text);
            assert_eq!(tokenizer.encode(&text, true).unwrap(), expected, "{folder}");
            assert_eq!(tokenizer.encode(&text, false).unwrap(), expected[1..], "{folder}");
            assert_eq!(tokenizer.decode(&expected, true).unwrap(), text, "{folder}");
        }
    }
}

#[test]
fn texts_of_grouped_models_encode_to_the_golden_ids() {
    for path in GROUPED_FOLDERS.into_iter().chain(GROUPED_GGUFS).chain(HYBRIDS) {
        let (tokenizer, folder) = (tokenizer(path), path.split('/').next().unwrap());
        assert_eq!(tokenizer.prefix().len(), usize::from(folder.starts_with("minicpm")), "{path}");
        for text in ["text_0", "text_1"] {
            let expected = ids(&golden_text(folder, &format!("{text}_ids")));
            let text = golden_text(folder, text);
            assert_eq!(tokenizer.encode(&text, true).unwrap(), expected, "{path}");
            assert_eq!(tokenizer.decode(&expected, true).unwrap(), text, "{path}");
        }
    }
    // Qwen2 splits digits singly, after normalising text to NFC.
    let (json, gguf) = (tokenizer("qwen3-unpacked"), tokenizer("qwen3-unpacked/model-PQ2_0.gguf"));
    for text in MIXED.into_iter().chain(["<|im_start|>user\nhi<|im_end|>"]) {
        assert_eq!(json.encode(text, true).unwrap(), gguf.encode(text, true).unwrap(), "{text:?}");
    }
    assert_eq!(json.encode("e\u{301}", false).unwrap(), json.encode("\u{e9}", false).unwrap());
    // Qwen 3.5 keeps combining marks in their words.
    let (json, gguf) = (tokenizer("qwen35-ternary"), tokenizer("qwen35-ternary/model-PQ2_0.gguf"));
    for text in MIXED.into_iter().chain(["q\u{301}r नमस्ते", "<|im_start|>user\nhi<|im_end|>"]) {
        assert_eq!(json.encode(text, true).unwrap(), gguf.encode(text, true).unwrap(), "{text:?}");
    }
}

/// Qwen3's template without tools: it omits the thoughts of earlier answers, and opens an answer with empty thoughts if
/// thinking is off.
const QWEN3: &str = r#"{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {{- raise_exception('no tools here') }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"#;

#[test]
fn a_template_with_the_choice_gets_the_choice_to_think() {
    let chat = ChatTemplate::new(QWEN3, "", "<|im_end|>").unwrap();
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", "2 + 2?"),
        Message::new("assistant", "<think>\nEasy.\n</think>\n\n4"),
        Message::new("user", "And 3?"),
    ];
    let before = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n\
                  <|im_start|>assistant\n4<|im_end|>\n<|im_start|>user\nAnd 3?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(chat.render(&messages, true).unwrap(), before);
    let thinking = |on: bool| {
        let variables = vec![("enable_thinking".to_owned(), on.to_string())];
        let input = TemplateInput { variables, ..TemplateInput::default() };
        chat.render_with(&messages, true, &input).unwrap()
    };
    assert_eq!(thinking(true), before);
    assert_eq!(thinking(false), format!("{before}<think>\n\n</think>\n\n"));
    let asks = |chat: &ChatTemplate| chat.asks_for("enable_thinking");
    assert!(asks(&chat) && !asks(&open("qwen3-yarn/model-PQ2_0.gguf").chat.unwrap()));
    // The thoughts of an unfinished answer stay.
    let unfinished = chat.render(&messages[..3], false).unwrap();
    assert!(
        unfinished.ends_with("<|im_start|>assistant\n<think>\nEasy.\n</think>\n\n4<|im_end|>\n"),
        "{unfinished}"
    );
}

#[test]
fn gguf_vocabulary_encodes_as_tokenizer_json() {
    for path in GGUFS {
        let (json, gguf) = (tokenizer(path.split_once('/').unwrap().0), tokenizer(path));
        assert_eq!(json.vocab_size(), gguf.vocab_size());
        for text in MIXED.into_iter().chain(["<|begin_of_text|>hi<|eot_id|> there"]) {
            for special in [false, true] {
                let expected = json.encode(text, special).unwrap();
                assert_eq!(gguf.encode(text, special).unwrap(), expected, "{path} {text:?}");
                assert_eq!(gguf.decode(&expected, false).unwrap(), json.decode(&expected, false).unwrap());
            }
        }
    }
}

#[test]
fn decoding_gives_the_encoded_text_back() {
    let tokenizer = tokenizer("bitnet-packed");
    for text in MIXED {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text, false).unwrap(), false).unwrap(), text);
    }
}

#[test]
fn control_tokens_are_left_out_on_request() {
    let tokenizer = tokenizer("bitnet-packed");
    let ids = tokenizer.encode("<|begin_of_text|>hi<|eot_id|>", false).unwrap();
    assert_eq!((ids[0], *ids.last().unwrap()), (509, 511));
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "hi");
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "<|begin_of_text|>hi<|eot_id|>");
    assert_eq!(tokenizer.token_id("<|eot_id|>"), Some(511));
    assert_eq!(tokenizer.token_bytes(511), Some(&b"<|eot_id|>"[..]));
}

#[test]
fn an_id_outside_the_vocabulary_is_an_error() {
    let error = tokenizer("bitnet-packed").decode(&[512], false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "token id 512 is not in the vocabulary of 512 (token ids): use ids below 512"
    );
}

#[test]
fn a_stream_holds_a_character_back_until_it_is_whole() {
    let tokenizer = tokenizer("bitnet-packed");
    let ids = tokenizer.encode("a🙂b", false).unwrap();
    assert!(ids.len() > 4, "the emoji is several tokens");
    let mut stream = tokenizer.stream();
    let parts: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
    assert_eq!(parts[0], "a");
    assert!(parts[1..ids.len() - 2].iter().all(String::is_empty));
    assert_eq!(parts[ids.len() - 2..], ["🙂", "b"]);
    assert_eq!(stream.finish(), "");

    let mut cut = tokenizer.stream();
    let text: String = ids[..3].iter().map(|&id| cut.push(id)).collect();
    assert_eq!((text.as_str(), cut.finish().as_str()), ("a", "\u{fffd}"));
    assert_eq!(cut.finish(), "");
}

#[test]
fn chats_render_as_the_golden_ones() {
    for path in FOLDERS.into_iter().chain(GGUFS).chain(GROUPED_FOLDERS).chain(GROUPED_GGUFS).chain(HYBRIDS) {
        let folder = path.split('/').next().unwrap();
        let chat: Vec<serde_json::Value> = serde_json::from_str(&golden_text(folder, "chat")).unwrap();
        let messages: Vec<Message> = chat
            .iter()
            .map(|m| Message::new(m["role"].as_str().unwrap(), m["content"].as_str().unwrap()))
            .collect();
        let rendered = open(path).chat.unwrap().render(&messages, true).unwrap();
        assert_eq!(rendered, golden_text(folder, "chat_rendered"), "{path}");
    }
}

/// Features that published templates use; the expected text is from jinja2 with the settings of transformers.
#[test]
fn templates_render_as_jinja2_renders_them() {
    let template = r##"{%- set ns = namespace(system='', turns=0) %}
{% for message in messages %}
    {% if message['role'] == 'system' %}
        {%- set ns.system = message.content.strip() %}
    {% endif %}
{% endfor %}
{% if messages[0]['role'] == 'system' %}
    {%- set loop_messages = messages[1:] %}
{% else %}
    {%- set loop_messages = messages %}
{% endif %}
{{- bos_token }}
{% if ns.system is defined and ns.system %}[SYS]{{ ns.system | upper }}[/SYS]
{% endif %}
{% for message in loop_messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {%- set ns.turns = ns.turns + 1 %}
    {% if message.role == 'assistant' and '</think>' in message.content %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
    {% else %}
        {%- set content = message.content | trim %}
    {% endif %}
<|{{ message.role.title() }}|>{{ content }}{{ eos_token if not loop.last else '' }}
    {% if message.content.startswith('Who') and tools is none %}
(question {{ loop.index }} of {{ loop_messages | length }}: {{ [message.content, loop.index, none, true, 1.5] | tojson }})
    {% endif %}
{% endfor %}
{%- if add_generation_prompt %}
<|Assistant|>
{%- endif %} turns={{ ns.turns }}"##;
    let messages = [
        Message::new("system", " Be brief. "),
        Message::new("user", "Who's <there> \"é\"?\n"),
        Message::new("assistant", "<think>hm</think>\n\nMe."),
        Message::new("user", " ok "),
    ];
    let chat = ChatTemplate::new(template, "<s>", "</s>").unwrap();
    let expected = "<s>\n[SYS]BE BRIEF.[/SYS]\n<|User|>Who's <there> \"é\"?</s>\n(question 1 of 3: [\"Who's <there> \\\"é\\\"?\\n\", 1, null, true, 1.5])\n<|Assistant|>Me.</s>\n<|User|>ok\n<|Assistant|> turns=3";
    assert_eq!(chat.render(&messages, true).unwrap(), expected);

    let twice = [messages[1].clone(), messages[1].clone()];
    let error = chat.render(&twice, true).unwrap_err().to_string();
    assert!(error.contains("Roles must alternate"), "{error}");
}

#[test]
fn hostile_templates_end_with_one_error() {
    let messages = [Message::new("user", "hi")];
    for (template, problem) in [
        ("{% for a in range(100000) %}{{ a + a + a + a }}{% endfor %}", "too many steps"),
        ("{% for a in range(100000) %}{{ 'x' * 10000 }}{% endfor %}", "too much text"),
        ("{% set n = 1000000000000 %}{{ 'x' * n }}", "too much text"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{{ raise_exception('no\nway') }}", "no\\nway"),
        ("{{ messages[0].content.absent() }}", "absent"),
        ("{% include 'other' %}", "other"),
    ] {
        let chat = ChatTemplate::new(template, "", "").unwrap();
        let text = chat.render(&messages, true).unwrap_err().to_string();
        assert!(text.contains(problem) && text.lines().count() == 1, "{template}: {text}");
    }
    // Chains that nest once for each link, up to the maximum size of a template.
    for link in ["1 + ", "-", "1 if 1 else ", "not ", "a.", "[1,"] {
        let chain = format!("{{{{ {}1 }}}}", link.repeat(60_000 / link.len()));
        let _either = ChatTemplate::new(&chain, "", "").and_then(|c| c.render(&messages, true));
    }
    let long = format!("{{{{ {}1 }}}}", "1 + ".repeat(2_000));
    assert!(ChatTemplate::new(&long, "", "").unwrap_err().to_string().contains("too long"));
    let elif = format!("{{% if 0 %}}{}{{% endif %}}", "{%elif 0%}".repeat(6_000));
    assert_eq!(ChatTemplate::new(&elif, "", "").unwrap().render(&messages, true).unwrap(), "");
    let deep = format!("{{{{ {} }}}}", "(".repeat(100_000));
    for template in ["{% if", "{{ (((", deep.as_str()] {
        let error = ChatTemplate::new(template, "", "").unwrap_err();
        assert_eq!(error.to_string().lines().count(), 1);
    }
}

#[test]
fn a_small_stack_is_enough_for_any_template() {
    let tag = |inside: String| format!("{{{{ {inside} }}}}");
    let around = |n: usize, open: &str, close: &str| tag(open.repeat(n) + "1" + &close.repeat(n));
    let mut templates = vec![
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(9) }}{{ m(200) }}".to_owned(),
        "{% macro m(n) %}{% call m(n) %}{{ caller() }}{% endcall %}{% endmacro %}{{ m(1) }}".to_owned(),
        "{% set n = namespace(x=[]) %}{% for i in range(240) %}{% set n.x = [n.x] %}{% endfor %}\
         {{ n.x }}{{ n.x | tojson }}{{ n.x == n.x }}{{ [n.x] | map('string') | list | length }}"
            .to_owned(),
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned(),
    ];
    for n in [40, 90, 480] {
        templates.extend([
            around(n, "(", ")"),
            around(n, "[", "]"),
            around(n, "not ", ""),
            around(n, "-", ""),
        ]);
        templates.extend([around(n, "", "|string"), around(n, "1 + ", ""), around(n, "{1: ", " }")]);
        templates.push("{% if 1 %}".repeat(n) + &"{% endif %}".repeat(n));
        templates.push("{% for a in [1] %}".repeat(n) + &"{% endfor %}".repeat(n));
        templates.push("{% filter upper %}".repeat(n) + &"{% endfilter %}".repeat(n));
    }
    let render = move || {
        let messages = [Message::new("user", "hi")];
        let render = |template: &&String| {
            ChatTemplate::new(template, "", "").is_ok_and(|chat| chat.render(&messages, true).is_ok())
        };
        templates.iter().filter(render).count()
    };
    // The templates are also dropped there.
    let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(render);
    let rendered = thread.unwrap().join().unwrap();
    assert!(rendered >= 20, "{rendered} were rendered; the others nest too deeply for any stack");
}

proptest! {
    #[test]
    fn any_text_survives_encoding(text: String) {
        thread_local!(static TOKENIZER: Tokenizer = tokenizer("llama-bitlinear/model-I2_S.gguf"));
        TOKENIZER.with(|tokenizer| {
            let ids = tokenizer.encode(&text, false).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
            Ok(())
        })?;
    }

    #[test]
    fn a_stream_of_any_ids_is_their_decoded_text(ids in prop::collection::vec(0u32..512, 0..60)) {
        thread_local!(static TOKENIZER: Tokenizer = tokenizer("bitnet-packed"));
        TOKENIZER.with(|tokenizer| {
            let mut stream = tokenizer.stream();
            let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
            text += &stream.finish();
            prop_assert_eq!(text, tokenizer.decode(&ids, true).unwrap());
            Ok(())
        })?;
    }
}
