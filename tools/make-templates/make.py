"""Makes crates/bitnet-model/tests/templates.jsonl: fragments of chat templates beside what jinja2 makes of them.

Usage: make.py OUTPUT          needs jinja2 3.1.6

Renders each fragment as transformers' apply_chat_template does: an immutable sandbox with trim_blocks and
lstrip_blocks, loop controls, `generation`, and transformers' own tojson, raise_exception, dict and namespace. The
first line of the output holds the variables that all fragments share, every other line a fragment and its text, or
null if rendering raises. What an address or the time decides is left out.
"""
import itertools
import json
import random
import re
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

assert jinja2.__version__ == "3.1.6", jinja2.__version__

VARIABLES = {
    "s": "Hello, World", "e": "", "u": "Größe 中文 😀", "sp": "  a b \t c\n", "md": "- x\n\n  y\nz", "n": 7, "m": -3,
    "big": 123456789012345678901234567890, "f": 2.5, "z": 0, "t": True, "no": None, "l": [3, 1, 2], "el": [],
    "ls": ["b", "A", "c", "a"], "mix": [1, "a", None, True, 2.5], "d": {"b": 1, "a": [1, 2], "C": None}, "ed": {},
    "nest": {"x": {"y": [{"z": "deep"}]}},
    "messages": [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "Who's <there> \"é\"?\n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nMe.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": [True, None], "c": 1e-7, "d": "x\ny"}}}]},
        {"role": "tool", "content": "{\"r\": 2}", "tool_call_id": "c1", "name": "f"},
        {"role": "user", "content": [{"type": "text", "text": "parts"}, {"type": "image"}]},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "does f", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer", "description": "an a"}, "b": {"type": ["array", "null"], "items": {"type": "boolean"}},
        "k": {"enum": ["x", "y"], "default": "x"}}, "required": ["a"]}}}],
    "users": [{"name": "Bo", "age": 5, "tag": {"k": "x"}}, {"name": "al", "age": 3, "tag": {"k": "y"}}, {"name": "Al", "age": 5, "tag": {}}],
    "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True,
}


def environment():
    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

        def _support(self, caller):
            return caller()

    class Dict:
        def __call__(self, *args, **kwargs):
            return dict(*args, **kwargs)

    class Namespace(jinja2.utils.Namespace):
        def __init__(*args, **kwargs):
            self, args = args[0], args[1:]
            attributes = dict(*args, **kwargs)
            for name in attributes:
                Namespace._check(name)
            jinja2.utils.Namespace.__init__(self, attributes)

        def __setitem__(self, name, value):
            Namespace._check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def _check(name):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(name)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, dict=Dict(), namespace=Namespace)
    return env


ENV = environment()


def expected(fragment):
    try:
        return ENV.from_string(fragment).render(**json.loads(json.dumps(VARIABLES)))
    except Exception:
        return None


VALUES = [
    "s", "e", "u", "sp", "md", "n", "m", "big", "f", "z", "t", "no", "l", "el", "ls", "mix", "d", "ed", "nope", "nope.x",
    "(1, 'a')", "'12'", "' 3.5 '", "'0x1f'", "1e22", "-0.0", "range(4)", "d.items()", "d.keys()", "messages[1]", "users",
    "'a,b,,c'", "'<b>&\"'", "false", "tools", "messages[2].tool_calls[0].function.arguments",
]
PLAIN = "abs capitalize count d default e first float forceescape int items join last length list lower max min reverse round safe sort string striptags sum title tojson trim unique upper urlencode wordcount dictsort filesizeformat".split()
TESTS = "boolean callable defined even false float integer iterable lower mapping none number odd sequence string true undefined upper escaped".split()
OPERATORS = "+ - * / // % ** ~ == != < <= > >= in and or".split() + ["not in"]


def cross(rng):
    """Every filter and test on every value; every operator on many pairs."""
    for value, name in itertools.product(VALUES, PLAIN):
        after = "|list" if name in ("items", "reverse", "unique") else ""
        yield f"{{{{ {value}|{name}{after} }}}}"
    for value, name in itertools.product(VALUES, TESTS):
        yield f"{{{{ {value} is {name} }}}}"
    for operator in OPERATORS:
        pairs = list(itertools.product(VALUES, VALUES))
        for a, b in rng.sample(pairs, 45):
            # jinja2 writes a negative constant as two tokens, whose order is then Python's.
            if (operator, a) == ("**", "-0.0"):
                continue
            yield f"{{{{ {a} {operator} {b} }}}}"
    for value in VALUES:
        yield f"{{{{ {value} }}}}|{{{{ [{value}] }}}}|{{{{ {value} if {value} else 'no' }}}}"
        yield f"{{% for x in {value} %}}[{{{{ x }}}}{{{{ loop.index }}}}{{{{ loop.last }}}}]{{% else %}}none{{% endfor %}}"
        for index in ("0", "-1", "9", "'a'", "'name'", "none", "1.0", "true"):
            yield f"{{{{ {value}[{index}] is defined }}}}{{{{ {value}[{index}] }}}}"
        # The optimiser of jinja2 makes slices of constants undefined that raise elsewhere.
        for part in () if value in ("1e22", "false", "-0.0") else ("1:", ":-1", "::2", "::-1", "-2:", "1:3:1", ":0", "5:2:-1", "-100:100", "none:2"):
            yield f"{{{{ {value}[{part}] }}}}"
        for name in ("items", "keys", "upper", "count", "a", "append", "x"):
            yield f"{{{{ {value}.{name} is defined }}}}"


