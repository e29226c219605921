#!/usr/bin/env python3
"""Starts NVIDIA Dynamo's front end and several workers, each a `bitnet serve`.

    deploy/dynamo/cluster.py demo --workers 2 --port 8080
    deploy/dynamo/cluster.py demo --workers 2 -- --kv int8    # flags after -- go to bitnet

Run it with a Python 3.11 or newer that has Dynamo's packages; deploy/README.md says how to install them. SIGHUP
restarts the workers one after another, each after its requests have ended. SIGTERM and Ctrl-C let everything finish and
end. A worker that dies is started again, and its streams go on at another one.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from supervise import OWN, Cluster, Member, Refused, keep, noted, parse

# Everything stays on this machine, and nothing is looked up elsewhere. What the environment has goes before.
LOCAL = {
    "HF_HUB_OFFLINE": "1",
    "DYN_TCP_RPC_HOST": "127.0.0.1",
    "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
    "DYN_EVENT_PLANE_HOST": "127.0.0.1",
    "DYN_SELF_HOST_METADATA": "0",
    "DYN_LOG": "warn,mm_routing=off",
    # A worker that ends takes requests for as long as the front end may still send them.
    "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "2",
    "DYN_HTTP_OVERLOAD_STATUS_CODE": "429",
    # A stream that is refused before its first token gets the status of the refusal.
    "DYN_HTTP_PRE_COMMIT_ERROR_PEEK_MS": "20000",
}


class Worker(Member):
    """`worker.py`, and the server that it starts."""

    def __init__(self, name, command, env):
        super().__init__(name)
        self.command, self.env = command, env

    def start(self):
        with noted():
            self.process = subprocess.Popen(self.command, env=self.env, stdout=subprocess.PIPE, text=True, **OWN)
        for line in self.process.stdout:
            if found := re.match(r"serves (\S+) at (\S+), server process (\d+)", line):
                self.identity, host, server = found.groups()
                break
        else:
            raise Refused(f"{self.name} ended with exit code {self.process.wait()}")
        threading.Thread(target=shutil.copyfileobj, args=(self.process.stdout, sys.stdout), daemon=True).start()
        print(f"{self.name} is {host}, process {self.process.pid}, server process {server}", flush=True)


class Workers(Cluster):
    kind, front_name = "workers", "the front end"

    def __init__(self, options, folder):
        env = LOCAL | {"DYN_FILE_KV": str(folder / "discovery")} | os.environ
        env["DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT"] = str(options.drain)
        env["DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS"] = str(options.drain)
        self.address = f"http://{options.host}:{options.port}"
        threads = options.threads or max(1, (os.cpu_count() or 1) // options.workers)
        command = [sys.executable, pathlib.Path(__file__).with_name("worker.py"), options.model]
        command += ["--binary", options.binary, "--folder", folder / "tokenizers", "--"]
        command += ["--threads", str(threads), "--max-batch-size", str(options.places)]
        command += ["--max-queued-requests", str(options.queue), *options.flags]
        self.front = None
        self.own = [Worker(f"worker{i + 1}", command, env) for i in range(options.workers)]
        front = [sys.executable, "-m", "dynamo.frontend", "--http-host", options.host, "--http-port", str(options.port)]
        front += ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
        front += ["--router-mode", "least-loaded", "--migration-limit", str(options.moves)]
        try:
            with noted():
                self.front = subprocess.Popen(front, env=env, **OWN)
            for worker in self.own:
                worker.start()
            self.ready(len(self.own))
        except BaseException:
            self.end()
            raise
        print(f"{worker.identity} in {len(self.own)} workers is served on {self.address}/v1", flush=True)

    def instances(self):
        """How many workers the front end sends requests to."""
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=5) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            told = json.load(error)
        except OSError:
            return 0
        return sum(one.get("endpoint") == "generate" for one in told.get("instances", []))

    def ready(self, count):
        end = time.monotonic() + 60
        while self.instances() < count:
            self.check_front()
            if time.monotonic() > end:
                raise Refused("the front end does not see the workers")
            time.sleep(0.1)

    def admit(self, worker):
        worker.start()
        self.ready(sum(one.process.poll() is None for one in self.own))

    def end_front(self):
        if self.front and self.front.poll() is None:
            self.front.send_signal(signal.SIGTERM)
            self.front.wait()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("model")
    args.add_argument("--workers", type=int, default=2, help="workers to start here [2]")
    args.add_argument("--host", default="127.0.0.1", help="address of the front end [127.0.0.1]")
    args.add_argument("--port", type=int, default=8080, help="port of the front end [8080]")
    args.add_argument("--places", type=int, default=32, help="requests that a worker computes together [32]")
    args.add_argument("--queue", type=int, default=64, help="requests that wait at a worker; others get 429 [64]")
    args.add_argument("--threads", type=int, help="threads of a worker [the cores divided by the workers]")
    args.add_argument("--drain", type=int, default=600, help="seconds that requests may take in a restart [600]")
    args.add_argument("--moves", type=int, default=3, help="how often a request may move to another worker [3]")
    args.add_argument("--binary", default="bitnet", help="the program [bitnet]")
    options = parse(args)
    keep(lambda folder: Workers(options, folder))


if __name__ == "__main__":
    main()
