#!/usr/bin/env python3
"""Calls tools through a running `bitnet serve demo` with the `openai` client from PyPI, unmodified.

    bitnet serve demo --log off &
    pip install openai && python check_tools.py http://127.0.0.1:8080/v1
"""
import json
import sys

import openai

TURN = {
    "type": "function",
    "function": {
        "name": "turn",
        "description": "Turns.",
        "parameters": {
            "type": "object",
            "properties": {"to": {"enum": ["left", "right"]}, "steps": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["to", "steps"],
            "additionalProperties": False,
        },
    },
}
STOP = {"type": "function", "function": {"name": "stop"}}
ASK = dict(model="demo", messages=[{"role": "user", "content": "Go."}], max_tokens=150)


def checked(call):
    arguments = json.loads(call.function.arguments)
    if call.function.name == "stop":
        assert arguments == {}, arguments
    else:
        assert call.function.name == "turn" and arguments["to"] in ("left", "right") and 1 <= arguments["steps"] <= 9
    return call.function.name, arguments


def whole(client):
    for seed in range(8):
        required = client.chat.completions.create(
            **ASK, tools=[TURN, STOP], tool_choice="required", parallel_tool_calls=False, seed=seed
        )
        choice = required.choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
        [call] = choice.message.tool_calls
        checked(call)
        named = {"type": "function", "function": {"name": "turn"}}
        choice = client.chat.completions.create(**ASK, tools=[TURN, STOP], tool_choice=named, seed=seed).choices[0]
        assert [checked(call)[0] for call in choice.message.tool_calls] == ["turn"]
    free = client.chat.completions.create(**{**ASK, "max_tokens": 20}, tools=[TURN, STOP], seed=1)
    assert free.choices[0].finish_reason in ("stop", "length") and free.choices[0].message.tool_calls is None


def streamed(client):
    for seed in range(4):
        ask = dict(tools=[TURN], tool_choice="required", parallel_tool_calls=False, seed=seed)
        with client.chat.completions.stream(**ASK, **ask) as stream:
            deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
            final = stream.get_final_completion().choices[0]
        [call] = final.message.tool_calls
        assert final.finish_reason == "tool_calls" and len(deltas) > 2
        same = client.chat.completions.create(**ASK, **ask).choices[0].message.tool_calls[0]
        assert checked(call) == checked(same)


def answered(client):
    """An agent's loop: the model calls, the client answers, the model continues."""
    messages = list(ASK["messages"])
    for turn in range(2):
        message = client.chat.completions.create(
            **{**ASK, "messages": messages}, tools=[STOP], tool_choice="required", parallel_tool_calls=False, seed=turn
        ).choices[0].message
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in message.tool_calls]
    last = client.chat.completions.create(**{**ASK, "messages": messages, "max_tokens": 5})
    assert last.choices[0].message.content


def main():
    client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
    whole(client)
    streamed(client)
    answered(client)
    print(f"openai {openai.__version__}: all calls as expected")


if __name__ == "__main__":
    main()
