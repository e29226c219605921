#!/usr/bin/env python3
"""Answers a file of requests with several engines, each a `bitnet serve` that Ray starts where it has room.

    pip install ray pyarrow
    deploy/ray/fleet.py IN.jsonl OUT.jsonl --model demo --engines 3

IN holds OpenAI batch lines (`custom_id`, `url`, `body`), or is Parquet with the columns custom_id, url and body (JSON),
or custom_id and prompt. When the run has ended, OUT has one line for each custom_id, in the order of IN. Until then the
answers are in OUT.part, and the same command resumes an interrupted run. A request without a seed gets one that is
derived from its custom_id, so that its answer depends neither on the engine nor on the number of attempts. An engine
that would answer differently (another model, version, cache type or device) is an error that names it.
"""
import argparse
import concurrent.futures
import hashlib
import http.client
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import ray

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import supervise
from supervise import Refused, address_of, agree, end_with_parent, parse

LATER = 429, 503
CURE = "use the program, model and flags of the first answers"


class Engine:
    """A server and the requests to it. If it dies, Ray restarts it and repeats the unfinished work."""

    def __init__(self, command, places):
        self.command, self.process, self.lock = command, None, threading.Lock()
        # Its threads live as long as the actor: a server is killed when the thread that started it ends.
        self.pool = concurrent.futures.ThreadPoolExecutor(places)
        self.start()

    def start(self):
        """Starts the server if none runs."""
        with self.lock:
            if self.process and self.process.poll() is None:
                return
            # The server must not outlive this process.
            self.process = subprocess.Popen(
                self.command, stderr=subprocess.PIPE, text=True, preexec_fn=end_with_parent
            )
            self.address = address_of(self.process, "the engine")
            threading.Thread(target=shutil.copyfileobj, args=(self.process.stderr, sys.stderr), daemon=True).start()

    def ask(self, url, body):
        """Sends a request; returns status and JSON. Waits while the server is full, and restarts it if it dies."""
        deaths = 0
        while True:
            try:
                connection = http.client.HTTPConnection(self.address, timeout=3600)
                connection.request("POST", url, json.dumps(body), {"content-type": "application/json"})
                answer = connection.getresponse()
                status, text = answer.status, answer.read()
            except (OSError, http.client.HTTPException) as problem:
                deaths += 1
                if deaths > 3:
                    message = f"the engine died {deaths} times: {problem}"
                    return 500, {"error": {"message": message, "code": "engine_lost"}}
                time.sleep(0.2)
                self.start()
                continue
            if status not in LATER:
                return status, json.loads(text)
            time.sleep(min(5, float(answer.headers.get("retry-after") or 1)))

    def identity(self):
        status, answer = self.ask("/v1/completions", {"prompt": [1], "max_tokens": 1, "temperature": 0})
        return answer["system_fingerprint"] if status == 200 else f"{status};;;"

    def answer(self, lines):
        """The answers to some lines, computed together."""
        answers = self.pool.map(lambda line: self.ask(line["url"], line["body"]), lines)
        return [(line["custom_id"], status, body) for line, (status, body) in zip(lines, answers)]

    def process_ids(self):
        return os.getpid(), self.process.pid


def parsed(path, number, text):
    try:
        return json.loads(text)
    except ValueError as problem:
        raise Refused(f"line {number} of {path} is not JSON: {problem}") from None


