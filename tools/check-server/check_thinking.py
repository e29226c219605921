#!/usr/bin/env python3
"""Leads conversations of three turns, with thoughts and tools, through unmodified clients, and prints a row for each.

    pip install openai openai-agents "pydantic-ai-slim[openai,anthropic]" anthropic ollama \\
        langchain-openai langchain-ollama langchain-anthropic
    npm install ai @ai-sdk/openai @ai-sdk/openai-compatible @ai-sdk/anthropic zod     # for the AI SDK
    python check_thinking.py target/release/bitnet [CLIENT...]

Starts `bitnet serve` on a fixture with random weights whose template opens a thought in every prompt. Budgets end its
thoughts, and required tools or, where an API cannot require one, a suitable seed bring its calls. A proxy in between records what clients send. Each
client must show a thought in every turn, call a tool and send its result, and get no error; the row says how often it
sent earlier thoughts back, and how many tokens of the last prompt were cached.
"""
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Literal

FIXTURES = Path(__file__).parents[2] / "fixtures"
SCHEMA = {
    "type": "object",
    "properties": {"to": {"type": "string", "enum": ["left", "right"]}, "steps": {"type": "integer", "enum": [1, 2, 3]}},
    "required": ["to", "steps"],
    "additionalProperties": False,
}
FUNCTION = {"type": "function", "function": {"name": "turn", "description": "Turns.", "parameters": SCHEMA}}
ASK = ["Go.", "Go on.", "And now?"]
SEEDS = range(1, 200)


