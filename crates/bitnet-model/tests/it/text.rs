//! Text to ids and back, and conversations.

use bitnet_model::{ChatTemplate, Message, Tokenizer};
use proptest::prelude::*;

use crate::support::{FOLDERS, GGUFS, golden_text, open};

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
    for path in FOLDERS.into_iter().chain(GGUFS) {
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

/// What templates in the wild do; the expected text is jinja2's own, set up as transformers sets it up.
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
    {% if message.content.startswith('Who') and tools is not defined %}
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
        ("{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}", "fuel"),
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
    // Chains that nest once for each link, to the longest that a template may have.
    for link in ["1 + ", "-", "1 if 1 else ", "not ", "a.", "[1,"] {
        let chain = format!("{{{{ {}1 }}}}", link.repeat(60_000 / link.len()));
        let _either = ChatTemplate::new(&chain, "", "").and_then(|c| c.render(&messages, true));
    }
    let elif = format!("{{% if 0 %}}{}{{% endif %}}", "{%elif 0%}".repeat(6_000));
    assert_eq!(ChatTemplate::new(&elif, "", "").unwrap().render(&messages, true).unwrap(), "");
    let deep = format!("{{{{ {} }}}}", "(".repeat(100_000));
    for template in ["{% if", "{{ (((", deep.as_str()] {
        let error = ChatTemplate::new(template, "", "").unwrap_err();
        assert_eq!(error.to_string().lines().count(), 1);
    }
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