METHODS = {
    "capitalize casefold lower swapcase title upper isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper splitlines strip lstrip rstrip split rsplit expandtabs": [""],
    "strip lstrip rstrip": ["'Hd'", "' '", "none", "'\\n'", "1"],
    "split rsplit": ["','", "' '", "',', 1", "none, 1", "sep=','", "maxsplit=1", "'l', maxsplit=2", "''", "', '"],
    "splitlines": ["true", "keepends=true"],
    "partition rpartition": ["','", "' '", "'zz'", "''"],
    "find rfind index rindex count": ["'l'", "'o'", "''", "'zz'", "'l', 3", "'l', 3, 5", "'l', -3", "'o', 0, -1"],
    "startswith endswith": ["'H'", "'d'", "''", "('x', 'H')", "'e', 1", "'W', 7, 9", "['H']", "1"],
    "removeprefix removesuffix": ["'He'", "'ld'", "''"],
    "replace": ["'l', 'L'", "'l', 'L', 1", "'', '-'", "'zz', ''", "'l', ''"],
    "center ljust rjust zfill": ["20", "3", "-1"],
    "center ljust rjust": ["17, '*'", "18, '*'", "20, 'ab'"],
    "join": ["ls", "['a']", "[]", "'xyz'", "[1]", "d"],
    "expandtabs": ["4", "tabsize=2"],
    "format": ["", "1"],
}
TEXTS = ["s", "e", "u", "sp", "md", "'a,b,,c'", "'-12'", "'tab\\tx'", "'ß ﬁ ½ ² Ⅷ'", "'Title Case'", "'one\\r\\ntwo\\x0bthree\\u2028four'"]


def methods():
    for names, arguments in METHODS.items():
        for name, argument, text in itertools.product(names.split(), arguments, TEXTS):
            yield f"{{{{ {text}.{name}({argument}) }}}}"
    for call in ["d.get('a')", "d.get('q')", "d.get('q', 5)", "d.get('a', default=1)", "d.keys()|list", "d.values()|list", "d.items()|list",
                 "d.copy()", "d.pop('a')", "d.update({})", "l.index(1)", "l.index(9)", "l.count(3)", "l.append(1)", "l.copy()", "l.sort()",
                 "(1, 2, 1).count(1)", "(1, 2).index(2)", "d.items", "ed.items() is iterable", "n.bit_length()", "f.is_integer()", "d.get([])",
                 "d.setdefault('x', 1)", "l.reverse()", "d.fromkeys", "s.__class__", "s.__class__ is defined", "''.__class__.__mro__", "d.__len__()",
                 "s.upper().lower().title()", "s.nope()", "s.nope", "nope.upper()", "no.upper()", "d.items()|length", "d.items()[0]", "d.keys()[0]"]:
        yield f"{{{{ {call} }}}}"


FORMATS = """'%s' % n|'%d items' % n|'%5d|%-5d|%05d' % (n, n, n)|'%x %X %o %#x' % (255, 255, 8, 255)|'%.2f' % f|'%8.3f|' % f|'%e' % 12345.678|'%g %g' % (1e10, 0.0001)
'%r' % s|'%s %s' % ('a', 'b')|'%(b)s-%(a)s' % d|'%s' % d|'%s' % (l,)|'%s' % l|'%%' % ()|'%s'|'%s %s' % 'a'|'%d' % 'a'|'%c%c' % ('a', 98)|'%+d % d' % (3, 3)|'%5s|%-5s|' % ('a', 'b')
'%.1s' % s|'%i' % 3.9|'%s' % none|'%s' % true|'%d' % true|'%x' % -255|'%*d' % (5, 3)|'%.3s|' % 'abcdef'|'%5.1f' % 2.25|'%G' % 1e-10|'%q' % 1|'%' % 1|'%s' % nope|'%d%%' % 50
'{}'.format(1)|'{} {}'.format(1, 2)|'{1} {0}'.format(1, 2)|'{a}'.format(a=1)|'{:>5}|'.format('a')|'{:<5}|'.format('a')|'{:^5}|'.format('a')|'{:*^7}'.format('a')|'{:05d}'.format(42)|'{:,}'.format(1234567)
'{:.2f}'.format(3.14159)|'{:e}'.format(1234.5)|'{:g}'.format(0.00001)|'{:x}'.format(255)|'{:#x}'.format(255)|'{:b}'.format(5)|'{:o}'.format(8)|'{!r}'.format('a')|'{!s:>4}'.format('a')|'{0[a]}'.format(d)
'{0.x}'.format(nest)|'{{}}'.format()|'{'.format()|'}'.format()|'{}'.format()|'{0} {}'.format(1, 2)|'{:%}'.format(0.5)|'{:.1%}'.format(0.123)|'{:+d}'.format(3)|'{: d}'.format(3)|'{:_}'.format(1234567)
'{:>{}}'.format('a', 4)|'{:s}'.format(1)|'{:d}'.format('a')|'{:d}'.format(1.5)|'{:.3}'.format('abcdef')|'{:.3}'.format(3.14159)|'{}'.format(l)|'{:10}|'.format(3)|'{:10}|'.format('a')|'{:n}'.format(3)
'{:=+6d}'.format(3)|'{:^+7.1f}'.format(2.25)|'{}'.format(nope)|'{a[b]}'.format(a={'b': 2})|'{0[1]}'.format(ls)|'{:c}'.format(65)|'{:X}'.format(255)|'{x}'.format_map({'x': 1})|'{:06.2f}'.format(3.14159)|'{:,.1f}'.format(12345.67)
'%s %d'|format('a', 3)|'%(x)s'|format(x=1)|'%s'|format|'%.3f'|format(n)|'{}'.format(true)|'{:5}|'.format(true)|'{:>8.3}|'.format('abcdef')|'{:0>5}'.format(3)|'{0:{1}}'.format(3, 5)"""


