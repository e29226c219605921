"""Evaluates a model behind `bitnet serve` with lm-evaluation-harness, in its three ways: multiple choice, perplexity of
whole texts, and generation. The tasks in `tasks/` are small and need no download.

    pip install "lm_eval[api]==0.4.13"
    bitnet serve demo &
    python lm_eval_tasks.py http://localhost:8080/v1
"""

import os
import sys
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8080/v1"
tasks = Path(__file__).with_name("tasks")
# The tasks name their data beside them.
os.chdir(tasks)
results = lm_eval.simple_evaluate(
    model="local-completions",
    model_args={
        "model": "demo",
        "base_url": f"{url}/completions",
        "tokenizer_backend": "remote",
        "num_concurrent": 4,
        "max_length": 512,
    },
    tasks=["verse_choice", "verse_perplexity", "verse_generation"],
    task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
    bootstrap_iters=0,
)
for task, metrics in sorted(results["results"].items()):
    for name, value in sorted(metrics.items()):
        if isinstance(value, float):
            print(f"{task}: {name} = {value:.6f}")
