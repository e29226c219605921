#!/usr/bin/env python3
"""A worker for NVIDIA Dynamo: one `bitnet serve`, which Dynamo's front end reaches through this adapter.

    deploy/dynamo/worker.py demo --binary target/release/bitnet -- --threads 4      # flags after -- go to bitnet

Tokens come in as ids and go out as ids. A request that moves here from another worker arrives with the tokens that it
already has at the end of its prompt, and continues with exactly the tokens that it would have had there: logits depend
on the tokens before and nothing else, and random numbers on the seed and the position. What would not continue exactly
is refused by name. A worker that would answer differently from those that run (another version, model, cache type or
device) does not join.
"""
import argparse
import asyncio
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import aiohttp
from dynamo.common.backend.engine import EngineConfig, LLMEngine, LlmRegistration
from dynamo.common.backend.run import run
from dynamo.common.backend.worker import WorkerConfig
from dynamo.llm.exceptions import Disconnected, DynamoException, HttpError, InvalidArgument, Unknown
from dynamo.runtime import DistributedRuntime

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from supervise import Refused, address_of, agree, end_with_parent, parse

ASKS = "bitnet_identity"
CURE = "give all workers the same program, model and flags"
# Marks the link that travels with a request that moves: Dynamo passes the last link of the old worker to the new one.
MARK = b"bitnet".hex().ljust(32, "0")
PENALTIES = "presence_penalty", "frequency_penalty"
SAMPLING = "temperature", "top_p", "top_k", "min_p", "repetition_penalty", *PENALTIES
# What is not offered, the values that ask for nothing, and what to do.
REFUSED = {
    "n": (1, "send several requests"),
    "best_of": (1, "send several requests"),
    "use_beam_search": (False, "beams are not supported"),
    "length_penalty": (1, "beams are not supported"),
    "include_stop_str_in_output": (False, "stop strings are never returned"),
}


class Server:
    """`bitnet serve`, which ends with this process."""

    def __init__(self, command):
        # In a session of its own, so that Ctrl-C reaches only this process, which lets requests finish.
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, preexec_fn=end_with_parent, start_new_session=True
        )
        self.address = address_of(self.process, "the server")
        self.wanted = True
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        """Passes on what the server says, and ends this process, in order, if the server ends."""
        shutil.copyfileobj(self.process.stderr, sys.stderr)
        self.process.wait()
        if self.wanted:
            print(f"error: the server ended with {self.process.returncode}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)

    async def open(self):
        """Connects, and reads the identity, the name and the context of the model."""
        key = os.environ.get("BITNET_API_KEY")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = dict(timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0))
        self.http = aiohttp.ClientSession(f"http://{self.address}", headers=headers, **limits)
        while True:
            async with self.http.get("/ready") as answer:
                if answer.status == 200:
                    break
            await asyncio.sleep(0.05)
        body = {"prompt": [1], "max_tokens": 1, "temperature": 0}
        async with self.http.post("/v1/completions", json=body) as answer:
            self.identity = (await answer.json())["system_fingerprint"]
        async with self.http.get("/v1/models") as answer:
            card = (await answer.json())["data"][0]
        self.name, self.context = card["id"], card["max_model_len"]
        async with self.http.get("/tokenizer_info") as answer:
            self.chats = (await answer.json()).get("chat_template") is not None

    async def close(self):
        self.wanted = False
        await self.http.close()
        if self.process.poll() is None:
            self.process.terminate()
        await asyncio.to_thread(self.process.wait)


def begun(request):
    """How many of a request's tokens another worker has generated; None if nobody knows."""
    link = request.get("migration_link")
    if link and link["trace_id"] != MARK:
        return None
    return len(request["token_ids"]) - int(link["span_id"], 16) if link else 0


def form(guided):
    """The fields that make the answer follow a form."""
    if guided.get("json") is not None:
        schema = guided["json"]
        schema = json.loads(schema) if isinstance(schema, str) else schema
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}
    for name in "regex", "choice":
        if guided.get(name) is not None:
            return {f"guided_{name}": guided[name]}
    raise InvalidArgument("guided_decoding: not behind Dynamo in this form: use a JSON schema, a regex or a choice")