def formats():
    for line in FORMATS.splitlines():
        for expression in re.split(r"\|(?=')", line):
            yield f"{{{{ {expression} }}}}"
    numbers = ["1e16", "1e15", "123456789012345680.0", "1e-5", "0.0001", "1e-4", "1.5e300", "5e-324", "0.1 + 0.2", "1/3", "100.0", "1e100", "2**53", "2**64", "-2**63",
               "2**0.5", "10**20", "10**-2", "7//2", "-7//2", "7%3", "-7%3", "7%-3", "-7.5//2", "7.5%-2", "1_000", "0x1F", "0o17", "0b101", "1e3", "1.", "1.5.real", "3.0", "3.14",
               "-0.0", "0.0", "1e400", "1/0", "1//0", "1%0", "1.0/0", "true + true", "2 ** 3 ** 2", "-2 ** 2", "--1", "+1", "-true", "big * big", "big // 7", "big % 97", "big / 3", "-big",
               "big + 1", "big == big + 0", "big > n", "9223372036854775807 + 1", "-9223372036854775808 - 1", "99999999999 * 99999999999", "1 < 2 < 3", "1 < 3 < 2", "3 > 2 > 1 > 0", "1 == 1.0 == true",
               "1 < 'a'", "'a' < 'b' < 'c'", "1 in [1] in [[1]]", "not 1 == 2", "not (1 and 0)", "1 if 0", "1 if 0 else 2 if 0 else 3", "none is none", "1 == 1 and 2 == 2", "[1, 2] < [1, 3]", "(1,) == [1]"]
    for number in numbers:
        yield f"{{{{ {number} }}}}"
        yield f"{{{{ ({number})|tojson }}}}|{{{{ ({number})|string }}}}|{{{{ [{number}] }}}}"
    for number, digits, method in itertools.product(["2.5", "3.5", "2.675", "-1.5", "1234.5678", "7", "1e20", "1250", "0.05"], ["0", "1", "2", "-2"], ["common", "ceil", "floor"]):
        yield f"{{{{ {number}|round({digits}, '{method}') }}}}"
    for text in ["12", "-7", " 5 ", "1_0", "0x1f", "ff", "1.9", "1e3", "abc", "", "inf", "nan", "+4", "1__0", "0b11", "010"]:
        for arguments in ["", "(9)", "(base=16)", "(0, 2)", "(default=none)", "(base=0)"]:
            yield f"{{{{ {text!r}|int{arguments} }}}}"
        yield f"{{{{ {text!r}|float }}}}|{{{{ {text!r}|float(1.5) }}}}"


JSON = ["d", "l", "mix", "messages[2]", "tools", "u", "s", "(1, 2)", "{1: 2, none: 3, true: 4, 2.5: 5}", "[]", "{}", "[[], {}]", "nope", "'\\x00\\x1f\\x7f\\u2028</script>'", "range(3)", "d.items()",
        "{(1, 2): 3}", "1e-7", "big", "{'b': 1, 'a': 2}", "{'x': nope}", "s|upper", "('a'|safe)", "l|map('string')", "[1e22, 1.0, 0.1]", "'😀é'", "{'b': 1, 1: 2}", "namespace(a=1)", "[true, false, none]"]
STYLES = ["", "()", "(indent=2)", "(indent=4)", "(indent=0)", "(indent='\\t')", "(ensure_ascii=true)", "(ensure_ascii=False, indent=1)", "(separators=(',', ':'))", "(separators=(',', ':'), indent=2)", "(sort_keys=true)", "(true)",
          "(false, 2)", "(indent=none)", "(nope=1)", "(separators=(',',))", "(indent=-1)", "(indent=2, sort_keys=true)"]