def read(path):
    """The lines of a file; those without a seed get one."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        rows = pyarrow.parquet.read_table(path).to_pylist()
        lines = [row if "body" in row else {**row, "body": {"prompt": row["prompt"]}} for row in rows]
    else:
        lines = [parsed(path, *line) for line in enumerate(path.read_text("utf-8").split("\n"), 1) if line[1].strip()]
    seen, ready = set(), []
    for number, line in enumerate(lines, 1):
        name, body = line.get("custom_id"), line.get("body")
        body = json.loads(body) if isinstance(body, str) else body
        if not isinstance(name, str) or not isinstance(body, dict):
            raise Refused(f"line {number} of {path} needs a custom_id and a body")
        if body.get("stream"):
            raise Refused(f"line {number} of {path}: answers are written whole; leave out stream")
        if name in seen:
            raise Refused(f"line {number} of {path}: custom_id {name!r} was there before")
        seen.add(name)
        seed = int(hashlib.sha256(name.encode()).hexdigest()[:12], 16)
        body = {"seed": seed, **body} if body.get("temperature") != 0 else body
        ready.append({"custom_id": name, "url": line.get("url") or "/v1/completions", "body": body})
    return ready


def recover(part):
    """Reads the answers of an earlier run, and removes an incomplete last line."""
    if not part.exists():
        return {}
    text = part.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        os.truncate(part, len(whole))
    return {answer["custom_id"]: answer for answer in map(json.loads, whole.splitlines())}


def line(name, status, body):
    response = {"status_code": status, "request_id": body.get("id", ""), "body": body}
    return {"id": f"batch_{name}", "custom_id": name, "response": response, "error": None}


def run(options):
    lines = read(options.input)
    part = options.output.with_name(options.output.name + ".part")
    done = recover(part)
    left = [line for line in lines if line["custom_id"] not in done]
    command = [options.binary, "serve", options.model, "--port", "0", "--log", "off", *options.flags]
    command += ["--threads", str(options.threads), "--max-batch-size", str(options.places)]
    remote = ray.remote(num_cpus=options.threads, max_restarts=-1, max_task_retries=-1)(Engine)
    engines = [remote.remote(command, options.places) for _ in range(options.engines)]
    identities = ray.get([engine.identity.remote() for engine in engines])
    prints = [answer["response"]["body"].get("system_fingerprint") for answer in done.values()]
    ours = next(filter(None, prints), identities[0])
    for number, identity in enumerate(identities, 1):
        agree(f"engine {number}", identity, ours, CURE)
    for number, pids in enumerate(ray.get([engine.process_ids.remote() for engine in engines]), 1):
        print(f"engine {number}: actor {pids[0]}, server {pids[1]}", flush=True)
    size = 4 * options.places
    chunks = [left[at : at + size] for at in range(0, len(left), size)]
    pool = ray.util.ActorPool(engines)
    with part.open("a") as out:
        for answers in pool.map_unordered(lambda engine, chunk: engine.answer.remote(chunk), chunks):
            for name, status, body in answers:
                # Ray may repeat a chunk, but each is yielded only once.
                assert name not in done, name
                # An engine that was restarted may have changed.
                if answered_by := body.get("system_fingerprint"):
                    agree(f"the engine that answered {name}", answered_by, ours, CURE)
                done[name] = line(name, status, body)
                out.write(json.dumps(done[name]) + "\n")
            out.flush()
            print(f"{len(done)} of {len(lines)}", flush=True)
    whole = options.output.with_name(options.output.name + ".tmp")
    whole.write_text("".join(json.dumps(done[line["custom_id"]]) + "\n" for line in lines))
    whole.rename(options.output)
    part.unlink(missing_ok=True)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("input", type=pathlib.Path)
    args.add_argument("output", type=pathlib.Path)
    args.add_argument("--model", required=True)
    args.add_argument("--engines", type=int, default=2, help="servers to start [2]")
    args.add_argument("--threads", type=int, default=1, help="threads of each, which Ray counts as its processors [1]")
    args.add_argument("--places", type=int, default=32, help="requests that one computes together [32]")
    args.add_argument("--binary", default="bitnet", help="the program, on every machine [bitnet]")
    args.add_argument("--address", help="a Ray cluster; without it, Ray is started on this machine")
    options = parse(args)
    options.binary = shutil.which(options.binary) or options.binary
    try:
        # Other machines need not have this folder.
        ray.cloudpickle.register_pickle_by_value(supervise)
        # Without a cluster, tell Ray that there are as many processors as the engines need.
        here = {"num_cpus": options.engines * options.threads, "include_dashboard": False}
        ray.init(options.address, logging_level="warning", **({} if options.address else here))
        run(options)
    except (Refused, OSError, ray.exceptions.RayError) as problem:
        sys.exit(f"error: {problem}")


if __name__ == "__main__":
    main()
