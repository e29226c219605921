"""Every form of asking gives the text that `bitnet run` prints."""

import json
import re
import shutil

import bitnet
import pytest
from conftest import ROOT

PROMPTS = ["First Citizen:", "ROMEO:\nO", "What is", "JULIET:"]


def same(answer, printed):
    want = {"tokens": printed["token_ids"], **{n: printed[n] for n in ("text", "finish_reason", "prompt_tokens", "seed")}}
    assert {name: getattr(answer, name) for name in want} == want


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 7},
        {"seed": 8, "temperature": 0},
        {"seed": 9, "temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1},
        {"seed": 1, "stop": ["\n"]},
        {"seed": (1 << 64) - 1, "max_tokens": 3},
    ],
)
def test_texts_are_those_of_bitnet_run(model, bitnet_run, options):
    options = {"max_tokens": 40, **options}
    flags = []
    for name, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            flags += [f"--{name.replace('_', '-')}", each]
    for prompt in PROMPTS[:2]:
        same(model.generate(prompt, **options), bitnet_run("demo", prompt, "--raw", *flags))
        chat = model.chat([{"role": "user", "content": prompt}], **options)
        same(chat, bitnet_run("demo", prompt, *flags))


def test_token_ids_and_conversations_are_prompts_too(model, bitnet_run):
    ids = model.tokenize("First Citizen:")
    assert model.generate(ids, max_tokens=20, seed=3) == model.generate("First Citizen:", max_tokens=20, seed=3)
    folder = ROOT / "fixtures/qwen3-unpacked"
    with bitnet.Model.load(folder, device="cpu", threads=1) as templated:
        said = [{"role": "user", "content": "Who goes there?"}]
        answer = templated.chat(said, max_tokens=12, seed=5)
        same(answer, bitnet_run(folder, "Who goes there?", "--max-tokens", 12, "--seed", 5))
        assert templated.generate(said, max_tokens=12, seed=5) == answer
        parts = [{"role": "user", "content": [{"type": "text", "text": "Who goes"}, {"type": "text", "text": " there?"}]}]
        assert templated.chat(parts, max_tokens=12, seed=5) == answer


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A folder with random weights, whose template opens a thought at the beginning of every answer."""
    folder = tmp_path_factory.mktemp("thinker")
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"):
        shutil.copy(ROOT / "fixtures/qwen3-unpacked" / name, folder)
    shutil.copy(ROOT / "fixtures/thinking/tokenizer.json", folder)
    shutil.copy(ROOT / "fixtures/thinking/templates/xml.jinja", folder / "chat_template.jinja")
    return folder


def test_thoughts_are_apart_from_the_text(thinker, bitnet_run):
    said = [{"role": "user", "content": "Why?"}]
    options = {"max_tokens": 160, "seed": 3}
    with bitnet.Model.load(thinker, device="cpu", threads=1) as model:
        answer = model.chat(said, thinking_budget=10, **options)
        printed = bitnet_run(thinker, "Why?", "--thinking", 10, "-n", 160, "--seed", 3)
        same(answer, printed)
        assert (answer.thought, answer.thought_tokens) == (printed["thought"], printed["thought_tokens"])
        assert answer.thought and answer.text and "think>" not in answer.text
        stream = model.stream(said, thinking_budget=10, **options)
        assert "".join(stream) == answer.text and stream.answer() == answer
        pieces = list(model.stream(said, thoughts=True, thinking_budget=10, **options))
        thoughts = [piece for piece in pieces if isinstance(piece, bitnet.Thought)]
        assert "".join(thoughts) == answer.thought
        assert "".join(pieces) == answer.thought + answer.text
        assert model.batch([said, said], thinking_budget=10, **options) == [answer, answer]
        for off in ({"thinking": False}, {"reasoning_effort": "none"}, {"thinking_budget": 0}):
            assert model.chat(said, **options, **off).thought == ""
        chosen = model.chat(said, thinking_budget=4, choice=["yes", "no"], **options)
        assert chosen.text in ("yes", "no") and chosen.thought
        with pytest.raises(bitnet.InvalidRequest, match="reasoning_effort"):
            model.chat(said, reasoning_effort="huge")
        turn = [*said, {"role": "assistant", "content": "So.", "reasoning_content": "Hm."}, *said]
        kept, dropped = (model.chat(turn, keep_thoughts=keep, max_tokens=1) for keep in (True, False))
        assert kept.prompt_tokens > dropped.prompt_tokens
        assert model.chat(turn, max_tokens=1).prompt_tokens == kept.prompt_tokens


def test_a_stream_gives_the_pieces_of_the_whole(model):
    whole = model.generate("First Citizen:", max_tokens=40, seed=7)
    stream = model.stream("First Citizen:", max_tokens=40, seed=7)
    pieces = list(stream)
    assert len(pieces) > 20 and "".join(pieces) == whole.text == str(whole)
    assert stream.answer() == whole and list(stream) == []
    stream = model.stream("First Citizen:", max_tokens=40, seed=7)
    assert whole.text.startswith(next(stream))
    assert stream.answer() == whole, "pieces that were taken are part of the answer"


def test_a_batch_gives_each_prompt_what_it_gets_alone(model):
    prompts = [*PROMPTS * 3, model.tokenize("O"), [{"role": "user", "content": "Who?"}]]
    alone = [model.generate(prompt, max_tokens=24, seed=i) for i, prompt in enumerate(prompts)]
    before = model.counts["steps"]
    together = model.batch([{"prompt": p, "seed": i} for i, p in enumerate(prompts)], max_tokens=24)
    assert together == alone
    assert model.counts["steps"] - before < 24 * len(prompts) / 3 and model.counts["largest_batch"] > 4


def test_an_error_in_a_batch_is_raised_or_returned_in_its_place(model):
    prompts = ["First Citizen:", [1 << 30], "ROMEO:"]
    with pytest.raises(bitnet.InvalidRequest, match="token 1073741824 at position 0"):
        model.batch(prompts, max_tokens=4, seed=1)
    first, error, last = model.batch(prompts, max_tokens=4, seed=1, return_errors=True)
    assert isinstance(error, bitnet.InvalidRequest) and error.cure == "correct the request"
    assert (first, last) == tuple(model.generate(prompts[i], max_tokens=4, seed=1) for i in (0, 2))


def test_texts_follow_a_schema_an_expression_or_a_choice(model):
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    for seed in range(3):
        for given in (schema, json.dumps(schema)):
            assert json.loads(str(model.generate("O", seed=seed, json_schema=given)))["ok"] in (True, False)
        assert re.fullmatch("[a-c]{3}[0-9]", str(model.generate("O", seed=seed, regex="[a-c]{3}[0-9]")))
        assert str(model.generate("O", seed=seed, choice=["yes", 'no "no"'])) in ("yes", 'no "no"')


def test_the_template_gets_its_variables_and_tools(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "fixtures/qwen3-unpacked", folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{{ messages[0].content }}{% if tools %}{{ tools[0].function.name }}{% endif %}"
        "{% if enable_thinking is defined %}{{ 'yes' if enable_thinking else 'no' }}{% endif %}"
        "{% for call in messages[0].tool_calls %}{{ call.function.arguments.x }}{% endfor %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tool = {"type": "function", "function": {"name": "look"}}
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"x": "far"}'}}
    with bitnet.Model.load(folder, device="cpu", threads=1) as model:

        def rendered(text, message=None, **options):
            said = [{"role": "user", "content": "abc", **(message or {})}]
            answer = model.chat(said, max_tokens=4, seed=1, **options)
            assert answer == model.generate(model.tokenize(text, special=False), max_tokens=4, seed=1)

        rendered("abc")
        rendered("abcyes", chat_template_kwargs={"enable_thinking": True})
        rendered("abcno", chat_template_kwargs={"enable_thinking": False})
        rendered("abclook", tools=[tool])
        rendered("abcfar", {"role": "assistant", "tool_calls": [call]})
        rendered("far", {"role": "assistant", "content": None, "tool_calls": [call]})