FILTERS = """ls|join(', ')|ls|join|l|join('-')|users|join(', ', attribute='name')|users|join(d='/', attribute='age')|users|map(attribute='name')|list|users|map(attribute='tag.k')|list|users|map(attribute='tag.k', default='?')|list
users|map(attribute='name')|join(',')|ls|map('upper')|list|ls|map('replace', 'a', 'x')|list|l|map('string')|join|l|map|list|ls|map('nope')|list|users|map(attribute='x', other=1)|list|mix|map('default', 'x', true)|list
ls|sort|ls|sort(reverse=true)|ls|sort(case_sensitive=true)|ls|sort(true)|users|sort(attribute='name')|map(attribute='name')|list|users|sort(attribute='age,name')|map(attribute='name')|list|mix|sort|l|sort|d|sort|users|sort(attribute='tag.k')|list
d|dictsort|d|dictsort(true)|d|dictsort(by='value')|{'b': 2, 'a': 3}|dictsort(by='value')|{'b': 2, 'a': 3}|dictsort(reverse=true)|d|dictsort(by='x')|{'B': 1, 'a': 2}|dictsort|{'B': 1, 'a': 2}|dictsort(case_sensitive=true)
ls|unique|list|['a', 'A', 'b']|unique|list|['a', 'A', 'b']|unique(true)|list|users|unique(attribute='age')|map(attribute='name')|list|l|min|l|max|ls|min|ls|max(case_sensitive=true)|users|max(attribute='age')|el|min|users|min(attribute='name')
l|sum|users|sum(attribute='age')|l|sum(start=10)|[[1], [2]]|sum(start=[])|ls|sum|el|sum|[1.5, 2]|sum|users|sum('age', 1)
users|groupby('age')|users|groupby(attribute='name')|users|groupby('tag.k', default='none')|map('first')|list|users|groupby('name', case_sensitive=true)|map(attribute='grouper')|list|(users|groupby('age'))[0].list|length|users|groupby('age')|first
l|batch(2)|list|l|batch(2, 'x')|list|l|batch(linecount=5, fill_with=0)|list|l|slice(2)|list|l|slice(2, 'x')|list|range(7)|slice(3)|list|el|batch(2)|list|l|slice(0)|list|el|slice(2)|list
mix|select|list|mix|reject|list|mix|select('string')|list|mix|reject('none')|list|l|select('>', 1)|list|l|select('odd')|list|l|select('in', [1, 2])|list|l|select('divisibleby', 2)|list|l|reject('equalto', 2)|list|l|select('nope')|list|l|select(1)|list
users|selectattr('age')|list|length|users|selectattr('age', 'eq', 5)|map(attribute='name')|list|users|rejectattr('age', '==', 5)|map(attribute='name')|list|users|selectattr('tag.k', 'defined')|map(attribute='name')|list|users|selectattr|list
messages|selectattr('role', 'equalto', 'user')|list|length|messages|rejectattr('role', 'in', ['user', 'tool'])|map(attribute='role')|join(' ')|messages|selectattr('tool_calls', 'defined')|list|length|messages|map(attribute='content')|select('string')|map('trim')|list
s|indent|md|indent|md|indent(2)|md|indent(2, true)|md|indent(2, first=true)|md|indent(2, blank=true)|md|indent(width='> ', first=true, blank=true)|md|indent('..')|''|indent(first=true)|n|indent|'a\\n'|indent(2)|'a\\n\\nb'|indent(width=1, first=False, blank=True)|md|indent(2, indentfirst=true)
s|truncate(5)|s|truncate(9)|s|truncate(5, true)|s|truncate(8, true, '..')|s|truncate(8, end='', leeway=0)|s|truncate(length=7, killwords=true, leeway=0)|s|truncate(1)|u|truncate(6, true, '', 0)
s|center(20)|s|center|s|center(width=15)|s|replace('l', 'L')|s|replace('l', 'L', 1)|s|replace('l', 'L', count=2)|n|replace('7', '8')|s|replace(old='o', new=0)|s|replace('l')|s|trim('Hd')|sp|trim|sp|trim(chars=' ')|s|trim(none)
no|default('x')|no|default('x', true)|nope|default('x')|nope|default|e|default('x', boolean=true)|z|d(5, true)|nope.x|default('x')|d.q|default(d.a)|nope|default(default_value='y')|s|default('x', false)
'a b c d e f'|wordwrap(3)|'aaaa bb'|wordwrap(2)|'aaaa bb'|wordwrap(2, false)|'a b c'|wordwrap(3, wrapstring='|')|s|wordcount|u|wordcount|'<p>a  <b>c</b></p> &amp; x'|striptags|'a b/c&d=ü'|urlencode|{'a b': 1, 'c': 'd/e'}|urlencode|1000|filesizeformat|1|filesizeformat
123456789|filesizeformat|2048|filesizeformat(true)|'<a href="x">&'|e|'<'|e|e|'<'|safe|e|'<'|forceescape|('<'|safe) + '<'|'<' + ('>'|safe)|('<'|safe) ~ '<'|'<'|safe|upper|('%s'|safe) % '<'|(s|safe).lower()|'a'|safe|string|'a'|safe is string
d|items|list|d|items|map('first')|list|nope|items|list|l|items|list|d|length|nope|length|no|length|n|length|(l|map('string'))|length|range(5)|length|range(5)|list|range(2, 9, 3)|list|range(5, 0, -2)|list|range(0)|list|range(1000000)|range(3)|range(1, 7, 2)
l|first|el|first|l|last|el|last|s|first|s|last|d|first|d|last|nope|first|nope|last|no|first|range(3)|last|l|reverse|list|s|reverse|d|reverse|list|(l|map('string'))|last|l|list|s|list|d|list|no|list|n|list
d|attr('items')|d|attr('a')|s|attr('upper')|users[0]|attr('name')|nope|attr('x')|'abc'|upper|lower|title|'hello-world foo(bar'|title|"it's"|title|'HELLO wORLD'|capitalize|'ß'|upper|'İ'|lower|n|upper|no|upper|l|upper|[n, f]|string|no|string|nope|string|-5|abs|m|abs|f|abs|s|abs
1|pprint|'a'|pprint|[1, 'a']|pprint|s|random|nope|nofilter|s|nope.x|'abc'|list|join('-')|'a,b'|replace(',', ', ')|upper|s|upper|replace('L', 'l')|length|l|map('float')|map('int')|sum|l|map('tojson')|join(' ')|messages|map(attribute='role')|unique|join(',')|messages|map('tojson')|first"""


