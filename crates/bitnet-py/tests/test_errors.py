"""Errors are exceptions with their cure, and nothing hangs."""

import os
import pickle
import signal
import subprocess
import sys
import time

import bitnet
import pytest

MISSING = [
    (lambda: bitnet.Model.load("no/such/folder"), FileNotFoundError, "check the path"),
    (lambda: bitnet.Model.load("synthetic:nonsense"), FileNotFoundError, "choose one of tiny"),
    (lambda: bitnet.Model.load(__file__), bitnet.ModelNotFound, "give a .gguf file, or a folder"),
    (lambda: bitnet.Model.load("demo", device="tpu"), ValueError, "choose auto, cpu, cuda or cuda:N"),
    (lambda: bitnet.Model.load("demo", device="cuda"), bitnet.BitnetError, ""),
    (lambda: bitnet.Model.load("demo", memory="lots"), ValueError, "give bytes like 4000000000"),
    (lambda: bitnet.Model.load("demo", kv="f64"), ValueError, "f16"),
    (lambda: bitnet.Model.load("demo", device="cpu", memory=1000), MemoryError, "this model needs at least"),
    (lambda: bitnet.Model.load("demo", device="cpu", batch_size=0), ValueError, "give at least 1"),
    (lambda: bitnet.Model.load("demo", device="cpu", cache_size="20G"), ValueError, "give cache_dir too"),
    (lambda: bitnet.Model.load("demo", device="cpu", cache_dir="x", cache_size="9%"), ValueError, "20GiB"),
    (lambda: bitnet.Model.load("demo", device="cpu", host_cache="1M"), bitnet.BitnetError, "compute on a GPU"),
    (lambda: bitnet.Model.load("demo", device="cpu", cache_dir=__file__), bitnet.BitnetError, "may write to"),
]


@pytest.mark.parametrize("case", range(len(MISSING)))
def test_what_cannot_be_loaded_is_refused_with_its_cure(case):
    load, kind, cure = MISSING[case]
    with pytest.raises(kind) as raised:
        load()
    error = raised.value
    assert isinstance(error, bitnet.BitnetError) and cure in error.cure and error.cure, repr(error)
    assert str(error).endswith(error.cure) and "\n" not in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.cure) == (type(error), str(error), error.cure)