def asked(request, name, context):
    """The body for `/v1/completions` of a request that Dynamo has tokenised."""
    sampling, stops = request.get("sampling_options") or {}, request.get("stop_conditions") or {}
    output = request.get("output_options") or {}
    for field, (nothing, cure) in REFUSED.items():
        if sampling.get(field) not in (None, nothing):
            raise InvalidArgument(f"{field}: not behind Dynamo: {cure}")
    if output.get("prompt_logprobs") is not None:
        raise InvalidArgument("prompt_logprobs: not behind Dynamo: ask a server directly, with echo")
    if (output.get("logprobs") or 0) > 0:
        raise InvalidArgument("logprobs: behind Dynamo, only 0, or top_logprobs 0 in a chat: no other likely tokens")
    body = {field: sampling[field] for field in SAMPLING if sampling.get(field) is not None}
    generated = begun(request)
    if generated is None:
        if asks := [field for field in PENALTIES if body.get(field)]:
            raise InvalidArgument(f"{asks[0]}: this request cannot move to another worker while Dynamo traces requests")
        generated = 0
    if body.get("top_k") == -1:
        body["top_k"] = 0
    if output.get("logprobs") is not None:
        body["logprobs"] = 0
    if sampling.get("guided_decoding"):
        body |= form(sampling["guided_decoding"])
    # Another worker must draw the same numbers if the request moves there, where only its id is the same.
    drawn = int(hashlib.sha256(name.encode()).hexdigest()[:12], 16)
    body["seed"] = drawn if sampling.get("seed") is None else sampling["seed"]
    # The front end looks for stop strings: it keeps its state when a request moves.
    body["stop_token_ids"] = (stops.get("stop_token_ids") or []) + (stops.get("stop_token_ids_hidden") or [])
    body |= {"ignore_eos": True} if stops.get("ignore_eos") else {}
    # Dynamo counts from here, the server from the beginning of the answer.
    rest = max(0, context - len(request["token_ids"]))
    body["max_tokens"] = generated + (rest if stops.get("max_tokens") is None else stops["max_tokens"])
    if stops.get("min_tokens"):
        body["min_tokens"] = generated + stops["min_tokens"]
    if generated:
        body["generated_tokens"] = generated
    return body | {"prompt": request["token_ids"], "stream": True, "return_token_ids": True}


def chunk(event, link):
    """What Dynamo is given for an event of the stream."""
    if error := event.get("error"):
        # Another worker continues what a server could not finish because it ended.
        raise (Disconnected if error["code"] == "stopped" else Unknown)(error["message"])
    choice = event["choices"][0]
    out = {"token_ids": choice["token_ids"], "index": 0, "worker_trace_link": link}
    if choice["logprobs"]:
        out["log_probs"] = choice["logprobs"]["token_logprobs"]
    if choice["finish_reason"]:
        out["finish_reason"] = choice["finish_reason"]
    return out


def hang_up(post):
    """Ends a request, whether or not its answer has begun."""
    if not post.cancel() and not post.cancelled() and not post.exception():
        post.result().close()