def filters():
    for value, style in itertools.product(JSON, STYLES):
        yield f"{{{{ {value}|tojson{style} }}}}"
    words = set(PLAIN + "map replace sort batch slice select reject selectattr rejectattr groupby indent truncate center trim wordwrap pprint random format attr nofilter nope".split())
    start = re.compile(r"\|(?!\w+\b(?=[(|]|$))")
    for line in FILTERS.splitlines():
        # A bar ends an expression unless a filter follows it; a chain goes on as long as filters follow.
        parts, current = [], ""
        for piece in re.split(r"\|(?=(?:[^']*'[^']*')*[^']*$)", line):
            name = re.match(r"\w*", piece).group()
            after = piece[len(name):len(name) + 1]
            if current and name in words and (after in ("", "(", ")", ".", "]", " ") or after == ""):
                current += "|" + piece
                # Also each beginning of a chain.
                continue
            if current:
                parts.append(current)
            current = piece
        parts.append(current)
        for expression in parts:
            yield f"{{{{ {expression} }}}}"


STATEMENTS = r"""
{% for x in l %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }};{% endfor %}
{% for x in l %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}
{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}
{% for x in l %}{{ loop.previtem is defined }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}
{% for k in d %}{{ k }}{% endfor %}
{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }} {% endfor %}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}
{% for a, b in [1] %}{{ a }}{% endfor %}
{% for x in n %}{{ x }}{% endfor %}
{% for x in no %}{{ x }}{% endfor %}
{% for x in nope %}{{ x }}{% else %}none{% endfor %}
{% for x in [] %}{{ x }}{% else %}none{% endfor %}
{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{% for y in ls %}{% if y == 'A' %}{% break %}{% endif %}{{ x }}{{ y }}{% endfor %}{% endfor %}
{% for x in l recursive %}{{ x }}{% if loop.depth < 3 %}({{ loop([x + 1]) }}){% endif %}{% endfor %}
{% for x in [{'v': 1, 'c': [{'v': 2, 'c': []}]}] recursive %}{{ x.v }}{{ loop(x.c) }}{{ loop.depth }}{% endfor %}
{% for x in l %}{{ loop(l) }}{% endfor %}
{% set x = 1 %}{% for y in l %}{% set x = y %}{% endfor %}{{ x }}
{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}
{% for y in l %}{{ q }}{% set q = y %}{{ q }}{% endfor %}{{ q is defined }}
{% set ns = namespace(a=1) %}{% for y in l %}{% set ns.a = ns.a + y %}{% endfor %}{{ ns.a }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}{{ ns.c is defined }}
{% set ns = namespace() %}{% set ns.x = 1 %}{{ ns.x }}{{ ns.y }}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% set ns = namespace(_x=1) %}
{% set d.x = 1 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set a, b = 'xy' %}{{ a }}{{ b }}
{% set a, b = [1] %}
{% set x %}  block {{ n }}
{% endset %}[{{ x }}]
{% set x | upper %}abc{% endset %}{{ x }}
{% set x | replace('a', 'b') | upper %}abc{% endset %}{{ x }}
{% set x = [1, 2, ] %}{{ x }}{% set y = (1,) %}{{ y }}{% set z = () %}{{ z }}{% set w = 1, %}{{ w }}
{% set x = {'a': 1, 'b': 2, } %}{{ x }}
{% set messages = messages[1:] %}{{ messages|length }}
{% if messages[0].role == 'system' %}{% set system = messages[0].content|trim %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{{ system }}{{ rest|length }}
{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=4, a=5) }}{{ m() }}
{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}{{ m(1) }}
{% macro m(a) %}{{ a + 1 }}{% endmacro %}{{ m() }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, b=2) }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}
{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(1) }}
{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}body{% endcall %}
{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{{ n }}{% endcall %}
{% macro m(x) %}[{{ caller() }}{{ x }}]{% endmacro %}{% for i in l %}{% call m(i) %}{{ i }}{% endcall %}{% endfor %}
{% macro m() %}x{% endmacro %}{% call m() %}body{% endcall %}
{% macro m(n) %}{% if n > 0 %}{{ n }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}
{% macro outer() %}{% macro inner() %}i{{ q }}{% endmacro %}{% set q = 5 %}{{ inner() }}{% endmacro %}{{ outer() }}
{% set q = 1 %}{% macro m() %}{{ q }}{% endmacro %}{% set q = 2 %}{{ m() }}
{% macro m() %}{% set q = 9 %}{{ q }}{% endmacro %}{{ m() }}{{ q is defined }}
{% macro m() %} x {% endmacro %}[{{ m() }}][{{ m()|trim }}][{{ m() ~ 'y' }}]{{ m.name }}
{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}
{% macro m(items, sep=', ') -%}{%- for i in items -%}{{ i }}{{ sep if not loop.last }}{%- endfor -%}{%- endmacro %}{{ m(l) }}|{{ m(ls, sep='/') }}
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}
{% with a = 1 %}{% with b = a + 1 %}{{ b }}{% endwith %}{% endwith %}
{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}
{% filter upper %}abc{{ s }}{% endfilter %}
{% filter replace('a', 'b')|upper %}abc{% endfilter %}
{% block title %}x{{ n }}{% endblock %}
{% block title %}x{% endblock title %}
{% generation %}a{{ n }}{% endgeneration %}
{% for m in messages if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% endfor %}
{%- for m in messages %}{%- generation %}{{- m.role }}{%- endgeneration %}{%- endfor %}
{% raw %}{{ x }}{% if %}{% endraw %}
{%- raw -%}  a  {%- endraw -%}  b
{% raw %}
 a
{% endraw %}
b
{# comment #}a{#- b -#} c
a {#- x #} b
a
  {# x #}
b
{% autoescape false %}<{{ '<' }}{% endautoescape %}
{% print n, s %}
{% if n > 3 %}a{% elif n > 2 %}b{% else %}c{% endif %}
{% if no %}a{% elif z %}b{% elif l %}c{% endif %}
{% if n is odd and not n is divisibleby 2 %}y{% endif %}
{% if n is not none and s is string %}y{% endif %}
{% if 'a' in d and 'q' not in d %}y{% endif %}
{% if nope is nofilter %}a{% endif %}
{% if false %}{{ s|nofilter }}{% endif %}x
{{ s|nofilter if false else 'x' }}
{% if x is undefined %}u{% endif %}{% if x is not defined %}d{% endif %}
  {% if true %}
    a
  {% endif %}
b
  {%+ if true %}x{%+ endif %}
a  {%- if true -%}  b  {%- endif -%}  c
  {{- n -}}  x
a
{{ n }}
b
{% if true +%}
x
{% endif %}
   {%- set x = 1 %}
y
{% for x in l %}
  {{ x }}
{% endfor %}
{% for x in l -%}
  {{ x }}
{%- endfor %}
	{% if true %}tab{% endif %}
{{ 'a' 'b' "c" }}{{ 'it''s' }}{{ "q\"q" }}{{ 'x\ty\nz\\' }}{{ '\x41\u00e9\101' }}{{ 'a\qb' }}
{{ {'a': {'b': {}}} }}{{ {'a': 1}['a'] }}{{ [[1, [2]]][0][1][0] }}{{ {} }}{{ [] }}{{ () }}
{{ (1, 2)[0] }}{{ l.0 }}{{ l.1 }}{{ users.0.name }}{{ d['a'][0] }}{{ d.a.1 }}{{ messages[2].tool_calls[0].function.name }}
{{ -n|abs }}{{ (-n)|abs }}{{ -l[0] }}{{ not n is odd }}{{ 2 * 3 ~ 4 }}{{ 1 ~ 2 + 3 }}{{ 1 + 2 ~ 3 }}{{ 'a' ~ n * 2 ~ 'b' }}
{{ n if n > 3 }}{{ s if z }}{{ (s if z) is defined }}{{ (s if z) ~ 'x' }}{{ 'a' if z else 'b' if z else 'c' }}
{{ s[0] }}{{ s[-1] }}{{ u[7] }}{{ s[99] }}{{ s[1:4] }}{{ s[::-1] }}{{ u[::2] }}
{{ dict(a=1, b=2) }}{{ dict({'x': 1}, y=2) }}{{ dict([('a', 1)]) }}{{ dict() }}
{{ range(3)|list }}{{ range(10)[2] }}{{ range(10)[2:5]|list }}{{ 3 in range(5) }}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.current }}
{% set j = joiner('; ') %}{{ j() }}a{{ j() }}b{{ j() }}c
{{ raise_exception('no') }}
{% if false %}{{ raise_exception('no') }}{% endif %}ok
{{ m(*l) }}
{% macro m(a, b, c) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*l) }}{{ m(9, *[8, 7]) }}{{ m(**{'a': 1, 'b': 2, 'c': 3}) }}{{ m(1, *[2], **{'c': 5}) }}{{ m(*[1, 2], c=3) }}
{{ '{} {}'.format(*['a', 'b']) }}{{ '{a}'.format(**{'a': 1}) }}{{ dict(**{'a': 1}) }}
{{ n.x.y }}
{{ nope.x.y }}
{{ nope + 1 }}
{{ 'a' + nope }}
{{ 'a' ~ nope }}
{{ nope == nope2 }}{{ nope != none }}{{ nope == none }}{{ nope is none }}
{{ nope < 1 }}
{{ nope() }}
{{ nope[0] }}
{{ no[0] is defined }}{{ no.x is defined }}
{{ 'a' in nope }}{{ nope in ['a'] }}
{{ 1 in no }}
{{ 1 in 'abc' }}
{{ s() }}
{{ d() }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ [1] + (2,) }}
{{ [1] + [2] }}{{ (1,) + (2,) }}{{ [1] * 2 }}{{ 2 * 'ab' }}{{ 'ab' * -1 }}
{{ {'a': 1} == {'a': 1.0} }}{{ [1, 2] == [1, 2] }}{{ 'a' == 1 }}{{ none == false }}{{ 1 == true }}{{ {1: 2}[true] }}
{{ "don't" }}{{ ["don't"] }}{{ ['a"b'] }}{{ ["both ' and \""] }}{{ ['\n\t\\'] }}{{ ['é\x00\u200b😀'] }}
{{ [none, true, 1.0, 'a', [1], (1, 2), {'k': 'v'}] }}
{{ d.items() }}{{ d.keys() }}{{ d.values() }}
{{ messages[0] }}
{{ tools[0].function.parameters.properties.items() is iterable }}{{ tools[0].function.parameters.items is defined }}
{{ '%s' % messages[0]['role'] }}
{{ true and 'x' or 'y' }}{{ none or 'z' }}{{ '' or 0 or [] }}{{ 1 and 2 and 3 }}
{{ loop is defined }}{{ range is defined }}{{ varargs is defined }}{{ dict is callable }}
{% set loop = 5 %}{{ loop }}
{% for loop in l %}{{ loop }}{% endfor %}
{% set range = 5 %}{{ range }}
{% include 'x' %}
{% import 'x' as y %}
{% nope %}
{% if %}
{{ }}
{{ 1 + }}
{% for x in l %}
{% endfor %}
{% endif %}
{{ a b }}
{{ 'unclosed }}
{{ (1 }}
{{ 1 ) }}
{{ x | }}
{% set 1 = 2 %}
{% set none = 2 %}
{{ 1abc }}
{{ a. }}
{{ l[ }}
{% macro m(a=1, b) %}{% endmacro %}
{{ f(a=1, 2) }}
{{ x is }}
{{ n is odd is even }}
{{ 5 is in [5] }}{{ 5 is not in [5] }}{{ 'a' is in 'abc' }}{{ n is gt 5 }}{{ n is eq(7) }}{{ n is ge 7 }}{{ n is lt(3) }}{{ n is ne 7 }}{{ n is sameas 7 }}{{ none is sameas none }}{{ n is divisibleby(7) }}
{{ 'upper' is filter }}{{ 'nope' is filter }}{{ 'odd' is test }}{{ 'nope' is test }}
{{ 1 is number and true is number }}{{ true is integer }}{{ 1.0 is integer }}{{ d is mapping }}{{ l is sequence }}{{ d is sequence }}{{ s is sequence }}{{ range(3) is sequence }}{{ (l|map('string')) is iterable }}
{{ tools is iterable and tools is not mapping }}{{ documents is defined }}{{ not tools is none }}
{% for tool in tools %}{{ tool.function.name }}({% for k, p in tool.function.parameters.properties.items() %}{{ k }}: {{ p.type if p.type is string else p.type|join(' | ') if p.type is defined else p.enum|tojson }}{{ ', ' if not loop.last }}{% endfor %}){% endfor %}
{% for tool in tools %}{%- set f = tool.function if tool.function is defined else tool -%}{{ f.name }}: {{ f.parameters.required|join(', ') }}{% endfor %}
{{- bos_token }}{%- for message in messages %}{{- '<|' + message.role + '|>' }}{%- if message.content is string %}{{- message.content|trim }}{%- elif message.content is iterable %}{%- for part in message.content %}{%- if part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}{%- endif %}{{- eos_token }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
{% for m in messages %}{% set content = m.content if m.content is string else '' %}{% if '</think>' in content %}{{ content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }}|{{ content.split('</think>')[-1].lstrip('\n') }}{% endif %}{% endfor %}
{% set ns = namespace(last=messages|length - 1, found=false) %}{% for m in messages[::-1] %}{% set i = (messages|length - 1) - loop.index0 %}{% if not ns.found and m.role == 'user' %}{% set ns.found = true %}{% set ns.last = i %}{% endif %}{% endfor %}{{ ns.last }}
{% for c in messages[2].tool_calls %}{% for k, v in c.function.arguments|items %}<{{ k }}>{{ v if v is string else v|tojson }}</{{ k }}>{% endfor %}{% endfor %}
{% for c in messages[2].tool_calls %}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v|string }};{% endfor %}{{ c.function.arguments }}{% endfor %}
{%- macro type(p) -%}{%- if p.type is defined -%}{%- if p.type == 'array' -%}{{ type(p['items']) }}[]{%- elif p.type is string -%}{{ p.type }}{%- else -%}{{ p.type | join('|') }}{%- endif -%}{%- else -%}any{%- endif -%}{%- endmacro -%}{%- for k, p in tools[0].function.parameters.properties.items() %}{{ k }}: {{ type(p) }}{{ '\n' }}{%- endfor %}
{%- set system = messages|selectattr('role', 'equalto', 'system')|map(attribute='content')|join('\n')|trim %}{{ system }}
{%- if (messages|length > 1) and messages[1]['role'] != 'user' %}{{ raise_exception('bad') }}{% endif %}{% if messages[0]['role'] == 'system' %}{% set offset = 1 %}{% else %}{% set offset = 0 %}{% endif %}{% for m in messages[offset:3] %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}{{ m.role }}{% endfor %}
{{ messages[-1].content|map(attribute='text')|select('defined')|join }}{{ messages|map(attribute='role')|list|tojson }}{{ messages[1:]|first|attr('x') }}
{%- for message in messages -%}{%- if loop.previtem and loop.previtem.role == message.role -%}same{%- endif -%}{{ loop.nextitem.role if loop.nextitem else 'end' }} {% endfor -%}
{% set text = '' %}{% for m in messages %}{% set text = text + m.role %}{% endfor %}[{{ text }}]
{% set parts = [] %}{% for m in messages %}{% set parts = parts + [m.role] %}{% endfor %}{{ parts }}
{% set _ = l.append(4) %}{{ l }}
{{ "%02d:%02d"|format(3, 7) }}{{ "{:02d}".format(5) }}{{ 'x'.join(['a', 'b']) }}{{ ', '.join(d) }}{{ ' '.join(messages|map(attribute='role')) }}
{{ tools|tojson(indent=4)|indent(2) }}
{{ (tools|tojson).replace('"', "'") }}{{ tools|map('tojson', indent=1)|join('\n') }}
{{ messages|tojson|length }}{{ u|length }}{{ u|upper }}{{ u|tojson(ensure_ascii=true) }}
{% for a in range(3) %}{% for b in range(3) if b != a %}{{ loop.index }}{{ loop.length }}{{ a }}{{ b }} {% endfor %}{% endfor %}
{% for x in [1, 1, 2, 2] %}{% if loop.changed(x) %}{{ x }}{% endif %}{% endfor %}
{{ ['a', 'b']|join(', ' if true else '; ') }}{{ (l|sort)[0] }}{{ (l|sort|reverse|list)[0] }}{{ l|sort|first }}
{{ (1, 2) + (3,) }}{{ (1) }}{{ (1,) }}{{ 1, 2 }}
{{ x.y.z if x is defined else 'none' }}{{ (d.q or 'alt') }}{{ d.get('q') or 'alt' }}{{ d['q'] is none }}{{ d.q is none }}
{{ 'A' < 'a' }}{{ 'é' > 'z' }}{{ [1, 'a'] == [1, 'a'] }}{{ (1, 2) < (1, 3) }}
{{ s.split(', ')[1].upper()[::-1] }}{{ s.split(',')|map('trim')|list }}{{ s.split()|length }}
"""


