#!/usr/bin/env python3
"""Measures what HTTP costs and what overload does, as rows for `record/`. The client is `bitnet bench --url`: one in
Python would use the core that the model needs.

    cargo build --release -p bitnet-cli && python measure.py target/release/bitnet [throughput|overload]
"""
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from check_life import Server

MODEL, PROMPT, GOAL = "synthetic:125m", 16, 1.5
CLIENTS, ROUNDS = 8, 5


def bench(binary, server, requests, clients, new, *flags):
    """The results that clients see; only statuses 200 and 429 are allowed."""
    shape = ["--requests", str(requests), "--clients", str(clients), "-p", str(PROMPT), "-n", str(new)]
    command = [binary, "bench", "--url", f"http://{server.host}", *shape, *flags, "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert report["failed"] == 0, report
    return report


def throughput(binary):
    """Sends the same requests from 8 clients over HTTP and, alternately, from a file through an engine in its own process."""
    requests, new = 4 * CLIENTS, 128
    with tempfile.TemporaryDirectory() as folder, Server(binary, model=MODEL) as server:
        asked, told = (pathlib.Path(folder) / name for name in ("in.jsonl", "out.jsonl"))
        with asked.open("w") as file:
            for i in range(requests):
                # The same prompts and seeds as `bitnet bench --url`.
                ids = [3 + (p * 7 + i * 2_654_435_761) % 253 for p in range(PROMPT)]
                body = dict(prompt=ids, max_tokens=new, ignore_eos=True, seed=i)
                line = dict(custom_id=f"r{i}", method="POST", url="/v1/completions", body=body)
                file.write(json.dumps(line) + "\n")
        http, inside = [], []
        for _ in range(ROUNDS):
            http.append(bench(binary, server, requests, CLIENTS, new)["tok_s"])
            command = [binary, "batch", MODEL, asked, told, "--max-batch-size", str(CLIENTS)]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
            inside.append(float(re.search(r"([\d.]+) tok/s", said).group(1)))
    ratios = [a / b for a, b in zip(http, inside)]
    yield f"8 clients over HTTP, tok/s, {ROUNDS} rounds", http, ""
    yield "the same requests in process, tok/s, in turns", inside, ""
    yield "their ratio", ratios, ">= 0.9"
    yield "its median", statistics.median(ratios), ">= 0.9"


def overload(binary):
    """Sends four times as many requests per second as can be answered."""
    new, places, seconds = 48, 8, 20
    flags = ["--max-batch-size", str(places), "--ttft-goal", f"{GOAL}s", "--itl-goal", "10s"]
    with Server(binary, *flags, model=MODEL) as server:
        # A few more clients than places in the batch: the queue is never empty, and no wait is long.
        peak = bench(binary, server, 8 * places, places + 4, new)
        peak = peak["answered"] / peak["seconds"]
        rate = ["--rate", f"{4 * peak:.2f}"]
        report = bench(binary, server, round(4 * peak * seconds), 512, new, *rate)
    first = [report["first_token_ms"][p] / 1e3 / GOAL for p in ("p50", "p99")]
    yield "requests a second at the peak", peak, ""
    yield "requests a second offered", report["rate"], "4 times the peak"
    yield "answered / refused / failed", [report[name] for name in ("answered", "refused", "failed")], "0 failed"
    yield "answered a second, of the peak", report["answered"] / report["seconds"] / peak, ">= 0.9"
    yield "first token, p50 and p99, of the goal", first, "p99 <= 1.25"
    yield "refusal, p50 and p99, ms", [report["refusal_ms"][p] for p in ("p50", "p99")], "p50 <= 5"


def main():
    binary, *wanted = sys.argv[1:]
    print("| measured | value | goal |\n|---|---|---|")
    for measure in throughput, overload:
        if not wanted or measure.__name__ in wanted:
            for what, value, goal in measure(binary):
                values = value if isinstance(value, list) else [value]
                print(f"| {what} | {', '.join(f'{v:.4g}' for v in values)} | {goal} |", flush=True)


if __name__ == "__main__":
    main()
