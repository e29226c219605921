#!/usr/bin/env python3
"""Starts several `bitnet serve` replicas of one model behind HAProxy.

    deploy/haproxy/cluster.py demo --replicas 2 --port 8080
    deploy/haproxy/cluster.py demo --replicas 1 --join 192.0.2.7:8080 -- --kv int8    # flags after -- go to bitnet

Needs Python 3.9 and HAProxy 2.6. SIGHUP restarts the replicas one after another, each after its requests have ended.
SIGTERM and Ctrl-C let all requests finish and then end everything. A replica that dies is restarted. A replica that
would answer differently (another model, version, cache type or device) is not admitted.
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from supervise import OWN, Cluster, Member, Refused, address_of, agree, keep, noted, parse

START = 600  # seconds that a model may take to load
CURE = "give all replicas the same program, model and flags"


def ask(address, method, path, body=None):
    """Sends a request; returns the status and the JSON of the response."""
    key = os.environ.get("BITNET_API_KEY")
    headers = {"content-type": "application/json", "host": "localhost"}
    headers |= {"authorization": f"Bearer {key}"} if key else {}
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request(method, path, body and json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def identity(address, process=None):
    """Waits until a replica is ready, and returns what decides its answers."""
    end = time.monotonic() + START
    while time.monotonic() < end:
        if process and process.poll() is not None:
            raise Refused(f"{address} ended with exit code {process.returncode}")
        try:
            if ask(address, "GET", "/ready")[0] == 200:
                break
        except OSError:
            pass
        time.sleep(0.05)
    status, answer = ask(address, "POST", "/v1/completions", {"prompt": [1], "max_tokens": 1, "temperature": 0})
    if status != 200:
        raise Refused(f"{address} answers {status}: {answer['error']['message']}")
    return answer["system_fingerprint"]


class Replica(Member):
    def __init__(self, name, address=None, command=None):
        super().__init__(name)
        self.address, self.command = address, command

    def start(self):
        """Starts the process, on its previous port if it had one."""
        port = self.address.split(":")[1] if self.address else "0"
        command = [*self.command, "--port", port]
        with noted():
            self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **OWN)
        self.address = address_of(self.process, self.name)
        threading.Thread(target=shutil.copyfileobj, args=(self.process.stderr, sys.stderr), daemon=True).start()
        print(f"{self.name} is {self.address}, process {self.process.pid}", flush=True)


class Proxy:
    """HAProxy in the foreground, configured by `haproxy.cfg` with the replicas added."""

    def __init__(self, folder, bind, places, queue, replicas):
        self.socket = folder / "admin.sock"
        text = pathlib.Path(__file__).with_name("haproxy.cfg").read_text()
        text = text.replace("global\n", f"global\n    stats socket {self.socket} mode 600 level admin\n", 1)
        blocks = re.split(r"((?:^    server .*\n)+)", text, flags=re.M)
        lines = [f"    server {replica.name} {replica.address}" for replica in replicas]
        blocks[1] = "".join(line + "\n" for line in lines)
        blocks[3] = "".join(f"{line} track bitnet/{line.split()[1]}\n" for line in lines)
        config = folder / "haproxy.cfg"
        config.write_text("".join(blocks))
        known = {"BITNET_BIND": bind, "BITNET_PLACES": str(places), "BITNET_QUEUE": str(queue)}
        command = ["haproxy", "-db", "-q", "-f", config]
        self.process = subprocess.Popen(command, env=os.environ | known, **OWN)

    def say(self, command):
        """Sends a command to HAProxy's runtime interface."""
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self.socket))
            line.sendall(command.encode() + b"\n")
            return b"".join(iter(lambda: line.recv(65536), b"")).decode()

    def state(self, replica, state):
        # The servers of the backend `small` track these.
        self.say(f"set server bitnet/{replica.name} state {state}")

    def busy(self, replica):
        """Number of requests that the replica is answering through the proxy."""
        rows = [line.split(",") for line in self.say("show stat").splitlines()]
        return sum(int(row[4]) for row in rows if row[0] in ("bitnet", "small") and row[1] == replica.name)

    def ready(self):
        while self.process.poll() is None:
            if self.socket.exists() and ",UP" in self.say("show stat"):
                return
            time.sleep(0.05)
        raise Refused(f"haproxy ended with exit code {self.process.returncode}")

    def end(self):
        """Stops accepting requests, and lets running ones finish."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
            self.process.wait()


class Replicas(Cluster):
    kind, front_name = "replicas", "haproxy"

    def __init__(self, options, folder):
        if not shutil.which("haproxy"):
            raise Refused("haproxy is not installed (Debian's haproxy)")
        names = (f"replica{i + 1}" for i in range(options.replicas + len(options.join)))
        threads = options.threads or max(1, (os.cpu_count() or 1) // max(1, options.replicas))
        command = [options.binary, "serve", options.model, "--threads", str(threads)]
        command += ["--max-batch-size", str(options.places), *options.flags]
        self.own = [Replica(next(names), command=command) for _ in range(options.replicas)]
        self.replicas = self.own + [Replica(next(names), address) for address in options.join]
        self.drain, self.proxy, self.identity = options.drain, None, None
        try:
            for replica in self.replicas:
                if replica.command:
                    replica.start()
                theirs = identity(replica.address, replica.process)
                self.identity = self.identity or theirs
                agree(replica.address, theirs, self.identity, CURE)
            bind = f"{options.host}:{options.port}"
            with noted():
                self.proxy = Proxy(folder, bind, options.places, options.queue, self.replicas)
            self.proxy.ready()
        except BaseException:
            self.end()
            raise
        print(f"{self.identity} in {len(self.replicas)} replicas is served on http://{bind}/v1", flush=True)

    @property
    def front(self):
        return self.proxy.process

    def admit(self, replica):
        self.proxy.state(replica, "maint")
        replica.start()
        agree(replica.address, identity(replica.address, replica.process), self.identity, CURE)
        self.proxy.state(replica, "ready")

    def leave(self, replica):
        self.proxy.state(replica, "drain")
        end = time.monotonic() + self.drain
        while self.proxy.busy(replica) and time.monotonic() < end:
            time.sleep(0.05)

    def end_front(self):
        if self.proxy:
            self.proxy.end()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("model")
    args.add_argument("--replicas", type=int, default=2, help="replicas to start here [2]")
    args.add_argument("--join", action="append", default=[], metavar="HOST:PORT", help="a replica that runs elsewhere")
    args.add_argument("--host", default="127.0.0.1", help="address of the proxy [127.0.0.1]")
    args.add_argument("--port", type=int, default=8080, help="port of the proxy [8080]")
    args.add_argument("--places", type=int, default=32, help="requests that a replica computes together [32]")
    args.add_argument("--queue", type=int, default=64, help="requests that wait at the proxy; others get 429 [64]")
    args.add_argument("--threads", type=int, help="threads of a replica [the cores divided by the replicas]")
    args.add_argument("--drain", type=float, default=600, help="seconds that requests may take in a restart [600]")
    args.add_argument("--binary", default="bitnet", help="the program [bitnet]")
    options = parse(args)
    keep(lambda folder: Replicas(options, folder))


if __name__ == "__main__":
    main()
