#!/usr/bin/env python3
"""Checks two replicas behind HAProxy, and two workers behind NVIDIA Dynamo, under load, overload, shutdown, kills,
restarts and hang-ups; prints a line for each.

    cargo xtask cluster-smoke
    python3 check_cluster.py target/release/bitnet

`--quick` does not judge what depends on the speed of the machine. The checks of Dynamo need its Python packages, as
deploy/README.md installs them, and the job over three workers needs ray and pyarrow; without them they are skipped.
"""
import argparse
import http.client
import importlib.util
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from check_life import PATH, Server, idle, stream, together, tokens_of, unnamed

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"


class Skipped(Exception):
    """Something that a check needs is missing."""


class There(Server):
    """A server that this script did not start."""

    def __init__(self, host):
        self.host = host

    def plain(self, text):
        """What an answer says, whichever request asked for it."""
        return unnamed(text)

    def whole(self, body):
        answer = self.ask(body)
        text = answer.read()
        assert answer.status == 200 and b'"error"' not in text, text
        return self.plain(text)


class Cluster(There):
    """`cluster.py` on a free port."""

    script, names = DEPLOY / "haproxy/cluster.py", ("replica1", "replica2")
    refusal = {"retry-after"}  # headers

    def __init__(self, binary, *flags, places, queue, serve=(), env={}):
        with socket.create_server(("127.0.0.1", 0)) as free:
            super().__init__(f"127.0.0.1:{free.getsockname()[1]}")
        port = self.host.split(":")[1]
        command = [sys.executable, self.script, "demo", "--binary", binary, "--port", port]
        command += ["--threads", "1", "--places", str(places), "--queue", str(queue), *flags]
        command += ["--", "--device", "cpu", "--log", "off", *serve]
        self.process = subprocess.Popen(
            command, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.pids, self.servers, self.hosts, self.joins, self.rolls, self.said = {}, {}, {}, [], 0, []
        self.up = threading.Event()
        threading.Thread(target=self.errors, daemon=True).start()
        threading.Thread(target=self.listen, daemon=True).start()
        assert self.up.wait(60) and self.process.poll() is None, "".join(self.said)

    def listen(self):
        for line in self.process.stdout:
            if found := re.match(r"(\w+) is (\S+), process (\d+)", line):
                self.hosts[found[1]], self.pids[found[1]] = found[2], int(found[3])
            if found := re.match(r"(\w+) takes requests again", line):
                self.joins.append(found[1])
            if found := re.search(r"server process (\d+)", line):
                self.servers[line.split()[0]] = int(found[1])
            self.rolls += "were restarted" in line
            if "is served on" in line:
                self.up.set()
        self.up.set()

    def errors(self):
        self.said.extend(self.process.stderr)

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(60) == 0, "".join(self.said)
        finally:
            self.process.kill()

    def replicas(self):
        return [There(host) for host in self.hosts.values()]

    def until(self, done):
        end = time.monotonic() + 60
        while not done():
            assert time.monotonic() < end, "".join(self.said)
            time.sleep(0.02)

    def signal(self, name, number, pid=None):
        """Signals a replica, and waits until it has restarted and accepts requests."""
        before = len(self.joins)
        os.kill(pid or self.pids[name], number)
        self.until(lambda: self.joins[before:] == [name])


class Workers(Cluster):
    """The same behind Dynamo, whose answers have other names and the current time."""

    script, names, refusal = DEPLOY / "dynamo/cluster.py", ("worker1", "worker2"), set()

    def ask(self, body, headers=()):
        return super().ask(body | {"model": "demo"}, headers)

    def plain(self, text):
        return re.sub(rb"cmpl-[0-9a-f-]{36}", b"NAME", re.sub(rb'"created":\d+', b'"created":0', text))


def sizes(metrics):
    return metrics["bitnet_requests_total"]


def alone(server, bodies):
    """The answers to the bodies when nothing else runs."""
    return [server.whole(body) for body in bodies]


def events(answer):
    """The complete events of a stream, until it ends or breaks off."""
    text, event = [], b""
    try:
        while line := answer.readline():
            event += line
            if line == b"\n":
                text.append(event)
                event = b""
    except (OSError, http.client.HTTPException):
        pass
    return text


def with_resume(server, body, begun, lost):
    """Reads a stream as a client that resumes it after a break, and retries refused requests later."""
    text, last = [], None
    for _ in range(200):
        more = {"last-event-id": last} if last else {}
        try:
            answer = server.ask(body, more)
        except OSError:
            continue
        if answer.status in (429, 502, 503):
            answer.read()
            time.sleep(0.1)
            continue
        assert answer.status == 200, answer.read()
        if last:
            lost.append(last)
        else:
            text.append(b"".join(answer.readline() for _ in range(3)))
            begun()
        text += events(answer)
        if text and text[-1] == b"data: [DONE]\n\n":
            return unnamed(b"".join(text))
        ids = re.findall(rb"^id: (.*)$", b"".join(text), re.M)
        last = ids[-1].decode() if ids else None
    raise AssertionError("a stream could not be resumed")


def split(start, binary, quick):
    with start(binary, places=4, queue=64) as cluster:
        before = [sizes(one.metrics()) for one in cluster.replicas()]
        clients = [lambda i=i: [cluster.whole(stream(i * 20 + j, 20)) for j in range(20)] for i in range(16)]
        together(clients)
        got = [sizes(one.metrics()) - was for one, was in zip(cluster.replicas(), before)]
    # The slower replica gets fewer requests, and on a busy machine one may be much slower.
    least = 0.2 if quick else 0.4
    assert sum(got) == 320 and all(part / 320 >= least for part in got), got
    return f"320 requests: {got[0]:.0f} and {got[1]:.0f}"


def overload(start, binary, quick):
    with start(binary, places=4, queue=8) as cluster:
        bodies = [stream(i, 60) for i in range(64)]
        want = alone(cluster, bodies)
        seen = {}

        def client(i):
            for _ in range(4):
                answer = cluster.ask(bodies[i])
                text = answer.read()
                seen[answer.status] = seen.get(answer.status, 0) + 1
                if answer.status == 200:
                    assert cluster.plain(text) == want[i], text
                else:
                    assert all(answer.headers[name] for name in start.refusal) and b'"code":' in text, text
                    time.sleep(0.05)

        together([lambda i=i: client(i) for i in range(64)])
    assert set(seen) == {200, 429} and sum(seen.values()) == 256, seen
    room = 16 if start is Cluster else 24  # the queue is the proxy's, or each worker's
    answered = f"{seen[200]} answered 200 with the right bytes, {seen[429]} refused 429"
    return f"64 clients for {room} places and waits: {answered}"


def ends(start, binary, quick):
    # With spare capacity, so that the replica that shuts down also gets requests.
    with start(binary, places=12, queue=64) as cluster:
        bodies, brief = [stream(i, 450) for i in range(16)], stream(0, 1)
        want, want_brief = alone(cluster, bodies), cluster.whole(brief)
        begun, ended = threading.Barrier(19, timeout=60), threading.Event()

        def long(i):
            answer = cluster.ask(bodies[i])
            text = answer.readline()
            begun.wait()
            assert cluster.plain(text + answer.read()) == want[i], i

        def short():
            begun.wait()
            count = 0
            while not ended.is_set():
                assert cluster.whole(brief) == want_brief
                count += 1
            return count

        def end():
            begun.wait()
            try:
                cluster.signal(start.names[0], signal.SIGTERM)
            finally:
                ended.set()

        *_, one, two = together([*(lambda i=i: long(i) for i in range(16)), end, short, short])
    return f"16 streams and {one + two} requests beside them: none failed, all bytes right"


def idle_ends(start, binary, quick):
    """SIGTERM to a replica that has little to do, so that requests arrive in the moment in which it ends."""
    with start(binary, places=12, queue=64) as cluster:
        brief, ended, rounds = stream(0, 1), threading.Event(), 5
        want = cluster.whole(brief)

        def client():
            count = 0
            while not ended.is_set():
                assert cluster.whole(brief) == want
                count += 1
            return count

        def end():
            try:
                for i in range(rounds):
                    time.sleep(0.2)
                    cluster.signal(start.names[i % 2], signal.SIGTERM)
            finally:
                ended.set()

        *counts, _ = together([*[client] * 6, end])
    return f"{rounds} times a replica with little to do: none of {sum(counts)} requests failed"


def resumes(start, binary, quick):
    with start(binary, places=16, queue=64) as cluster:
        bodies = [stream(i, 300, temperature=i % 3 / 2, n=1 + i % 2) for i in range(16)]
        want, begun, lost = alone(cluster, bodies), threading.Barrier(17, timeout=60), []

        def kill():
            begun.wait()
            cluster.signal("replica2", signal.SIGKILL)

        reads = [lambda body=body: with_resume(cluster, body, begun.wait, lost) for body in bodies]
        *got, _ = together([*reads, kill])
    assert got == want, [i for i in range(16) if got[i] != want[i]]
    assert lost, "no stream was broken"
    return f"16 streams, {len(lost)} broken and resumed with Last-Event-ID: all have the bytes they have undisturbed"


def restarts(start, binary, quick):
    with start(binary, places=8, queue=64) as cluster:
        bodies = [stream(i, 40 + 10 * i) for i in range(8)]
        want, old, done = alone(cluster, bodies), dict(cluster.pids), threading.Event()

        def client(i):
            rounds = 0
            while not done.is_set():
                assert cluster.whole(bodies[i]) == want[i]
                rounds += 1
            return rounds

        def roll():
            time.sleep(0.2)
            cluster.process.send_signal(signal.SIGHUP)
            try:
                cluster.until(lambda: cluster.rolls)
            finally:
                done.set()

        *rounds, _ = together([*(lambda i=i: client(i) for i in range(8)), roll])
        assert all(cluster.pids[name] != old[name] for name in old)
        assert cluster.joins == list(start.names)
    assert all(rounds), rounds
    return f"both replicas were replaced under {sum(rounds)} streams: none failed, all bytes right"


def cancels(start, binary, quick):
    with start(binary, places=64, queue=64) as cluster:
        held = together([lambda i=i: cluster.ask(stream(i, 480)) for i in range(100)])
        [answer.readline() for answer in held]
        used = sum(one.metrics()["bitnet_kv_blocks_used"] for one in cluster.replicas())
        [answer.close() for answer in held]
        begun = time.monotonic()
        [one.seconds_until(idle) for one in cluster.replicas()]
        took = time.monotonic() - begun
        gone = sum(one.metrics()["bitnet_requests_total cancelled"] for one in cluster.replicas())
    assert used > 0 and gone > 0 and (quick or took < 1), (used, gone, took)
    return f"100 streams hung up, {gone:.0f} before their ends: {used:.0f} blocks free after {took * 1e3:.0f} ms"


def joins(start, binary, quick):
    told = []
    others = {"kv int8 instead of f32": ["--kv", "int8"], "model another instead of demo": ["--name", "another"]}
    for other, flags in others.items():
        with Server(binary, "--device", "cpu", *flags) as stranger:
            command = [sys.executable, DEPLOY / "haproxy/cluster.py", "demo", "--binary", binary, "--replicas", "1"]
            command += ["--port", "0", "--join", stranger.host, "--", "--device", "cpu", "--log", "off"]
            refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert refused.returncode == 1 and other in refused.stderr, (refused.returncode, refused.stderr)
            told.append(other)
    return f"refused: {', '.join(told)}"


def moves(start, binary, quick):
    """A worker, then a server, is killed under streams of every kind, which go on at the other worker."""
    kinds = [
        dict(temperature=0.5),
        dict(temperature=1, presence_penalty=1, frequency_penalty=1),
        dict(temperature=0, repetition_penalty=1.3),
        dict(temperature=1.5, top_p=0.9, top_k=50, stop=["the end of all"]),
        dict(temperature=1, min_tokens=200, ignore_eos=False),
        dict(temperature=1, logprobs=0),
    ]
    with start(binary, places=32, queue=64) as cluster:
        bodies = [stream(i, 250) | kinds[i % len(kinds)] for i in range(18)]
        want, moved = alone(cluster, bodies), 0
        # Dynamo moves no stream that follows a form: it fails by name, or is right.
        form = stream(3, 250, temperature=1, guided_regex="([a-z]{3} ){60}[A-Z]{3}") | {"ignore_eos": False}
        wanted = cluster.whole(form)
        # Without a seed a stream keeps the one it began with.
        bodies.append({key: value for key, value in stream(0, 250, temperature=1).items() if key != "seed"})
        for name, pids in ("worker1", cluster.pids), ("worker2", cluster.servers):
            begun = threading.Barrier(len(bodies) + 3, timeout=60)

            def read(body):
                answer = cluster.ask(body)
                text = answer.readline()
                begun.wait()
                text += answer.read()
                if body is form:
                    assert cluster.plain(text) == wanted or b'"error"' in text, text
                    return wanted
                assert answer.status == 200 and text.endswith(b"data: [DONE]\n\n") and b'"error"' not in text, text
                return cluster.plain(text)

            def kill():
                begun.wait()
                there = There(cluster.hosts[name]).metrics()
                cluster.signal(name, signal.SIGKILL, pids[name])
                return int(there["bitnet_requests_running"])

            *got, running = together([*(lambda body=body: read(body) for body in [*bodies, form, form]), kill])
            assert got[: len(want)] == want, [i for i in range(len(want)) if got[i] != want[i]]
            assert running, "no stream was at the worker that was killed"
            moved += running
    told = f"a worker and a server were killed under {2 * len(bodies)} streams, {moved} moved"
    return f"{told}: all have the bytes they have undisturbed"


def strangers(start, binary, quick):
    told = []
    others = {"kv int8 instead of f32": ["--kv", "int8"], "model another instead of demo": ["--name", "another"]}
    hosts = "DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST"
    with tempfile.TemporaryDirectory() as folder:
        env = {"DYN_FILE_KV": folder, "HF_HUB_OFFLINE": "1"} | {host: "127.0.0.1" for host in hosts}
        with start(binary, places=4, queue=4, env=env) as cluster:
            for other, flags in others.items():
                command = [sys.executable, DEPLOY / "dynamo/worker.py", "demo", "--binary", binary]
                command += ["--", "--device", "cpu", "--threads", "1", *flags]
                refused = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | env)
                assert refused.returncode == 1 and other in refused.stderr, (refused.returncode, refused.stderr)
                told.append(other)
            assert cluster.whole(stream(1, 20))
    return f"refused: {', '.join(told)}"


