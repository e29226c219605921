"""The programs of the user guide run."""

import subprocess
import sys

from conftest import ROOT


def test_the_guides_program_runs():
    ran = subprocess.run([sys.executable, ROOT / "examples/python/guide.py"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "The king is ->" in ran.stdout
