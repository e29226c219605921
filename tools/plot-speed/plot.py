#!/usr/bin/env python3
"""Draws the README's picture from a raw record of tools/compare-peers/compare.py.

    python3 tools/plot-speed/plot.py record/MACHINE/DATE-peers.jsonl docs/images/speed.svg

Every bar is the median of the rounds in the record, with two threads. The dashed line is the most that the machine
allowed in one of these rounds: the lower of its memory bandwidth over the bytes of a step and its integer peak over the
products.
Needs Python 3 and nothing else.
"""

import json
import sys
from statistics import median

# Ternary weights of the shapes of 2B-4T: 30 layers, hidden 2560, 640 wide keys and values, feed-forward 6912.
TRITS = 30 * 2560 * (2 * 2560 + 2 * 640 + 3 * 6912)
ENGINES = ["bitnet", "ik_llama.cpp", "bitnet.cpp", "llama.cpp"]
PANELS = [("decode, 1 sequence", 1), ("decode, 8 sequences", 8), ("decode, 32 sequences", 32), ("prefill, 512 tokens", None)]
WIDTH, LEFT, RIGHT, BAR, GAP, HEAD = 760, 110, 60, 16, 5, 30
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .panel { font-weight: 600 }
  .ours { fill: #0b6e4f } .peer { fill: #9aa5b1 }
  .limit { stroke: #b3541e; stroke-width: 1.5; stroke-dasharray: 4 3 } .note { fill: #b3541e }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .ours { fill: #3fb68b } .peer { fill: #6e7b8a }
    .limit { stroke: #f0a06a } .note { fill: #f0a06a }
  }"""


def rows(path):
    with open(path, encoding="utf-8") as file:
        yield from map(json.loads, file)


def measured(path):
    """{(engine, batch or None for prefill): [tokens per second]} and {batch or None: [limit]}."""
    speeds, limits = {}, {}
    add = lambda into, key, value: into.setdefault(key, []).append(value)
    for row in rows(path):
        command, engine, output = row["command"].split(), row["name"], row["output"]
        option = lambda *names: next((command[command.index(n) + 1] for n in names if n in command), None)
        if option("--threads", "-t") != "2" or row["measure"] not in ("alone", "together"):
            continue
        if command[0] == "llama-bench":
            for test in output:
                add(speeds, (engine, None if test["n_prompt"] else 1), test["avg_ts"])
        elif command[0] == "llama-batched-bench":
            for cells in ([cell.strip() for cell in line.split("|")] for line in output):
                if len(cells) > 9 and cells[3].isdigit():
                    add(speeds, (engine, int(cells[3])), float(cells[8]))
        else:
            products = output["integer_peak_tops"] * 1e12 / (2 * TRITS)
            for decode in output["decode"]:
                memory = decode["tok_s"] * output["memory_bandwidth_gb_s"] / decode["gb_s"]
                add(speeds, (engine, decode["batch"]), decode["tok_s"])
                add(limits, decode["batch"], min(memory, products))
            for prefill in output["prefill"]:
                if prefill["tokens"] == 512:
                    add(speeds, (engine, None), prefill["tok_s"])
                    add(limits, None, products)
    of = lambda pick, table: {key: pick(values) for key, values in table.items()}
    return of(median, speeds), of(max, limits)


def panel(title, batch, speeds, limits, top):
    limit = limits[batch]
    scale = (WIDTH - LEFT - RIGHT) / max(limit, *(v for (_, b), v in speeds.items() if b == batch))
    out = [f'<text class="panel" x="{LEFT}" y="{top + 14}">{title}, tokens/s</text>']
    y = top + HEAD - 8
    for engine in ENGINES:
        speed = speeds.get((engine, batch))
        if speed is None:
            continue
        kind = "ours" if engine == "bitnet" else "peer"
        out.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{engine}</text>')
        out.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{speed * scale:.1f}" height="{BAR}" rx="2"/>')
        out.append(f'<text x="{LEFT + speed * scale + 6:.1f}" y="{y + 13}">{speed:.3g}</text>')
        y += BAR + GAP
    x = LEFT + limit * scale
    out.append(f'<path class="limit" d="M{x:.1f} {top + HEAD - 10}V{y}"/>')
    out.append(f'<text class="note" x="{x:.1f}" y="{top + 14}" text-anchor="end">machine\'s limit {limit:.3g}</text>')
    return out, y + 10


def main(record, picture):
    speeds, limits = measured(record)
    body, top = [], 10
    for title, batch in PANELS:
        lines, top = panel(title, batch, speeds, limits, top)
        body += lines
    label = "Tokens a second of bitnet and peers in decode and prefill, two threads"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img" aria-label="{label}">'
    with open(picture, "w", encoding="utf-8") as file:
        file.write("\n".join([head, f"<style>{STYLE}</style>", *body, "</svg>", ""]))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
