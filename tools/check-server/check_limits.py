#!/usr/bin/env python3
"""Abuses servers in several ways, one after another, and checks that only the abusive client notices.

    cargo build --release -p bitnet-cli && python check_limits.py target/release/bitnet [WORD...]

Each check starts its own server on a loopback port, prints one line and takes less than a minute. WORDs select
checks by name. Exits with 1 if a check fails.
"""
import contextlib
import http.client
import json
import pathlib
import re
import socket
import sys
import threading
import time

from check_life import PATH, Server, idle, together

CHAT = "/v1/chat/completions"


class Refused(AssertionError):
    """An expectation of a check does not hold."""


def expect(fact, *told):
    if not fact:
        raise Refused(*told)


class Asked(Server):
    """A server, with methods that send headers and read its memory use."""

    def reply(self, body, path=PATH, headers=None, method="POST", seconds=30):
        """Status, headers and body of an answer."""
        with contextlib.closing(http.client.HTTPConnection(self.host, timeout=seconds)) as connection:
            text = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
            connection.request(method, path, text, {"content-type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def refusal(self, body, **how):
        """The status, and the error's parameter and message."""
        status, _, text = self.reply(body, **how)
        error = json.loads(text).get("error", {}) if text else {}
        return status, error.get("param"), error.get("message", "")

    def resident(self):
        """Resident bytes now, and at the peak."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return [int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) << 10 for name in ("VmRSS", "VmHWM")]

    def begin(self, body, length=None, rcvbuf=None):
        """A connection on which a request was sent and nothing has been read."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        host, port = self.host.split(":")
        client = socket.socket()
        if rcvbuf:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        client.settimeout(30)
        client.connect((host, int(port)))
        head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
        # The server may close the connection before everything is sent.
        with contextlib.suppress(ConnectionError):
            client.sendall(head.encode() + f"content-length: {length or len(data)}\r\n\r\n".encode() + data)
        return client


class Gaps(threading.Thread):
    """A well-behaved client that reads one stream after another and measures the longest pause."""

    def __init__(self, server, **body):
        super().__init__(daemon=True)
        self.server, self.longest, self.tokens, self.stop = server, 0.0, 0, False
        self.body = dict(prompt="O", max_tokens=400, temperature=1, stream=True, ignore_eos=True) | body
        self.start()

    def run(self):
        while not self.stop:
            answer = self.server.ask(self.body)
            last = time.monotonic()
            while line := answer.readline():
                if line.startswith(b"data: "):
                    now = time.monotonic()
                    self.longest, last = max(self.longest, now - last), now
                    self.tokens += 1
                if self.stop:
                    answer.close()
                    break

    def measured(self):
        """The longest pause since the last call."""
        longest, self.longest = self.longest, 0.0
        return longest


def mib(size):
    return f"{size / (1 << 20):.0f} MiB"


def memory(binary):
    """Point 2: texts that exceed any context."""
    with Asked(binary) as server:
        polite = Gaps(server)
        time.sleep(3)
        before, (base, _) = polite.measured(), server.resident()
        prompt = json.dumps(dict(prompt="a " * 4_000_000)).encode()

        def rude():
            client = server.begin(prompt)
            time.sleep(1)
            client.close()

        together([rude] * 32)
        during, peak = polite.measured(), server.resident()[1]
        time.sleep(2)
        after = server.resident()[0]
        polite.stop = True
        polite.join()
        status, param, message = server.refusal(dict(prompt="a " * 4_000_000))
        expect((status, param) == (400, "prompt") and "bytes" in message, status, message)
        answer = server.reply(dict(prompt="First Citizen:\n" * 90, max_tokens=1))
        expect(answer[0] == 200, "a long prompt that fits", answer)
        told = f"resident {mib(base)}, {mib(peak)} at the peak, {mib(after)} afterwards; silence {before * 1e3:.0f} ms before, {during * 1e3:.0f} ms beside"
        expect(peak < 500 << 20, told)
        # A wide margin, for busy machines.
        expect(during < max(0.5, 4 * before), told)
    return f"32 clients with prompts of 8 MB that hang up: {told}"


def drafts(binary):
    """Point 3: drafting while another request waits."""
    with Asked(binary, "--max-batch-size", "8", "--speculate", "4") as server:
        text = "the king is the king is the king is the king is"
        repeating = [Gaps(server, seed=i) for i in range(4)]
        for client in repeating:
            client.body.update(prompt=text, temperature=0)
        time.sleep(2)
        waits = []
        for i in range(20):
            begun = time.monotonic()
            status, _, _ = server.reply(dict(prompt=f"O {i}", max_tokens=1, priority="interactive"))
            expect(status == 200, status)
            waits.append(time.monotonic() - begun)
        for client in repeating:
            client.stop = True
        [client.join() for client in repeating]
    worst = max(waits)
    expect(worst < 0.5, f"one token took {worst:.2f} s beside four streams with drafts")
    return f"beside four streams with drafts, one token took at most {worst * 1e3:.0f} ms"


def paused(binary):
    """Point 4: readers that pause and continue."""
    flags = "--max-batch-size", "8", "--speculate", "0", "--memory", "2G"
    with Asked(binary, *flags, model="synthetic:tiny") as server:
        long = dict(prompt=[1, 2, 3], max_tokens=3000, temperature=1, stream=True, ignore_eos=True)
        slow = [server.begin(dict(long, seed=i), rcvbuf=4096) for i in range(8)]
        [client.recv(1) for client in slow]
        server.seconds_until(lambda m: m["bitnet_slow_reader_pauses_total"] >= 8)
        fresh = [Gaps(server, seed=100 + i, prompt=[4, i]) for i in range(8)]
        time.sleep(2)
        expect(all(client.tokens for client in fresh), "fresh streams run while the slow ones are paused")
        time.sleep(1)
        [client.measured() for client in fresh]
        done = [False] * len(slow)

        def read(i):
            while slow[i].recv(1 << 16):
                pass
            done[i] = True

        readers = [threading.Thread(target=read, args=[i], daemon=True) for i in range(len(slow))]
        [reader.start() for reader in readers]
        end = time.monotonic() + 40
        while not all(done) and time.monotonic() < end:
            time.sleep(0.05)
        silence = max(client.measured() for client in fresh)
        for client in fresh:
            client.stop = True
        told = f"fresh streams silent for at most {silence:.2f} s, {sum(done)} of 8 slow ones ended"
        expect(silence < 5 and all(done), told)
    return f"8 readers that paused go on beside 8 fresh streams: {told}"


def stale(binary):
    """Point 5: short requests after a burst of long work."""
    with Asked(binary, "--max-batch-size", "4", "--ttft-goal", "500ms", "--speculate", "0") as server:
        burst = dict(prompt="O", max_tokens=480, n=8, ignore_eos=True, priority="batch")
        together([lambda i=i: server.reply(dict(burst, seed=i), seconds=120) for i in range(6)])
        server.seconds_until(idle)
        refused, longest = 0, 0.0
        for _ in range(25):
            begun = time.monotonic()
            short = [lambda i=i: server.reply(dict(prompt="O", max_tokens=2, seed=i))[0] for i in range(8)]
            refused += sum(status == 429 for status in together(short))
            longest = max(longest, time.monotonic() - begun)
        told = f"{refused} of 200 short requests refused, their rounds took at most {longest:.2f} s"
        expect(refused <= 10, told)
    return f"after a burst of long background work: {told}"


def deadline(binary):
    """Point 7: at a deadline, the text so far is returned."""
    with Asked(binary, model="synthetic:tiny") as server:
        body = dict(prompt=[1, 2, 3], max_tokens=8000, n=8, ignore_eos=True, return_token_ids=True)
        status, _, text = server.reply(body, headers={"x-deadline-ms": "1000"}, seconds=60)
        expect(status == 200, status, text[:200])
        choice = json.loads(text)["choices"][0]
        expect((choice["finish_reason"], choice.get("stop_reason")) == ("length", "deadline"), choice)
        tokens = len(choice["token_ids"])
        expect(0 < tokens < 8000, tokens)
    return f"a deadline after {tokens} tokens: 200, `length`, `deadline`"


def continued(binary):
    """Point 8: resuming a stream."""
    body = dict(prompt="O", max_tokens=12, temperature=1, stream=True)
    with Asked(binary) as server:
        _, headers, text = server.reply(body)
        events = text.split(b"\n\n")
        last, seed = re.search(rb"id: (.*)", events[4])[1].decode(), headers["x-seed"]
        status, param, _ = server.refusal(body, headers={"last-event-id": last})
        expect((status, param) == (400, "Last-Event-ID"), "without a seed", status)
        go_on = {"last-event-id": last, "x-seed": seed}
        status, _, rest = server.reply(body, headers=go_on)
        expect(status == 200 and rest == b"\n\n".join(events[5:]), "with its seed")
    for flags, name in ([["--kv", "bf16"], "kv"], [["--name", "other"], "model"]):
        with Asked(binary, *flags) as server:
            status, _, message = server.refusal(body, headers=go_on)
            expect(status == 412 and f"{name} " in message, flags, status, message)
    return f"Last-Event-ID: 400 without a seed, byte for byte with it, 412 elsewhere ({message})"


def together_or_not(binary):
    """Point 9: many prompts."""
    with Asked(binary, "--max-queued-requests", "16") as server:
        prompts = dict(prompt=[f"Line {i}" for i in range(64)], max_tokens=4)
        status, _, message = server.refusal(prompts)
        steps = server.metrics()["bitnet_steps_total"]
        expect(status == 400 and steps == 0, status, message, steps)
        expect(server.reply(dict(prompts, prompt=prompts["prompt"][:16]))[0] == 200, "16 prompts")
    return f"64 prompts for a queue of 16: 400 before anything ran ({message})"


def bounds(binary):
    """Point 10: lists, choices, bodies and numbers."""
    with Asked(binary, "--max-queued-requests", "64") as server:
        message = dict(role="user", content="O")
        for field, value, path, bound in [
            ("stop_token_ids", list(range(1_000_000)), PATH, "256"),
            ("logit_bias", {str(i): 1 for i in range(1025)}, PATH, "1024"),
            ("stop", ["x"] * 17, PATH, "16"),
            ("messages", [message] * 2049, CHAT, "2048"),
            ("n", 65, PATH, "64"),
        ]:
            asked = {"messages": value} if path == CHAT else {"prompt": "O", field: value}
            status, param, told = server.refusal(asked, path=path)
            expect((status, param) == (400, field) and bound in told, field, status, param, told)

        digit = json.loads(server.reply(dict(prompt="1", add_special_tokens=False), path="/tokenize")[2])["tokens"][0]
        schema = dict(type="object", properties=dict(age=dict(type="integer")), required=["age"], additionalProperties=False)
        form = dict(type="json_schema", json_schema=dict(name="x", schema=schema))
        body = dict(prompt="O", max_tokens=100, temperature=0, logit_bias={str(digit): 100}, response_format=form)
        choice = json.loads(server.reply(body)[2])["choices"][0]
        expect(choice["finish_reason"] == "stop", choice)
        json.loads(choice["text"])

        half = b'{"prompt": "O", "max_tokens": 1' + b" " * (8_000_000 - 100)
        held = [server.begin(half, length=len(half) + 1) for _ in range(12)]
        time.sleep(1)
        refused = 0
        for client in held:
            client.settimeout(0.2)
            with contextlib.suppress(TimeoutError, ConnectionError):
                refused += b" 429 " in client.recv(64)
        expect(server.reply(dict(prompt="O", max_tokens=1))[0] == 200, "a small body beside them")
        [client.close() for client in held]
        expect(refused >= 4, f"{refused} of 12 bodies of 8 MB refused")
    return f"lists, choices and numbers have named bounds ({choice['text']}); {refused} of 12 bodies of 8 MB under way refused"


def foreign_host(binary):
    """Point 12: DNS rebinding."""
    for flags, status in ([], 421), (["--allow-host", "evil.example"], 200):
        with Asked(binary, *flags) as server:
            got = server.reply(None, path="/v1/models", method="GET", headers={"host": "evil.example"})[0]
            expect(got == status, flags, got)
            expect(server.reply(None, path="/v1/models", method="GET")[0] == 200, "the server's own name")
    return "a foreign Host on a loopback address: 421, unless it is allowed"


CHECKS = {
    2: memory, 3: drafts, 4: paused, 5: stale, 7: deadline, 8: continued, 9: together_or_not, 10: bounds, 12: foreign_host,
}


def main():
    binary, *words = sys.argv[1:]
    failed = 0
    for point, check in CHECKS.items():
        if words and check.__name__ not in words:
            continue
        try:
            print(f"pass {point:2} {check(binary)}", flush=True)
        except Exception as problem:
            failed += 1
            told = " ".join(str(part) for part in problem.args) or repr(problem)
            print(f"FAIL {point:2} {check.__name__}: {type(problem).__name__}: {told[:300]}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