def early(start, binary, quick):
    """SIGTERM ends a cluster whose servers have not started yet."""
    with tempfile.TemporaryDirectory() as folder:
        slow = pathlib.Path(folder, "slow")
        slow.write_text(f"#!/bin/sh\necho $$ > {folder}/pid\nexec sleep 600\n")
        slow.chmod(0o755)
        command = [sys.executable, start.script, "demo", "--binary", slow]
        cluster = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 60
        while not (pid := pathlib.Path(folder, "pid")).exists() or not pid.read_text():
            assert time.monotonic() < end and cluster.poll() is None, cluster.stderr.read()
            time.sleep(0.05)
        begun = time.monotonic()
        cluster.send_signal(signal.SIGTERM)
        try:
            assert cluster.wait(60) == 0, cluster.stderr.read()
        finally:
            cluster.kill()
        while pathlib.Path("/proc", pid.read_text().strip()).exists():
            assert time.monotonic() < begun + 60, "the server still runs"
            time.sleep(0.05)
        return f"ended {time.monotonic() - begun:.1f} s after SIGTERM, and no server runs"


def job(start, binary, quick):
    """Runs a file over three engines; kills a worker, a server and then the script itself, which resumes."""
    if importlib.util.find_spec("ray") is None:
        raise Skipped("it needs the Python package ray")
    with tempfile.TemporaryDirectory() as folder:
        requests, whole, broken = (pathlib.Path(folder) / name for name in ("in.jsonl", "whole.jsonl", "broken.jsonl"))
        bodies = [dict(prompt=f"Line {i}", max_tokens=10 + i % 20, temperature=0.9) for i in range(120)]
        lines = [dict(custom_id=f"r{i}", method="POST", url=PATH, body=body) for i, body in enumerate(bodies)]
        requests.write_text("".join(json.dumps(line) + "\n" for line in lines))

        def run(output):
            command = [sys.executable, DEPLOY / "ray/fleet.py", requests, output, "--model", "demo", "--binary", binary]
            command += ["--engines", "3", "--places", "2", "--", "--device", "cpu"]
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

        def answers(path):
            answers = [json.loads(line) for line in path.open()]
            assert all(answer["response"]["status_code"] == 200 for answer in answers)
            return [(answer["custom_id"], answer["response"]["body"]["choices"]) for answer in answers]

        assert run(whole).wait(300) == 0
        process, pids, kills = run(broken), [], []
        for said in process.stdout:
            if found := re.match(r"engine \d: actor (\d+), server (\d+)", said):
                pids.append([int(pid) for pid in found.groups()])
            elif found := re.match(r"(\d+) of 120", said):
                kills.append(int(found[1]))
                if len(kills) == 1:
                    os.kill(pids[0][0], signal.SIGKILL)
                if len(kills) == 3:
                    os.kill(pids[1][1], signal.SIGKILL)
                if len(kills) == 8:
                    process.kill()
        assert len(kills) >= 8 and process.wait() != 0, kills
        before = broken.with_name("broken.jsonl.part").read_bytes().count(b"\n")
        assert 0 < before < 120, before
        assert run(broken).wait(300) == 0
        assert answers(broken) == answers(whole)
        assert [name for name, _ in answers(broken)] == [line["custom_id"] for line in lines]
    return f"a worker, a server and after {before} of 120 lines the script were killed: each line once, the same texts"


