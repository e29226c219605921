#!/usr/bin/env python3
"""Compares the log-probabilities that `bitnet serve` gives for the tokens of a prompt (`echo` with `logprobs`, as
lm-evaluation-harness asks for them) with those of transformers in float32: within 1e-3 for every token.

    bitnet serve fixtures/bitnet-packed --log off &
    pip install torch==2.15.0 transformers==5.23.0
    python check_logprobs.py http://127.0.0.1:8080 ../../fixtures/bitnet-packed

Both round activations to int8. Where a scaled activation is halfway between two integers, up to the last bit of a
float, the order of float operations decides, and in a small random model that one integer moves a logit by tenths. So a
token that is further apart is computed again in transformers, with the activation nearest to halfway moved to the other
side by 1e-6 of itself or a few times that; it must then agree. Such tokens are counted.
"""

import json
import pathlib
import sys
import urllib.request

import torch
import transformers

TASKS = pathlib.Path(__file__).resolve().parents[2] / "examples/python/tasks"
TOLERANCE = 1e-3
HALFWAY = 1e-4  # of a step between integers
TRIED = 8


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def texts():
    for line in (TASKS / "choice.jsonl").read_text().splitlines():
        task = json.loads(line)
        yield from (f"{task['text']} {choice}" for choice in task["choices"])
    for line in (TASKS / "texts.jsonl").read_text().splitlines():
        yield json.loads(line)["text"]


class Theirs:
    """The model in transformers, whose int8 roundings can be moved."""

    def __init__(self, folder):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        # The loader leaves what the file stores as bf16 in bf16; the values are the same in float32.
        for parameter in self.model.parameters():
            parameter.data = parameter.data.float()
        self.moved, self.halfway = None, []
        for name, module in self.model.named_modules():
            if "BitLinear" in type(module).__name__:
                # Projections of one input are rounded alike.
                shared = name.rsplit(".", 1)[0] + (".in" if name[-6:] not in ("o_proj", "n_proj") else ".out")
                module.register_forward_pre_hook(lambda _, args, shared=shared: self.see(shared, *args))

    def see(self, name, x):
        if self.moved and self.moved[0] == name:
            _, row, column, factor = self.moved
            x = x.clone()
            x[0, row, column] *= factor
        scaled = x[0].double() * 127 / x[0].double().abs().amax(-1, keepdim=True)
        distance = ((scaled.abs() % 1) - 0.5).abs()
        for row, column in (distance < HALFWAY).nonzero().tolist():
            value = scaled[row, column].abs().item()
            # From halfway itself, float32 may have rounded to either side.
            self.halfway.append((distance[row, column].item(), name, row, column, value % 1 < 0.5, value))
        return (x,)

    @torch.no_grad()
    def logprobs(self, ids):
        self.halfway = []
        rows = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return [rows[i - 1, ids[i]].item() for i in range(1, len(ids))]

    def agrees_at_a_tie(self, ids, position, ours):
        """Whether one activation, moved over the half next to it, gives our value."""
        self.logprobs(ids)
        nearest = sorted({tie[:4]: tie for tie in self.halfway if tie[2] <= position}.values())[:TRIED]
        for distance, name, row, column, _, value in nearest:
            for sign in (1, -1):
                self.moved = (name, row, column, 1 + sign * (distance + 1e-6 * value) / value * 1.5)
                apart = abs(self.logprobs(ids)[position] - ours)
                self.moved = None
                if apart <= TOLERANCE:
                    print(f"    one activation of {name}, {distance:.0e} from halfway, decides a token")
                    return True
        return False


def main():
    url, folder = sys.argv[1:3]
    tokenizer, theirs = transformers.AutoTokenizer.from_pretrained(folder), Theirs(folder)
    torch.set_num_threads(1)
    tokens = ties = 0
    worst = 0.0
    for text in texts():
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        body = {"prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
        ours = post(f"{url}/v1/completions", body)["choices"][0]["logprobs"]["token_logprobs"][1 : len(ids)]
        for position, (mine, other) in enumerate(zip(ours, theirs.logprobs(ids), strict=True)):
            tokens += 1
            if abs(mine - other) <= TOLERANCE:
                worst = max(worst, abs(mine - other))
                continue
            assert theirs.agrees_at_a_tie(ids, position, mine), f"{text!r}, token {position + 1}: {mine} and {other}"
            ties += 1
    print(f"{pathlib.Path(folder).name}: {tokens} tokens, at most {worst:.0e} apart, {ties} decided by a tie")


if __name__ == "__main__":
    main()
