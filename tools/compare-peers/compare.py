#!/usr/bin/env python3
"""Measures `bitnet` and peers that are built on llama.cpp in turns, and prints rows for `record/`: medians with minimum
and maximum, and ratios within rounds.

    python compare.py --bitnet target/release/bitnet model.gguf --peer NAME FOLDER MODEL [--peer ...] [--rounds 3]

FOLDER holds a peer's `llama-bench` and `llama-batched-bench`, and for the measure `sampled` also `llama-completion`, or
`llama-cli` where that takes a prompt and ends; its model needs a tokenizer. What every process printed about its speed
goes to --raw, as one JSON line each.
"""
import argparse
import json
import pathlib
import re
import resource
import shlex
import statistics
import subprocess
import sys
import threading
import time

BATCHES = (8, 32)
# Lengths of prompt and answer of each sequence in llama-batched-bench.
SHORT, FEW = 32, 32
# Ways to draw tokens: temperature and top-p.
DRAWS = {"most likely tokens": (0, 1), "temperature 0.7, top-p 0.9": (0.7, 0.9)}


def resident(process, peak):
    """Records the peak of anonymous and mapped memory of a process and its children until it ends."""
    while process.poll() is None:
        processes = [process.pid]
        for pid in processes:
            try:
                folder = pathlib.Path(f"/proc/{pid}")
                processes += [int(child) for child in (folder / f"task/{pid}/children").read_text().split()]
                sizes = re.findall(r"^(\w+): +(\d+) kB", (folder / "smaps_rollup").read_text(), re.M)
            except (OSError, ValueError):
                continue
            sizes = {name: int(kib) / 1024 for name, kib in sizes}
            anonymous = sizes.get("Anonymous", 0)
            peak["anonymous"] = max(peak["anonymous"], anonymous)
            peak["mapped"] = max(peak["mapped"], sizes.get("Rss", 0) - anonymous)
        time.sleep(0.02)


class Run:
    """A finished process: its output, duration and peak memory."""

    def __init__(self, options, name, measure, command):
        command = [*shlex.split(options.before), *map(str, command)]
        peak, start = dict(anonymous=0, mapped=0), time.monotonic()
        pipe = subprocess.PIPE
        # What a peer writes of random tokens need not be UTF-8.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace"
        )
        # Reading the sizes takes a quarter of a core, so no speed is measured meanwhile.
        watch = threading.Thread(target=resident, args=(process, peak)) if measure == "memory" else None
        if watch:
            watch.start()
        self.out, self.err = process.communicate()
        self.seconds, self.peak = time.monotonic() - start, peak
        if watch:
            watch.join()
        if process.returncode != 0:
            sys.exit(f"{shlex.join(command)}: {process.returncode}\n{self.err}")
        command[0] = pathlib.Path(command[0]).name
        said = dict(name=name, measure=measure, command=shlex.join(command), seconds=round(self.seconds, 3))
        said |= dict(memory=peak) if watch else {}
        options.raw.write(json.dumps(said | dict(output=self.report())) + "\n")
        options.raw.flush()

    def report(self):
        """What it printed about its speed: JSON, or lines."""
        if self.out.lstrip().startswith(("{", "[")):
            return json.loads(self.out)
        lines = (self.out + self.err).splitlines()
        return [line.strip() for line in lines if re.search(r"tok/s|time = |^\|", line)]


class Ours:
    def __init__(self, options):
        self.options, self.name = options, options.name
        self.binary, self.model = options.bitnet

    def run(self, measure, command, *flags):
        level = ["--isa", self.options.isa] if self.options.isa else []
        command = [self.binary, command, self.model, "--device", "cpu", *level, *flags]
        return Run(self.options, self.name, measure, command)

    def bench(self, measure, threads, *flags):
        run = self.run(measure, "bench", "--threads", threads, "--runs", 1, "--json", *flags)
        return run, json.loads(run.out)

    def alone(self, threads):
        prompt = self.options.prompt
        _, report = self.bench("alone", threads, "-p", prompt, "-n", self.options.new, "-b", 1)
        bandwidth, peak = report["memory_bandwidth_gb_s"], report["integer_peak_tops"]
        yield f"memory bandwidth, GB/s, {threads} threads", bandwidth
        yield f"integer peak, TOPS, {threads} threads", peak
        yield f"prefill {prompt}, tok/s, {threads} threads", report["prefill"][0]["tok_s"]
        yield f"decode, tok/s, {threads} threads", report["decode"][0]["tok_s"]
        yield f"decode, part of the bandwidth, {threads} threads", report["decode"][0]["gb_s"] / bandwidth
        yield f"prefill, part of the peak, {threads} threads", (
            2e-12 * report["trits"] * report["prefill"][0]["tok_s"] / peak
        )

    def together(self, threads):
        sizes = ",".join(map(str, BATCHES))
        _, report = self.bench("together", threads, "-p", SHORT, "-n", FEW, "-b", sizes)
        for row in report["decode"]:
            yield f"decode, {row['batch']} sequences, tok/s, {threads} threads", row["tok_s"]

    def load(self, threads):
        flags = ["--ids", "1", "-n", "1", "--temperature", "0", "--threads", threads]
        yield "a process for one token, s", self.run("load", "run", *flags).seconds

    def memory(self, threads):
        flags = ["--ids", "1", "-n", self.options.new, "--temperature", "0", "--threads", threads]
        peak = self.run("memory", "run", *flags).peak
        yield "anonymous memory at decode, MiB", peak["anonymous"]
        yield "mapped memory at decode, MiB", peak["mapped"]

    def sampled(self, threads):
        prompt = ",".join(map(str, range(1, SHORT + 1)))
        for how, (temperature, top_p) in DRAWS.items():
            # Peers draft no tokens.
            flags = ["-n", self.options.new, "--temperature", temperature, "--top-p", top_p, "--seed", 1]
            flags += ["--speculate", 0, "--threads", threads]
            run = self.run("sampled", "run", "--ids", prompt, *flags)
            yield f"{how}, tok/s, {threads} threads", float(re.search(r"generated at ([\d.]+) tok/s", run.err)[1])