CHECKS = {
    "split": split,
    "4 times overload": overload,
    "SIGTERM": ends,
    "idle SIGTERM": idle_ends,
    "SIGKILL in mid-stream": resumes,
    "rolling restart": restarts,
    "100 cancels": cancels,
    "another replica joins": joins,
    "SIGTERM during the start": early,
    "job over three workers": job,
}
DYNAMO = {
    "Dynamo: split": split,
    "Dynamo: 4 times overload": overload,
    "Dynamo: SIGTERM": ends,
    "Dynamo: SIGKILL": moves,
    "Dynamo: rolling restart": restarts,
    "Dynamo: 100 cancels": cancels,
    "Dynamo: another joins": strangers,
    "Dynamo: an early SIGTERM": early,
}


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("binary")
    args.add_argument("--quick", action="store_true")
    args.add_argument("--only", help="beginning of a check's name")
    options = args.parse_args()
    failed = 0
    for name, check in (CHECKS | DYNAMO).items():
        if not name.startswith(options.only or ""):
            continue
        begun = time.monotonic()
        try:
            start = Workers if name in DYNAMO else Cluster
            if start is Workers and importlib.util.find_spec("dynamo") is None:
                raise Skipped("it needs the Python package ai-dynamo")
            word, told = "pass", check(start, os.path.abspath(options.binary), options.quick)
        except Skipped as missing:
            word, told = "skip", missing
        except AssertionError as wrong:
            word, told, failed = "FAIL", str(wrong)[-2000:], failed + 1
        print(f"{word}  {name:<24}  {told} ({time.monotonic() - begun:.1f} s)", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
