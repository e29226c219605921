#!/usr/bin/env python3
"""Sends requests to a running `bitnet serve demo` with the `openai` client from PyPI, unmodified.

    bitnet serve demo --api-key key --max-batch-size 1 --max-queued-requests 4 --log off &
    pip install openai && python check_openai.py http://127.0.0.1:8080/v1 key
"""
import json
import sys
import threading

import openai
from pydantic import BaseModel


def text_of(stream):
    return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)


def completions(client):
    ask = dict(model="demo", prompt="First Citizen:", max_tokens=20, seed=7, temperature=0.9)
    whole = client.completions.create(**ask)
    assert whole.object == "text_completion" and whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert client.completions.create(**ask).choices[0].text == whole.choices[0].text
    assert text_of(client.completions.create(**ask, stream=True)) == whole.choices[0].text

    raw = client.completions.with_raw_response.create(**ask)
    assert raw.headers["x-seed"] == "7" and raw.headers["x-request-id"]
    assert raw.parse().choices[0].text == whole.choices[0].text

    several = client.completions.create(**{**ask, "n": 3})
    assert [c.index for c in several.choices] == [0, 1, 2]
    assert several.choices[0].text == whole.choices[0].text
    ids = client.completions.create(**{**ask, "prompt": [[1, 2, 3], [4, 5]]})
    assert len(ids.choices) == 2

    stop = whole.choices[0].text[6:9]
    cut = client.completions.create(**ask, stop=[stop])
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].text == whole.choices[0].text.split(stop)[0]

    told = client.completions.create(**ask, logprobs=2).choices[0].logprobs
    assert "".join(told.tokens) == whole.choices[0].text
    assert all(len(top) == 2 for top in told.top_logprobs) and len(told.text_offset) == len(told.tokens)

    biased = client.completions.create(**ask, logit_bias={"10": -100}, presence_penalty=0.5, frequency_penalty=0.5)
    assert biased.choices[0].text


class Person(BaseModel):
    name: str
    age: int


def chats(client):
    ask = dict(model="demo", messages=[{"role": "user", "content": "Who goes there?"}], seed=3)
    whole = client.chat.completions.create(**ask, max_tokens=12)
    assert whole.choices[0].message.role == "assistant"
    chunks = list(
        client.chat.completions.create(
            **ask, max_completion_tokens=12, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage

    several = client.chat.completions.create(**ask, n=2, max_tokens=5, logprobs=True, top_logprobs=3)
    for choice in several.choices:
        assert "".join(t.token for t in choice.logprobs.content) == choice.message.content
        assert all(len(t.top_logprobs) == 3 for t in choice.logprobs.content)

    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": schema}}
    person = client.chat.completions.create(**ask, max_tokens=200, response_format=form)
    Person.model_validate_json(person.choices[0].message.content)
    mode = client.chat.completions.create(**ask, max_tokens=300, response_format={"type": "json_object"})
    if mode.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(mode.choices[0].message.content), dict)
    with client.chat.completions.stream(**ask, max_tokens=8) as stream:
        assert "".join(event.delta for event in stream if event.type == "content.delta")


def raises(kind, param, call):
    try:
        call()
    except kind as error:
        assert param is None or error.body["param"] == param, error.body
        return error
    raise AssertionError(f"no {kind.__name__}")


def errors(client, base, key):
    ask = dict(model="demo", prompt="x", max_tokens=1)
    create = client.completions.create
    raises(openai.BadRequestError, "temperature", lambda: create(**ask, temperature=-1))
    raises(openai.BadRequestError, "suffix", lambda: create(**ask, suffix="y"))
    raises(openai.BadRequestError, "foo", lambda: create(**ask, extra_body={"foo": 1}))
    raises(openai.BadRequestError, "prompt", lambda: create(**{**ask, "prompt": "x " * 4000}))
    raises(openai.NotFoundError, "model", lambda: create(**{**ask, "model": "gpt-4"}))
    raises(openai.NotFoundError, "model", lambda: client.models.retrieve("gpt-4"))
    wrong = openai.OpenAI(base_url=base, api_key=key + "x", max_retries=0)
    raises(openai.AuthenticationError, None, lambda: wrong.models.list())
    messages = [{"role": "user", "content": "x"}]
    tools = [{"type": "custom", "custom": {"name": "f"}}]
    chat = client.chat.completions.create
    raises(openai.BadRequestError, "tools[0].type", lambda: chat(model="demo", messages=messages, tools=tools))
    try:
        late = create(**{**ask, "max_tokens": 1500}, extra_body={"ignore_eos": True}, extra_headers={"X-Deadline-Ms": "1"})
        assert late.choices[0].stop_reason == "deadline", late
    except openai.APIStatusError as error:
        # Not even a token was ready.
        assert error.code == "deadline", error.body


def overload(client):
    """With one place in the batch and four in the queue, some of many simultaneous requests get a time to retry."""
    outcomes = []

    def ask():
        try:
            client.completions.create(
                model="demo", prompt="O", max_tokens=450, extra_body={"ignore_eos": True}
            )
            outcomes.append("answered")
        except openai.RateLimitError as error:
            assert int(error.response.headers["retry-after"]) >= 1
            outcomes.append("refused")

    threads = [threading.Thread(target=ask) for _ in range(24)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(outcomes) == 24 and {"answered", "refused"} == set(outcomes), outcomes


def main():
    base, key = sys.argv[1], sys.argv[2]
    client = openai.OpenAI(base_url=base, api_key=key, max_retries=0)
    assert [m.id for m in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"
    completions(client)
    chats(client)
    errors(client, base, key)
    overload(client)
    print(f"openai {openai.__version__}: all answers as expected")


if __name__ == "__main__":
    main()