class Engine(LLMEngine):
    def __init__(self, server, folder):
        self.server, self.folder, self.running = server, folder, 0

    @classmethod
    async def from_args(cls, argv=None):
        """Starts the server, and refuses to go on where it does not fit in."""
        options = arguments()
        server = Server([options.binary, "serve", options.model, "--port", "0", *options.flags])
        await server.open()
        await agree_with_peers(options, server)
        folder = described(options, server.identity)
        config = WorkerConfig(
            namespace=options.namespace,
            model_name=folder,
            served_model_name=server.name,
            endpoint_types="chat,completions" if server.chats else "completions",
            discovery_backend=options.discovery,
            event_plane="zmq",
            enable_kv_routing=False,
        )
        print(f"serves {server.identity} at {server.address}, server process {server.process.pid}", flush=True)
        return cls(server, folder), config

    async def start(self, worker_id):
        llm = LlmRegistration(context_length=self.server.context, kv_cache_block_size=16)
        about = {"identity": self.server.identity}
        return EngineConfig(model=self.folder, served_model_name=self.server.name, runtime_data=about, llm=llm)

    async def send(self, body):
        """Posts a request. One that began at another worker is not refused: it waits until the queue has room."""
        while True:
            answer = await self.server.http.post("/v1/completions", json=body)
            if answer.status != 429 or not body.get("generated_tokens"):
                return answer
            wait = float(answer.headers.get("Retry-After") or 1)
            answer.release()
            await asyncio.sleep(min(5, wait))

    async def generate(self, request, context):
        if ASKS in (request.get("annotations") or []):
            about = {"identity": self.server.identity}
            yield {"token_ids": [], "index": 0, "finish_reason": "stop", "engine_data": about}
            return
        body = asked(request, context.id(), self.server.context)
        generated = body.get("generated_tokens", 0)
        prompt = len(body["prompt"]) - generated
        if generated and len(body["prompt"]) >= min(self.server.context, prompt + body["max_tokens"]):
            # The old worker ended between the last token and the end.
            yield {"token_ids": [], "index": 0, "finish_reason": "length"}
            return
        link = {"trace_id": MARK, "span_id": f"{prompt:016x}"}
        post = asyncio.ensure_future(self.send(body))
        gone = asyncio.ensure_future(context.async_killed_or_stopped())
        gone.add_done_callback(lambda _: hang_up(post))
        self.running += 1
        try:
            async with await post as answer:
                if answer.status != 200:
                    message = (await answer.json())["error"]["message"]
                    # Another worker answers what this one cannot because it ends.
                    known = {400: InvalidArgument, 503: Disconnected}.get(answer.status)
                    raise known(message) if known else HttpError(answer.status, message)
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        yield chunk(json.loads(line[6:]), link)
            raise Disconnected("the server has ended")
        except (aiohttp.ClientError, asyncio.CancelledError) as problem:
            if not context.is_stopped():
                raise Disconnected(f"the server has ended: {problem}") from None
            yield {"token_ids": [], "index": 0, "finish_reason": "cancelled"}
        finally:
            self.running -= 1
            gone.cancel()

    async def cleanup(self):
        while self.running:
            await asyncio.sleep(0.02)
        await self.server.close()


async def agree_with_peers(options, server):
    """Refuses to join workers that would answer differently."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), options.discovery, "tcp", event_plane="zmq")
    client = await runtime.endpoint(f"{options.namespace}.backend.generate").client()
    # By then they are known. Two that start at once do not see each other, but the front end takes only one of them.
    await asyncio.sleep(1)
    for peer in client.instance_ids():
        try:
            async with asyncio.timeout(5):
                async for told in await client.direct({"token_ids": [1], "annotations": [ASKS]}, peer, annotated=False):
                    theirs = (told.get("engine_data") or {}).get("identity", "another program;;;")
                    agree("this worker", server.identity, theirs, CURE)
        except (DynamoException, TimeoutError):
            continue  # It has just died.


FILES = "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"


def described(options, identity):
    """A folder with the tokenizer and the configuration, for Dynamo's front end. Its contents decide its path."""
    source = pathlib.Path(options.tokenizer or options.model)
    with tempfile.TemporaryDirectory() as scratch:
        if options.model == "demo" and not options.tokenizer:
            source = pathlib.Path(scratch) / "demo"
            subprocess.run([options.binary, "-q", "convert", "demo", source, "--to", "packed"], check=True)
        files = {name: (source / name).read_bytes() for name in FILES if (source / name).is_file()}
    if "tokenizer.json" not in files:
        raise Refused(f"{source} has no tokenizer.json: name the folder that has it with --tokenizer")
    # Dynamo's front end turns away workers with another configuration.
    files["config.json"] = json.dumps(json.loads(files["config.json"]) | {"bitnet": identity}).encode()
    name = hashlib.sha256(b"".join(name.encode() + files[name] for name in sorted(files))).hexdigest()[:16]
    folder = pathlib.Path(options.folder) / name
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        part = folder / f"{name}.{os.getpid()}"
        part.write_bytes(text)
        part.rename(folder / name)
    return str(folder)


def arguments():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("model")
    args.add_argument("--tokenizer", help="folder with tokenizer.json and config.json [MODEL]")
    args.add_argument("--binary", default="bitnet", help="the program [bitnet]")
    args.add_argument("--namespace", default="bitnet", help="Dynamo's name for the set of workers [bitnet]")
    args.add_argument("--discovery", default="file", help="file (in the folder DYN_FILE_KV), etcd or kubernetes [file]")
    args.add_argument("--folder", default="/tmp/bitnet-dynamo", help="for the tokenizer; the same on all hosts")
    return parse(args)


if __name__ == "__main__":
    try:
        run(Engine)
    except (Refused, OSError) as problem:
        sys.exit(f"error: {problem}")