class Peer:
    def __init__(self, options, name, folder, model):
        self.options, self.name, self.folder, self.model = options, name, pathlib.Path(folder), model

    def bench(self, measure, threads, prompt, new):
        flags = ["-m", self.model, "-t", threads, "-p", prompt, "-n", new, "-r", 1, "-o", "json"]
        return Run(self.options, self.name, measure, [self.folder / "llama-bench", *flags])

    def alone(self, threads):
        for row in json.loads(self.bench("alone", threads, self.options.prompt, self.options.new).out):
            what = f"prefill {row['n_prompt']}" if row["n_prompt"] else "decode"
            yield f"{what}, tok/s, {threads} threads", row["avg_ts"]

    def together(self, threads):
        sizes = ",".join(map(str, BATCHES))
        room = max(BATCHES) * (SHORT + FEW)
        flags = ["-m", self.model, "-c", room, "-b", room, "-ub", 512, "-npp", SHORT, "-ntg", FEW, "-npl", sizes]
        command = [self.folder / "llama-batched-bench", *flags, "-t", threads, "-tb", threads]
        run = Run(self.options, self.name, "together", command)
        # The table is on stdout or stderr, depending on the peer.
        for line in (run.out + run.err).splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) > 9 and cells[3].isdigit():
                yield f"decode, {cells[3]} sequences, tok/s, {threads} threads", float(cells[8])

    def load(self, threads):
        yield "a process for one token, s", self.bench("load", threads, 0, 1).seconds

    def memory(self, threads):
        peak = self.bench("memory", threads, 0, self.options.new).peak
        yield "anonymous memory at decode, MiB", peak["anonymous"]
        yield "mapped memory at decode, MiB", peak["mapped"]

    def sampled(self, threads):
        program = next(path for name in ("completion", "cli") if (path := self.folder / f"llama-{name}").exists())
        command = [program, "-m", self.model, "-p", "a" * SHORT, "-n", self.options.new, "-t", threads, "-c", 1024]
        command += ["--ignore-eos", "--seed", 1, "--samplers", "temperature;top_p"]
        times = (
            r"prompt eval time = +([\d.]+) ms(?s:.*)(?<!prompt) eval time = .* ms / +(\d+) (runs|tokens)"
            r"(?s:.*)total time = +([\d.]+) ms"
        )
        for how, (temperature, top_p) in DRAWS.items():
            draw = ["--temp", temperature, "--top-p", top_p]
            # llama.cpp's process can end before its log is written; then it runs again.
            runs = (Run(self.options, self.name, "sampled", [*command, *draw]) for _ in range(9))
            prompt, count, unit, total = next(filter(None, (re.search(times, run.err) for run in runs))).groups()
            # Where the unit is tokens, not runs, the first is counted but took none of the time. All time but the
            # prompt's counts, because `eval time` can be without the draws.
            count = int(count) - (unit == "tokens")
            yield f"{how}, tok/s, {threads} threads", 1000 * count / (float(total) - float(prompt))


MEASURES = dict(
    alone2=lambda who: who.alone(2),
    alone1=lambda who: who.alone(1),
    together=lambda who: who.together(2),
    load=lambda who: who.load(2),
    memory=lambda who: who.memory(2),
    sampled=lambda who: who.sampled(2),
)


def told(values):
    low, high = min(values), max(values)
    return f"{statistics.median(values):.3g} [{low:.3g}, {high:.3g}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bitnet", nargs=2, metavar=("BINARY", "MODEL"), required=True)
    parser.add_argument("--peer", nargs=3, metavar=("NAME", "FOLDER", "MODEL"), action="append", default=[])
    parser.add_argument("--name", default="bitnet", help="what the first column of numbers is called")
    parser.add_argument("--isa", help="the instruction set of bitnet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt, alone")
    parser.add_argument("--new", type=int, default=128, help="tokens of an answer, alone")
    parser.add_argument("--only", default=",".join(MEASURES), help="some of " + ",".join(MEASURES))
    parser.add_argument("--before", default="", help="a command that runs each process, like taskset -c 0,1; its time counts")
    parser.add_argument("--raw", type=argparse.FileType("a"), default="/dev/null")
    options = parser.parse_args()
    # bitnet.cpp needs a large stack, where it keeps a matrix.
    resource.setrlimit(resource.RLIMIT_STACK, (resource.getrlimit(resource.RLIMIT_STACK)[1],) * 2)
    ours = Ours(options)
    peers = [Peer(options, *peer) for peer in options.peer]
    rows = {}
    for measure in options.only.split(","):
        for _ in range(options.rounds):
            for who in (ours, *peers):
                for what, value in MEASURES[measure](who):
                    rows.setdefault(what, {}).setdefault(who.name, []).append(value)
    heads = [ours.name, *(head for peer in peers for head in (peer.name, "ratio"))]
    print("| | " + " | ".join(heads) + " |\n|---|" + "--:|" * len(heads))
    for what, by_name in rows.items():
        mine = by_name.get(ours.name)
        cells = [told(mine) if mine else ""]
        for peer in peers:
            theirs = by_name.get(peer.name)
            pairs = zip(mine, theirs) if mine and theirs else ()
            ratios = [a / b for a, b in pairs if b]
            cells += [told(theirs) if theirs else "", told(ratios) if ratios else ""]
        print(f"| {what} | " + " | ".join(cells) + " |")


main()
