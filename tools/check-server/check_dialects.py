#!/usr/bin/env python3
"""Talks to a running `bitnet serve` with the clients `openai`, `ollama` and `anthropic` from PyPI, unmodified: texts,
streams, tools and errors, and that each text is that of a chat with the same settings.

    bitnet serve demo --log off &
    pip install openai ollama anthropic && python check_dialects.py http://127.0.0.1:8080
"""
import json
import sys
from importlib.metadata import version

import anthropic
import ollama
import openai

from refusal import refused

SCHEMA = {
    "type": "object",
    "properties": {"to": {"type": "string", "enum": ["left", "right"]}, "steps": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["to", "steps"],
    "additionalProperties": False,
}
ASK = "Who goes there?"


def checked(name, arguments):
    assert name == "turn" and arguments["to"] in ("left", "right") and 1 <= arguments["steps"] <= 9, arguments
    return arguments


def chat(client, model):
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": ASK}], max_tokens=24, temperature=0.8, top_p=0.9, seed=7
    )
    return answer.choices[0].message.content, answer.usage


def responses(client, model, want, usage):
    settings = dict(model=model, input=ASK, max_output_tokens=24, temperature=0.8, top_p=0.9, extra_body={"seed": 7})
    answer = client.responses.create(**settings)
    assert answer.output_text == want and answer.usage.output_tokens == usage.completion_tokens
    with client.responses.create(**settings, stream=True) as stream:
        events = list(stream)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == want and events[-1].response.output_text == want, events[-1]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    tool = {"type": "function", "name": "turn", "parameters": SCHEMA, "strict": True}
    ask = dict(model=model, input=[{"role": "user", "content": "Go."}], tools=[tool], max_output_tokens=120)
    with client.responses.stream(**ask, tool_choice="required", parallel_tool_calls=False) as stream:
        deltas = sum(event.type == "response.function_call_arguments.delta" for event in stream)
        final = stream.get_final_response()
    [call] = final.output
    checked(call.name, call.parsed_arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    again = dict(ask, input=ask["input"] + [call.model_dump(exclude={"parsed_arguments"}), result], max_output_tokens=5)
    assert client.responses.create(**again).output
    problem = refused(lambda: client.responses.create(model=model, input="x", previous_response_id="resp_1"), openai.BadRequestError)
    assert "previous_response_id" in problem
    return f"{len(events)} events, {deltas} pieces of arguments"


def of_ollama(host, model, want):
    client = ollama.Client(host=host)
    assert model in [m.model for m in client.list().models]
    options = {"num_predict": 24, "temperature": 0.8, "top_p": 0.9, "seed": 7}
    messages = [{"role": "user", "content": ASK}]
    answer = client.chat(model=model, messages=messages, options=options)
    assert answer.message.content == want and answer.eval_count and answer.total_duration > 0
    parts = list(client.chat(model=model, messages=messages, options=options, stream=True))
    assert "".join(part.message.content for part in parts) == want and parts[-1].done_reason == answer.done_reason
    assert client.generate(model=model, prompt=ASK, options=options).response == want
    tool = {"type": "function", "function": {"name": "turn", "description": "Turns.", "parameters": SCHEMA}}
    said = client.chat(model=model, messages=[{"role": "user", "content": "Go."}], tools=[tool], options={"num_predict": 5, "seed": 1})
    assert said.message.content is not None
    formatted = client.generate(model=model, prompt="Go.", format=SCHEMA, options={"num_predict": 120, "seed": 1}).response
    checked("turn", json.loads(formatted))
    assert "context_length" in str(client.show(model).modelinfo)
    problem = refused(lambda: client.chat(model="other", messages=messages), ollama.ResponseError)
    assert "is not served here" in problem
    return f"{len(parts)} lines"


def of_anthropic(host, model, want, usage):
    client = anthropic.Anthropic(base_url=host, api_key="none", max_retries=0)
    ask = dict(model=model, messages=[{"role": "user", "content": ASK}], max_tokens=24)
    more = dict(extra_headers={"X-Seed": "7"}, extra_body={"temperature": 0.8, "top_p": 0.9})
    answer = client.messages.create(**ask, **more)
    assert answer.content[0].text == want and answer.usage.output_tokens == usage.completion_tokens
    with client.messages.stream(**ask, **more) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == want and final.stop_reason == answer.stop_reason and final.usage.input_tokens == usage.prompt_tokens
    tool = {"name": "turn", "description": "Turns.", "input_schema": SCHEMA}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    go = dict(model=model, messages=[{"role": "user", "content": "Go."}], tools=[tool], max_tokens=120)
    with client.messages.stream(**go, tool_choice=choice) as stream:
        message = stream.get_final_message()
    [call] = message.content
    checked(call.name, call.input)
    assert message.stop_reason == "tool_use"
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "done"}]}
    turns = go["messages"] + [{"role": "assistant", "content": [call.model_dump(include={"type", "id", "name", "input"})]}, result]
    assert client.messages.create(**dict(go, messages=turns, max_tokens=5)).content
    counted = client.messages.count_tokens(model=model, messages=ask["messages"]).input_tokens
    assert counted == usage.prompt_tokens
    problem = refused(lambda: client.messages.create(**dict(ask, model="other")), anthropic.NotFoundError)
    assert "is not served here" in problem
    return f"{counted} tokens counted"


def main():
    host = sys.argv[1]
    client = openai.OpenAI(base_url=f"{host}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    want, usage = chat(client, model)
    print(f"openai {version('openai')} responses: {responses(client, model, want, usage)}")
    print(f"ollama {version('ollama')}: {of_ollama(host, model, want)}")
    print(f"anthropic {version('anthropic')}: {of_anthropic(host, model, want, usage)}")
    problem = refused(lambda: client.embeddings.create(model=model, input="x"), openai.BadRequestError)
    print(f"embeddings: {problem}")


if __name__ == "__main__":
    main()
