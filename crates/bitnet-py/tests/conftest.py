import json
import os
import subprocess
from pathlib import Path

import bitnet
import pytest

ROOT = Path(__file__).parents[3]
"""The repository."""


@pytest.fixture(scope="session")
def model():
    with bitnet.Model.load("demo", device="cpu", threads=2) as model:
        yield model


@pytest.fixture(scope="session")
def program():
    """The command-line program."""
    path = os.environ.get("BITNET_PROGRAM", ROOT / "target/release/bitnet")
    assert Path(path).exists(), "build it (cargo build --release) or name it in BITNET_PROGRAM"
    return str(path)


@pytest.fixture(scope="session")
def bitnet_run(program):
    """`bitnet run`: what it prints with --json."""

    def run(*arguments):
        command = [program, "run", "--json", "--device", "cpu", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
