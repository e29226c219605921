#!/usr/bin/env python3
"""Runs the JSON-Schema-Test-Suite against the schemas that constrain texts, and prints a table of its keywords.

    tools/check-schema/check.py [SUITE] [--draft draft2020-12] [--all]

SUITE is a folder with `tests/`; without it, pip downloads the source of the package `jsonschema`, which has the suite.
A text that a schema forbids must never be allowed (wrong: 0). A schema that cannot be held must be refused. A text that
a schema permits may be forbidden, because texts have one order of properties, no white space and integers without a
point; `held` counts the groups of tests where no text is.
"""
import argparse, collections, glob, json, os, pathlib, subprocess, sys, tarfile, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def suite(folder):
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "jsonschema==4.26.0"]
    subprocess.run(command, cwd=folder, check=True)
    (archive,) = pathlib.Path(folder).glob("jsonschema-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return archive.with_name(archive.name.removesuffix(".tar.gz")) / "json"


# The formats that are held; others are annotations.
FORMATS = {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"}


# What a schema of an old draft says about itself; the suite leaves it out.
OLD = {f"draft{n}": f"http://json-schema.org/draft-0{n}/schema#" for n in (3, 4, 6, 7)}


def groups(tests):
    paths = glob.glob(f"{tests}/*.json")
    paths += [f"{tests}/optional/format/{name}.json" for name in FORMATS]
    for path in sorted(filter(os.path.exists, paths)):
        name = os.path.relpath(path, tests).removesuffix(".json").removeprefix("optional/")
        for group in json.load(open(path, encoding="utf8")):
            if isinstance(group["schema"], dict) and tests.name in OLD:
                group["schema"].setdefault("$schema", OLD[tests.name])
            yield name, group


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("suite", nargs="?")
    options.add_argument("--draft", default="draft2020-12")
    options.add_argument("--all", action="store_true", help="also print what is refused, and what is forbidden")
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(options.suite) if options.suite else suite(temporary)
        listed = list(groups(folder / "tests" / options.draft))
    write = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    lines = [
        write({"schema": group["schema"], "texts": [write(test["data"]) for test in group["tests"]]})
        for _, group in listed
    ]
    command = os.environ.get("FOLLOWS", "").split() or ["cargo", "run", "-q", "-p", "bitnet", "--example", "follows"]
    ran = subprocess.run(command, cwd=ROOT, input="\n".join(lines).encode(), stdout=subprocess.PIPE, check=True)
    answers = [json.loads(line) for line in ran.stdout.decode().splitlines()]
    assert len(answers) == len(listed), (len(answers), len(listed))
    table = collections.defaultdict(collections.Counter)
    for (keyword, group), answer in zip(listed, answers):
        count = table[keyword]
        place = f"{keyword}: {group['description']}"
        if isinstance(answer, dict):
            # A schema that nothing follows is rightly refused.
            possible = any(test["valid"] for test in group["tests"])
            count["refused" if possible else "held"] += 1
            if options.all and possible:
                print("refused ", place, "|", answer["refused"][:160])
            continue
        outcome = "held"
        for test, allowed in zip(group["tests"], answer):
            if allowed and not test["valid"]:
                outcome = "wrong"
                print("WRONG   ", place, "|", test["description"], "|", write(group["schema"])[:300], "|", write(test["data"])[:100])
            elif not allowed and test["valid"] and outcome == "held":
                outcome = "narrower"
                if options.all:
                    print("narrower", place, "|", test["description"], "|", write(test["data"])[:100])
        count[outcome] += 1
    print("| keyword | groups of tests | held | narrower | refused | wrong |\n|---|---|---|---|---|---|")
    total = collections.Counter()
    for keyword, count in table.items():
        total.update(count)
        print(f"| `{keyword}` | {count.total()} | {count['held']} | {count['narrower']} | {count['refused']} | {count['wrong']} |")
    print(f"| all | {total.total()} | {total['held']} | {total['narrower']} | {total['refused']} | {total['wrong']} |")
    sys.exit(total["wrong"] > 0)


if __name__ == "__main__":
    main()