def statements():
    # One fragment a line; lines without a tag at their beginning belong to the fragment before.
    fragment = []
    for line in STATEMENTS.strip("\n").split("\n"):
        yield line.replace("\\N", "\n")
    groups = STATEMENTS.strip("\n").split("\n")
    for size in (2, 3, 4, 5):
        for start in range(0, len(groups) - size):
            lines = groups[start:start + size]
            # Lines that only make sense together: indented, plain, or ends of blocks.
            if any(not line.startswith(("{{", "{%", "{#")) or line.startswith("{% end") for line in lines[1:]):
                yield "\n".join(lines)
    for fragment in ["A\r\n{% if true %}\r\n{{ s }}\r\n{% endif %}\r\nB\r\n", "a\rb\r\n", "a\n", "a\n\n", "\n", "", "{{ 'a\r\nb' }}", " \n {% if true %}\n\n x{% endif %} \n",
                     "\x0c {% if true %}a{% endif %}", "\u2003{% if true %}a{% endif %}", "a\u2003{%- if true -%}\u2003b{% endif %}", "{{ '\\\n' }}x", "{%if true%}a{%endif%}", "{{n}}{{-n-}}{{+n}}",
                     "{{ n }}\n", "{{ n }}\n\n", "{% set x = 1 %}\n\nx", "{#\n#}\nx", "  {#- x -#}  \n y", "{% raw -%} a {%- endraw %}\nb", "{%- if true %} a {% endif -%} b", "{{ '}}' }}{{ '{%' }}", "{ {n} }{", "{% if true %}{{ '%}' }}{% endif %}"]:
        yield fragment


def main():
    rng = random.Random(20261125)
    seen, lines = set(), []
    for fragment in itertools.chain(cross(rng), methods(), formats(), filters(), statements()):
        if fragment in seen:
            continue
        seen.add(fragment)
        text = expected(fragment)
        if text is not None and (" at 0x" in text or len(text) > 600):
            continue
        lines.append(json.dumps([fragment, text], ensure_ascii=False, separators=(",", ":")))
    with open(sys.argv[1], "w", encoding="utf-8", newline="\n") as out:
        out.write(json.dumps(VARIABLES, ensure_ascii=False, separators=(",", ":")) + "\n")
        out.write("\n".join(lines) + "\n")
    print(len(lines), "fragments,", sum(line.endswith(",null]") for line in lines), "of them errors")


if __name__ == "__main__":
    main()