def model_folder(folder):
    """A model with random weights, whose vocabulary has markers of thoughts and calls as tokens."""
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"):
        shutil.copy(FIXTURES / "qwen3-unpacked" / name, folder)
    shutil.copy(FIXTURES / "thinking/tokenizer.json", folder)
    shutil.copy(FIXTURES / "thinking/templates/xml.jinja", folder / "chat_template.jinja")
    config = json.loads((folder / "config.json").read_text())
    # Longer conversations than the fixture's; random weights know no positions.
    config["max_position_embeddings"] = 16384
    (folder / "config.json").write_text(json.dumps(config))


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a server, and keeps them with their answers."""

    daemon_threads = True

    def __init__(self, port):
        self.port, self.calls = port, []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        upstream = HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "accept-encoding")}
        upstream.request(self.command, self.path, body, headers | {"Host": f"127.0.0.1:{self.server.port}"})
        answer = upstream.getresponse()
        data = answer.read()
        self.server.calls.append((self.path, body.decode(), answer.status, data.decode()))
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = pass_on


class Talk:
    """What a client saw."""

    def __init__(self):
        self.thoughts, self.calls = [], 0

    def turned(self, arguments):
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        assert arguments["to"] in ("left", "right") and arguments["steps"] in (1, 2, 3), arguments
        self.calls += 1
        return "done"


def sent(value):
    """A value of a client as it goes back to the server, without what the client has added."""
    if isinstance(value, dict):
        return {name: sent(part) for name, part in value.items() if part is not None and not name.startswith("parsed")}
    if isinstance(value, list):
        return [sent(part) for part in value]
    return sent(value.model_dump()) if hasattr(value, "model_dump") else value


def of_openai_chat(url, model, talk):
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    messages = []
    for i, text in enumerate(ASK):
        messages.append({"role": "user", "content": text})
        for choice in ("required", "none"):
            with client.chat.completions.stream(
                model=model, messages=messages, tools=[FUNCTION], tool_choice=choice, seed=i, reasoning_effort="low",
                stream_options={"include_usage": True},
            ) as stream:  # fmt: skip
                message = stream.get_final_completion().choices[0].message
            talk.thoughts.append(message.reasoning_content)
            messages.append(sent(message))
            for call in message.tool_calls or []:
                result = talk.turned(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def of_openai_responses(url, model, talk):
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    tool = {"type": "function", "name": "turn", "description": "Turns.", "parameters": SCHEMA, "strict": True}
    items = []
    for i, text in enumerate(ASK):
        items.append({"role": "user", "content": text})
        for choice in ("required", "none"):
            with client.responses.create(
                model=model, input=items, tools=[tool], tool_choice=choice, store=False, stream=True,
                include=["reasoning.encrypted_content"], reasoning={"effort": "low", "summary": "auto"},
                parallel_tool_calls=False, extra_body={"seed": i},
            ) as stream:  # fmt: skip
                output = list(stream)[-1].response.output
            for item in output:
                items.append(sent(item))
                if item.type == "reasoning":
                    talk.thoughts.append(item.summary[0].text)
                if item.type == "function_call":
                    result = talk.turned(item.arguments)
                    items.append({"type": "function_call_output", "call_id": item.call_id, "output": result})


async def of_agents(url, model, talk, chat):
    import agents
    import openai
    from openai.types.shared import Reasoning

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    kind = agents.OpenAIChatCompletionsModel if chat else agents.OpenAIResponsesModel

    @agents.function_tool
    def turn(to: Literal["left", "right"], steps: Literal[1, 2, 3]) -> str:
        return talk.turned({"to": to, "steps": steps})

    more = {} if chat else {"response_include": ["reasoning.encrypted_content"], "store": False}
    reasoning = Reasoning(effort="low") if chat else Reasoning(effort="low", summary="auto")
    items = []
    for i, text in enumerate(ASK):
        settings = agents.ModelSettings(tool_choice="required", reasoning=reasoning, extra_body={"seed": i}, **more)
        agent = agents.Agent(name="walker", model=kind(model, client), tools=[turn], model_settings=settings)
        result = await agents.Runner.run(agent, items + [{"role": "user", "content": text}], max_turns=30)
        for item in result.new_items:
            if item.type == "reasoning_item":
                parts = (item.raw_item.content or []) + (item.raw_item.summary or [])
                talk.thoughts.append("".join(part.text for part in parts))
        items = result.to_input_list()
    await client.close()


async def of_pydantic(url, model, talk, anthropic):
    from pydantic import BaseModel
    from pydantic_ai import Agent
    from pydantic_ai.messages import ThinkingPart

    class Report(BaseModel):
        far: bool

    if anthropic:
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        client = AsyncAnthropic(base_url=url, api_key="none", max_retries=0)
        of = AnthropicModel(model, provider=AnthropicProvider(anthropic_client=client))
        more = {"anthropic_thinking": {"type": "adaptive"}, "max_tokens": 4000}
    else:
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        of = OpenAIChatModel(model, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
        more = {"openai_reasoning_effort": "low"}
    # A type of output is a tool that must be called in the end; with Anthropic's thinking, calls are never forced.
    agent = Agent(of, output_type=str if anthropic else Report, retries=20)

    @agent.tool_plain
    def turn(to: Literal["left", "right"], steps: Literal[1, 2, 3]) -> str:
        return talk.turned({"to": to, "steps": steps})

    history = []
    for text in ASK:
        for seed in SEEDS:
            before = talk.calls
            settings = {"extra_headers": {"X-Seed": str(seed)}, **more}
            result = await agent.run(text, message_history=history, model_settings=settings)
            if talk.calls > before:
                break
        for message in result.new_messages():
            talk.thoughts += [part.content for part in message.parts if isinstance(part, ThinkingPart)]
        history = result.all_messages()


def of_langchain(url, model, talk, kind):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def turn(to: Literal["left", "right"], steps: Literal[1, 2, 3]) -> str:
        """Turns."""
        return talk.turned({"to": to, "steps": steps})

    def chat(seed):
        if kind == "openai":
            from langchain_openai import ChatOpenAI

            return ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="none", seed=seed, max_retries=0)
        if kind == "ollama":
            from langchain_ollama import ChatOllama

            return ChatOllama(model=model, base_url=url, reasoning=True, seed=seed)
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(
            model=model, base_url=url, api_key="none", max_retries=0, max_tokens=4000, default_headers={"X-Seed": str(seed)},
            thinking={"type": "enabled", "budget_tokens": 1024},
        )  # fmt: skip

    def thought(message):
        blocks = [block.get("reasoning", "") for block in message.content_blocks if block["type"] == "reasoning"]
        return "".join(blocks)

    messages = []
    for text in ASK:
        messages.append(HumanMessage(text))
        for wanted in (True, False):
            for seed in SEEDS:
                bound = chat(seed).bind_tools([turn], **({"tool_choice": "required"} if kind == "openai" and wanted else {}))
                message = bound.invoke(messages)
                if bool(message.tool_calls) == wanted:
                    break
            if bool(message.tool_calls) != wanted:
                continue
            messages.append(message)
            if kind != "openai":
                talk.thoughts.append(thought(message))
            for call in message.tool_calls:
                messages.append(ToolMessage(turn.invoke(call["args"]), tool_call_id=call["id"]))


def of_anthropic(url, model, talk):
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    cached = {"cache_control": {"type": "ephemeral"}}
    tool = {"name": "turn", "description": "Turns.", "input_schema": SCHEMA, **cached}
    messages = []
    for i, text in enumerate(ASK):
        messages.append({"role": "user", "content": [{"type": "text", "text": text, **cached}]})
        for choice in ("any", "none"):
            # As Claude Code sends it.
            with client.beta.messages.stream(
                model=model, max_tokens=4000, messages=messages, tools=[tool], tool_choice={"type": choice},
                system=[{"type": "text", "text": "You are an agent.", **cached}],
                betas=["interleaved-thinking-2025-05-14", "context-management-2025-06-27"],
                thinking={"type": "adaptive"} if i else {"type": "enabled", "budget_tokens": 1024},
                context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
                output_config={"effort": "high"}, metadata={"user_id": "user_1_account__session_2"},
                extra_headers={"X-Seed": str(i)},
            ) as stream:  # fmt: skip
                message = stream.get_final_message()
            assert message.content[0].type == "thinking" and message.content[0].signature, message
            talk.thoughts.append(message.content[0].thinking)
            messages.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": talk.turned(block.input)}
                for block in message.content
                if block.type == "tool_use"
            ]
            if results:
                messages.append({"role": "user", "content": results})
    assert client.messages.count_tokens(model=model, messages=messages[:1], tools=[tool]).input_tokens


def of_ollama(url, model, talk):
    import ollama

    client = ollama.Client(host=url)
    assert "thinking" in client.show(model).capabilities
    messages = []
    for i, text in enumerate(ASK):
        messages.append({"role": "user", "content": text})
        for wanted in (True, False):
            for seed in SEEDS:
                think = [True, "low", "high"][i]
                answer = client.chat(
                    model=model, messages=messages, tools=[FUNCTION], think=think, options={"seed": seed}
                )
                if bool(answer.message.tool_calls) == wanted:
                    break
            if bool(answer.message.tool_calls) != wanted:
                continue
            talk.thoughts.append(answer.message.thinking)
            messages.append(answer.message)
            for call in answer.message.tool_calls or []:
                result = talk.turned(call.function.arguments)
                messages.append({"role": "tool", "tool_name": call.function.name, "content": result})


def of_ai_sdk(url, model, talk, kind):
    script = Path(__file__).with_name("check_thinking.mjs")
    done = subprocess.run(["node", script, url, model, kind], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    # The SDK prints its own notes first.
    seen = json.loads(done.stdout.splitlines()[-1])
    talk.thoughts = seen["thoughts"]
    for call in seen["calls"]:
        talk.turned(call)
    return seen["version"]


CLIENTS = {
    "openai, chat": ("openai", of_openai_chat),
    "openai, responses": ("openai", of_openai_responses),
    "openai-agents, chat": ("openai-agents", lambda *a: asyncio.run(of_agents(*a, True))),
    "openai-agents, responses": ("openai-agents", lambda *a: asyncio.run(of_agents(*a, False))),
    "pydantic-ai, chat": ("pydantic-ai-slim", lambda *a: asyncio.run(of_pydantic(*a, False))),
    "pydantic-ai, Anthropic": ("pydantic-ai-slim", lambda *a: asyncio.run(of_pydantic(*a, True))),
    "LangChain, ChatOpenAI": ("langchain-openai", lambda *a: of_langchain(*a, "openai")),
    "LangChain, ChatOllama": ("langchain-ollama", lambda *a: of_langchain(*a, "ollama")),
    "LangChain, ChatAnthropic": ("langchain-anthropic", lambda *a: of_langchain(*a, "anthropic")),
    "anthropic, as Claude Code": ("anthropic", of_anthropic),
    "ollama": ("ollama", of_ollama),
    "AI SDK, openai-compatible": (None, lambda *a: of_ai_sdk(*a, "compatible")),
    "AI SDK, openai (responses)": (None, lambda *a: of_ai_sdk(*a, "responses")),
    "AI SDK, anthropic": (None, lambda *a: of_ai_sdk(*a, "anthropic")),
}
# ChatOpenAI drops what OpenAI's own API does not have.
WITHOUT_THOUGHTS = {"LangChain, ChatOpenAI"}


def row(name, url, model, proxy):
    package, check = CLIENTS[name]
    talk = Talk()
    proxy.calls.clear()
    npm = check(url, model, talk)
    posts = [call for call in proxy.calls if call[0].split("?")[0] not in ("/api/show", "/api/tags")]
    errors = [(path, status, answer[:300]) for path, _, status, answer in posts if status != 200]
    assert not errors, errors
    assert talk.calls, "no call"
    last = max(posts, key=lambda call: len(call[1]))
    if name not in WITHOUT_THOUGHTS:
        assert len(talk.thoughts) >= 4 and all(talk.thoughts), talk.thoughts
    text = json.dumps(json.loads(last[1]), ensure_ascii=False)
    parts = [json.dumps(thought, ensure_ascii=False)[1:-1] for thought in talk.thoughts]
    back = sum(part in text for part in parts)
    cached = re.findall(r'"(?:cached_tokens|cache_read_input_tokens)": ?(\d+)', last[3])
    cached = cached[-1] if cached else "-"
    return f"| {name} | {npm or version(package)} | {talk.calls} | {len(talk.thoughts)} | {back} | {cached} |"


def main():
    program, names = os.path.abspath(sys.argv[1]), sys.argv[2:] or list(CLIENTS)
    with tempfile.TemporaryDirectory() as folder:
        model_folder(Path(folder))
        command = [program, "serve", folder, "--port", "0", "--device", "cpu", "--name", "thinker", "--log", "off"]
        command += ["--thinking-budget", "24", "--thinking-last-words", "\nEnough."]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            port = next(int(m[1]) for line in server.stdout if (m := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
            threading.Thread(target=server.stdout.read, daemon=True).start()
            proxy = Proxy(port)
            print("| client | version | calls | thoughts | sent back | cached |\n|---|---|---|---|---|---|")
            failed = False
            for name in names:
                try:
                    print(row(name, f"http://127.0.0.1:{proxy.server_port}", "thinker", proxy), flush=True)
                except Exception as error:
                    failed = True
                    print(f"| {name} | FAILED | {type(error).__name__}: {str(error)[:1500]} |", flush=True)
            sys.exit(failed)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
