#!/usr/bin/env python3
"""Subjects servers and batch runs to crowds, hang-ups, readers that stop, signals and kills.

    cargo build --release -p bitnet-cli && python check_life.py target/release/bitnet
"""
import concurrent.futures
import http.client
import json
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

PATH = "/v1/completions"


class Server:
    """A `bitnet serve` that is killed at the end of its `with` block."""

    def __init__(self, binary, *flags, model="demo"):
        command = [binary, "serve", model, "--port", "0", "--log", "off", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        # Notes about the machine may be printed first.
        served = map(re.compile(r"is served on http://(\S+)/v1").search, iter(self.process.stderr.readline, ""))
        self.host = next(found for found in served if found).group(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def ask(self, body, headers=()):
        """The response, before its body is read."""
        connection = http.client.HTTPConnection(self.host, timeout=120)
        connection.request("POST", PATH, json.dumps(body), {"content-type": "application/json", **dict(headers)})
        return connection.getresponse()

    def whole(self, body):
        """The bytes of a stream."""
        answer = self.ask(body)
        text = unnamed(answer.read())
        assert answer.status == 200, text
        return text

    def metrics(self):
        """The metrics by name, and by name and label."""
        connection = http.client.HTTPConnection(self.host, timeout=10)
        connection.request("GET", "/metrics")
        sums = {}
        for line in connection.getresponse().read().decode().splitlines():
            if match := re.fullmatch(r"([\w:]+)(\{.*\})? (\S+)", line):
                for label in ["", *re.findall(r'="(\w+)"', match[2] or "")]:
                    name = f"{match[1]} {label}".strip()
                    sums[name] = sums.get(name, 0) + float(match[3])
        return sums

    def seconds_until(self, done):
        begun = time.monotonic()
        while not done(self.metrics()):
            assert time.monotonic() - begun < 30, self.metrics()
            time.sleep(0.005)
        return time.monotonic() - begun


def unnamed(text):
    """A stream without the name, which differs in every answer."""
    return re.sub(rb"\b[0-9a-f]{24}\b|(?<=cmpl-)[0-9a-f]{24}", b"NAME", text)


def idle(metrics):
    names = "bitnet_requests_running", "bitnet_requests_waiting", "bitnet_kv_blocks_used"
    return all(metrics[name] == 0 for name in names)


def together(calls):
    """Runs functions in parallel and returns their results; raises the error of any."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [one.result() for one in [pool.submit(call) for call in calls]]


def stream(seed, tokens, **more):
    words = ["O", "First Citizen:", "What say you", "The king is"]
    prompt = words[seed % 4] * (1 + seed % 3)
    return dict(prompt=prompt, seed=seed, max_tokens=tokens, stream=True, ignore_eos=True, **more)


def tokens_of(events):
    """Events of a stream that carry a token."""
    return events.count(b'"finish_reason":null')


def crowd(binary):
    with Server(binary, "--max-batch-size", "12") as server:
        bodies = [stream(i, 20 + 5 * (i % 9), n=1 + i % 3, temperature=i % 4 / 3) for i in range(64)]
        alone = [server.whole(body) for body in bodies]
        crowded = together([lambda body=body: server.whole(body) for body in bodies])
        assert crowded == alone
        counted = server.metrics()
        assert counted["bitnet_requests_total complete"] == 128 == counted["bitnet_requests_total"]
        assert counted["bitnet_generation_tokens_total"] == sum(map(tokens_of, alone + crowded))
    return "64 streams at once have the bytes they have alone, and are counted to the token"


def hang_ups(binary):
    rest = random.Random(1)
    plans = [(i, rest.choice([None, 0, rest.randrange(1, 40)])) for i in range(1000)]

    def client(server, mine):
        seen = [0, 0, 0, 0]  # ended and their tokens, left after some events, left at once
        for i, leave in mine:
            answer_to = stream(i, rest.randrange(60) if leave is None else 450)
            if leave is None:
                whole = server.whole(answer_to)
                assert whole.endswith(b"data: [DONE]\n\n")
                seen[0], seen[1] = seen[0] + 1, seen[1] + tokens_of(whole)
            elif leave == 0:
                body = json.dumps(answer_to).encode()
                head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                host, port = server.host.split(":")
                with socket.create_connection((host, int(port))) as hasty:
                    hasty.sendall(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
                seen[3] += 1
            else:
                answer = server.ask(answer_to)
                [answer.readline() for _ in range(3 * leave)]
                answer.close()
                seen[2] += 1
        return seen

    with Server(binary, "--max-queued-requests", "2000") as server:
        calls = [lambda mine=plans[i::20]: client(server, mine) for i in range(20)]
        ended, tokens, left, hasty = map(sum, zip(*together(calls)))
        took = server.seconds_until(idle)
        counted = server.metrics()
    assert took < 1, took
    assert counted["bitnet_requests_total complete"] == ended
    cancelled = counted["bitnet_requests_total cancelled"]
    assert left <= cancelled <= left + hasty and counted["bitnet_requests_total"] == ended + cancelled
    assert counted["bitnet_generation_tokens_total"] >= tokens + left
    return f"1,000 clients, {left + hasty} of them hung up: all gone after {took * 1e3:.0f} ms, and counted"


def slow_readers(binary):
    with Server(binary, "--max-batch-size", "32") as server:
        # More than buffers can hold, and enough requests to fill the batch.
        long = stream(3, 440, n=32)
        want = server.whole(long)
        stopped = [server.ask(long) for _ in range(3)]
        server.seconds_until(lambda m: m["bitnet_slow_reader_pauses_total"] >= 3)
        begun = time.monotonic()
        assert tokens_of(server.whole(stream(4, 300))) == 300
        took = time.monotonic() - begun
        assert all(unnamed(answer.read()) == want for answer in stopped)
        server.seconds_until(idle)
    return f"behind 3 stopped readers of 32 choices, 300 tokens took {took:.1f} s; they lost no byte"


def drained(binary):
    with Server(binary, "--max-batch-size", "8") as server:
        calls = [lambda i=i: server.whole(stream(i, 300)) for i in range(32)]

        def end():
            taken = "bitnet_requests_running", "bitnet_requests_waiting"
            server.seconds_until(lambda m: sum(m[name] for name in taken) == 32)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
            refused = server.ask(stream(0, 1))
            return refused.status, server.process.wait(60)

        *streams, told = together([*calls, end])
        assert told == (503, 0), told
        assert all(tokens_of(s) == 300 and s.endswith(b"data: [DONE]\n\n") for s in streams)
    with Server(binary, "--max-batch-size", "1") as server:
        held = server.ask(stream(0, 480, n=16))
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        code, took = server.process.wait(60), time.monotonic() - begun
        assert code == 1 and took < 1, (code, took)
        held.close()
    return f"SIGTERM: 32 streams came to their ends, exit 0; a second one: exit 1 after {took * 1e3:.0f} ms"


def killed(binary):
    rest = random.Random(2)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        requests, whole, broken = folder / "in.jsonl", folder / "whole.jsonl", folder / "broken.jsonl"
        bodies = [dict(prompt=f"Line {i}", max_tokens=30 + i % 40, temperature=0.9) for i in range(3000)]
        lines = [dict(custom_id=f"r{i}", method="POST", url=PATH, body=body) for i, body in enumerate(bodies)]
        requests.write_text("".join(json.dumps(line) + "\n" for line in lines))

        def run(output):
            command = [binary, "batch", "demo", requests, output]
            return subprocess.Popen(command, stderr=subprocess.DEVNULL)

        begun = time.monotonic()
        assert run(whole).wait() == 0
        each = (time.monotonic() - begun) / 30
        for kill in range(20):
            process = run(broken)
            time.sleep(rest.uniform(0.2, 1.8) * each)
            assert process.poll() is None, f"done after {kill} kills"
            process.kill()
            process.wait()
        assert run(broken).wait() == 0
        assert broken.read_bytes() == whole.read_bytes()
        names = [json.loads(line)["custom_id"] for line in broken.open()]
        assert names == [line["custom_id"] for line in lines]
    return "kill -9 of a batch at 20 points: every line once, the same bytes as undisturbed"


def main():
    for check in crowd, hang_ups, slow_readers, drained, killed:
        print(check(sys.argv[1]), flush=True)


if __name__ == "__main__":
    main()