REFUSED = [
    ([], {}, bitnet.InvalidRequest, "the prompt is empty"),
    ("O" * 5000, {}, bitnet.InvalidRequest, "give a shorter prompt"),
    ("O", {"temperature": -1}, bitnet.InvalidRequest, "temperature is -1"),
    ("O", {"max_tokens": -1}, bitnet.InvalidRequest, "max_tokens is -1"),
    ("O", {"seed": 1 << 64}, bitnet.InvalidRequest, "seed is"),
    ("O", {"stop": "x" * 300}, bitnet.InvalidRequest, "stop_strings"),
    ("O", {"priority": "soon"}, bitnet.InvalidRequest, "choose interactive, normal or batch"),
    ("O", {"timeout": -1}, bitnet.InvalidRequest, "give a number of seconds"),
    ("O", {"timeout": 1e-6, "max_tokens": 300, "ignore_eos": True}, bitnet.RequestTimeout, "give it more time"),
    ("O", {"regex": "("}, bitnet.InvalidRequest, "correct or simplify"),
    ("O", {"choice": []}, bitnet.InvalidRequest, "correct or simplify"),
    ("O", {"json_schema": {"type": "nonsense"}}, bitnet.InvalidRequest, "correct or simplify"),
    ("O", {"reasoning_effort": "huge"}, bitnet.InvalidRequest, "choose one of none, minimal, low"),
    ("O", {"thinking": "yes"}, TypeError, "thinking: "),
    ("O", {"max_token": 3}, TypeError, "max_token: there is no such option: did you mean max_tokens?"),
    ("O", {"temperature": "hot"}, TypeError, "temperature: "),
    ("O", {"logit_bias": [1]}, TypeError, "logit_bias: "),
    (3, {}, TypeError, "prompt: it must be a text, a list of token ids, or a list of messages"),
    ([-1], {}, TypeError, "prompt: it must be a text"),
    ([{"role": "user", "contents": "O"}], {}, TypeError, "contents: there is no such field of a message"),
    ([{"content": "O"}], {}, TypeError, "each needs a `role`"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_cannot_be_asked_is_refused_alike_in_every_form(model, case):
    prompt, options, kind, text = REFUSED[case]
    forms = [
        lambda: model.generate(prompt, **options),
        lambda: model.stream(prompt, **options).answer(),
        lambda: model.batch([{"prompt": prompt, **options}]),
    ]
    for form in forms:
        with pytest.raises(kind) as raised:
            form()
        assert text in str(raised.value), repr(raised.value)
    assert model.generate("O", max_tokens=1).tokens, "the model goes on"


def test_every_documented_option_is_accepted(model):
    values = {
        "json_schema": {},
        "regex": "a",
        "choice": ["a"],
        "tools": [],
        "chat_template_kwargs": {},
        "priority": "batch",
        "stop": "x",
        "stop_token_ids": [3],
        "logit_bias": {3: 1.0},
        "top_p": 0.5,
        "min_tokens": 0,
        "ignore_eos": True,
        "thinking": False,
        "reasoning_effort": "low",
        "keep_thoughts": True,
        "cache_salt": "ann",
    }
    for name in bitnet.Options.__annotations__:
        model.generate("O", **{"max_tokens": 1, name: values.get(name, 1)})
        model.generate("O", **{"max_tokens": 1, name: None})


def test_a_closed_model_says_so():
    with bitnet.Model.load("demo", device="cpu", threads=1) as model:
        stream = model.stream("O", max_tokens=400, ignore_eos=True)
        assert "demo" in repr(model)
    with pytest.raises(bitnet.BitnetError, match="the model is closed .*: load it again"):
        model.generate("O")
    with pytest.raises(bitnet.BitnetError, match="open the model again"):
        stream.answer()
    model.close()
    assert repr(model) == "Model(closed)"


def test_progress_is_reported_and_can_stop_loading():
    seen = []
    bitnet.Model.load("demo", device="cpu", progress=lambda *report: seen.append(report)).close()
    assert seen and all(what == "loading" and 0 <= done <= total for what, done, total in seen)
    assert seen[-1][1] == seen[-1][2]

    def stop(*_):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        bitnet.Model.load("demo", device="cpu", progress=stop)


INTERRUPTED = """
import asyncio, bitnet, sys
name = "synthetic:embedding-tiny" if sys.argv[1] == "embed" else "synthetic:tiny"
model = bitnet.Model.load(name, device="cpu", threads=1)
endless = dict(max_tokens=8000, ignore_eos=True, seed=1)
def forever(*_):
    print("begun", flush=True)
    while True: pass
async def read():
    async for _ in model.stream([1, 2], **endless): pass
forms = {
    "generate": lambda: [model.generate([1, 2], **endless) for _ in range(1000)],
    "batch": lambda: [model.batch([[1], [2], [3]], **endless) for _ in range(1000)],
    "stream": lambda: [list(model.stream([1, 2], **endless)) for _ in range(1000)],
    "async": lambda: [asyncio.run(read()) for _ in range(1000)],
    "score": lambda: [model.score([1] * 8000) for _ in range(1000)],
    "embed": lambda: [model.embed([[i + 1] * 8000 for i in range(9)]) for _ in range(1000)],
    "load": lambda: bitnet.Model.load("synthetic:700m", device="cpu", progress=lambda *_: print("begun", flush=True)),
}
form = forms[sys.argv[1]]
try:
    if sys.argv[1] != "load": print("begun", flush=True)
    form()
except KeyboardInterrupt:
    assert len(model.generate([1, 2], max_tokens=3, ignore_eos=True).tokens) == 3
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("form", ["generate", "batch", "stream", "async", "score", "embed", "load"])
def test_ctrl_c_ends_every_form_of_waiting_and_the_model_goes_on(form):
    run = [sys.executable, "-c", INTERRUPTED, form]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as python:
        assert python.stdout.readline() == "begun\n"
        time.sleep(0.2)
        python.send_signal(signal.SIGINT)
        said, _ = python.communicate(timeout=60)
        assert said.splitlines()[-1:] == ["interrupted"] and python.returncode == 0, said


FORKED = """
import os, bitnet
model = bitnet.Model.load("demo", device="cpu", threads=1)
stream = model.stream("O", max_tokens=200, ignore_eos=True, seed=1)
want = model.generate("O", max_tokens=8, seed=1)
child = os.fork()
if child == 0:
    for use in (lambda: model.generate("O"), lambda: next(stream), model.close):
        try:
            use()
            os._exit(1)
        except bitnet.BitnetError as error:
            assert "load the model in the process that uses it" in error.cure
    del stream, use
    with bitnet.Model.load("demo", device="cpu", threads=1) as own:
        assert own.generate("O", max_tokens=8, seed=1) == want
    del model
    print("forked")
else:
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    assert model.generate("O", max_tokens=8, seed=1) == want and len(stream.answer().tokens) == 200
    print("joined")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_refuses_its_copy_of_the_model_and_loads_its_own():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["forked", "joined"]), done.stdout + done.stderr
