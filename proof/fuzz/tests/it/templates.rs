//! Templates that use too much time or memory.

use std::time::{Duration, Instant};

use bitnet_fuzz::MEMORY;
use bitnet_model::{ChatTemplate, Message};

use crate::alone;

/// Compiles and renders a template, and returns the peak memory in bytes.
fn memory(template: &str) -> (Result<String, String>, usize) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let start = Instant::now();
    let chat = ChatTemplate::new(template, "", "");
    let text = chat.and_then(|c| c.render(&[Message::new("user", "hi")], true)).map_err(|e| e.to_string());
    // It ends after so many operations, here within a tenth of this time; a slow machine takes longer.
    assert!(start.elapsed() < Duration::from_secs(10), "{template}: took {:?}", start.elapsed());
    (text, MEMORY.peak_usage().saturating_sub(before))
}

#[test]
fn whatever_a_template_multiplies_its_memory_is_bounded() {
    let _alone = alone();
    let grow = |step: &str| {
        format!(
            "{{% set ns = namespace(x='word ', l=[]) %}}{{% for i in range(100000) %}}{step}{{% endfor %}}\
             {{{{ ns.x|length }}}}"
        )
    };
    let double = [
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x * 2 %}",
        "{% set ns.x = [ns.x, ns.x] %}{{ ns.x }}",
        "{% set ns.x = [ns.x, ns.x]|join %}",
        "{% set ns.x = [ns.x, ns.x]|tojson %}",
        "{% set ns.x = ns.x|replace('w', ns.x) %}",
        "{% set ns.x = ns.x.replace('o', ns.x) %}",
        "{% set ns.x = ns.x.join([ns.x, ns.x]) %}",
        "{% set ns.x = '%s%s'|format(ns.x, ns.x) %}",
        "{% set ns.x = '{}{}'.format(ns.x, ns.x) %}",
        "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
        "{% set ns.x %}text that is said again{{ ns.x }}{% endset %}{% set ns.l = ns.l + [ns.x] %}",
        "{% set ns.l = ns.l + ns.l + [1] %}{% set ns.x = ns.l|list %}",
        "{% set ns.l = [ns.l] %}",
        "{% set ns.l = {'a': ns.l} %}",
        "{% set ns.l = namespace(a=ns.l) %}",
        "{% set ns.l = dict(a=ns.l) %}",
        "{% set ns.l = (ns.l,) %}",
        "{% set ns.l = ns.l + [ns.x.split('o')] %}",
        "{% set ns.l = ns.l + [range(100000)|list] %}",
        "{% set ns.l = ns.l + [('a' * 1000)[1:]] %}",
        "{% set ns.l = ns.l + ['a'|indent(10000)] %}",
        "{% set ns.l = [ns.l, ns.l] %}{% if ns.l == [ns.l, ns.l] %}{% endif %}",
        "{% for x in [ns.l] %}{% set ns.l = loop %}{% endfor %}",
        "{% set ns.l = joiner(ns.l) %}",
        "{% set ns.l = cycler(ns.l, ns.l) %}",
        "{% set ns.x = ns.x.splitlines()|join('\n\n') ~ '\n' %}",
    ];
    let once = [
        "{{ 'x' * 90000000 }}",
        "{{ 'x' * 300 * 300 * 300 }}",
        "{{ (1, 2) * 10 ** 7 }}",
        "{% set n = 90000000 %}{{ 'x' * n }}",
        "{% set n = 40000000 %}{{ (1, 2) * n }}",
        "{% set n = 90000000 %}{{ ([1] * n)|list|length }}",
        "{% set n = 90000000 %}{{ ([1] * n)|tojson }}",
        "{{ 'x'|batch(999999999999, 'y') }}",
        "{{ [1]|slice(99999999) }}",
        "{{ '%099999999d'|format(1) }}",
        "{{ '%*d'|format(99999999, 1) }}",
        "{{ '{:>99999999}'.format('a') }}",
        "{{ 'x'|indent(99999999, true) }}",
        "{% set n = 100000 %}{{ (['x' * n] * n)|map('upper')|list|length }}",
        "{% set n = 100000 %}{{ (['x' * n] * n)|join('y')|length }}",
        "{% set n = 1000000 %}{{ ('x' * n)|list|length }}",
        "{% macro m(x, n) %}{% if n %}{{ m(x ~ x, n - 1) }}{% endif %}{% endmacro %}{{ m('word', 60) }}",
    ];
    for template in double.iter().map(|step| grow(step)).chain(once.iter().map(ToString::to_string)) {
        let (text, bytes) = memory(&template);
        assert!(bytes < 64 << 20, "{template}: {bytes} bytes, {:?}", text.map(|t| t.len()));
        let problem = text.map(|t| t.len()).expect_err(&template);
        let bounded = ["too much text", "too many steps", "too large", "recursion", "too deeply"];
        assert!(bounded.iter().any(|b| problem.contains(b)), "{template}: {problem}");
    }
}

#[test]
fn time_is_bounded_where_nothing_grows() {
    let _alone = alone();
    for work in [
        "x == y",
        "'z' in x",
        "x < y",
        "x|upper is lower",
        "x|length > 1 and x.count('q')",
        "x[1:]|length",
        "x[-1] == x[n - 1] and x.find('q', 3)",
        "3 ** 30000 % 7 == 1",
        "(3 ** 8000)|string",
    ] {
        let template = format!(
            "{{% set n = 500000 %}}{{% set x = 'a' * n %}}{{% set y = 'a' * n %}}{{% for i in range(100000) %}}\
             {{% if {work} %}}{{% endif %}}{{% endfor %}}"
        );
        let problem = memory(&template).0.expect_err(&template);
        assert!(problem.contains("too much text"), "{template}: {problem}");
    }
}

#[test]
fn a_long_conversation_has_its_own_budget() {
    let _alone = alone();
    let chat = ChatTemplate::new(
        "{% set ns = namespace(text='') %}{% for m in messages %}{% if '<x>' in m.content %}no{% endif %}\
         {% set ns.text = ns.text ~ m.role ~ ': ' ~ m.content.strip()|trim ~ '\\n' %}{% endfor %}{{ ns.text }}",
        "",
        "",
    );
    let messages = vec![Message::new("user", "word ".repeat(4000)); 100];
    let text = chat.unwrap().render(&messages, true).unwrap();
    assert_eq!(text.len(), 100 * ("user: ".len() + 4000 * 5 - 1 + 1));
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let _alone = alone();
    let refused = |template| ChatTemplate::new(template, "", "").unwrap_err().to_string();
    assert!(refused("{% if a %}{{ a|random }}{% endif %}").contains("'random' is not supported"));
    assert!(refused("{{ a.encode('utf-8') }}").contains("'encode' of a text is not supported"));
    assert!(refused("{{ a|nofilter }}").contains("No filter named 'nofilter'"));
    assert!(refused("{{ a is notest }}").contains("No test named 'notest'"));
}
