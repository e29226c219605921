#!/usr/bin/env python3
"""Runs lm-evaluation-harness twice, on `bitnet serve` through its API and on transformers in float32 in this process,
and compares the metrics of all three kinds of tasks (multiple choice, perplexity of whole texts, generation).

    bitnet serve fixtures/llama-bitlinear --log off &
    pip install "lm_eval[api]==0.4.13" torch transformers==5.23.0
    python check_lm_eval.py http://127.0.0.1:8080 ../../fixtures/llama-bitlinear

Values of tokens are compared by `check_logprobs.py`, which explains those that a tie between two int8 values decides.
"""

import os
import pathlib
import sys

import lm_eval
import torch
import transformers
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

TASKS = pathlib.Path(__file__).resolve().parents[2] / "examples/python/tasks"


def metrics(model, **options):
    results = lm_eval.simple_evaluate(
        model=model,
        tasks=["verse_choice", "verse_perplexity", "verse_generation"],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        bootstrap_iters=0,
        **options,
    )["results"]
    return {
        f"{task}: {name.removesuffix(',none')}": value
        for task, values in sorted(results.items())
        for name, value in sorted(values.items())
        if isinstance(value, float)
    }


def main():
    url, folder = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    # The tasks name their data beside them.
    os.chdir(TASKS)
    ours = metrics(
        "local-completions",
        model_args={
            "model": folder.name,
            "base_url": f"{url}/v1/completions",
            "tokenizer": str(folder),
            "num_concurrent": 4,
            "max_length": 512,
        },
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    # The loader leaves what the file stores as bf16 in bf16; the values are the same in float32.
    for parameter in model.parameters():
        parameter.data = parameter.data.float()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = metrics(HFLM(pretrained=model, tokenizer=tokenizer, max_length=512))
    assert ours.keys() == theirs.keys(), (ours, theirs)
    for name, value in ours.items():
        print(f"{folder.name}: {name} = {value:.7g}, {theirs[name]:.7g} of transformers")


if __name__ == "__main__":
    main()
