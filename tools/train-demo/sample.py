"""Samples the exported model at seeds 1..10 and checks that it neither loops nor loses the form of a play."""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer

from golden import HERE, load_model


def repeated(ids, n=6):
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return len(grams) - len(set(grams))


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=HERE.parents[1] / "crates/bitnet-model/demo")
    parser.add_argument("--prompt", default="First Citizen:")
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()

    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    model = load_model(args.model)
    prompt = torch.tensor([tokenizer.encode(args.prompt).ids])
    token_loops = word_loops = 0
    for seed in range(1, args.seeds + 1):
        torch.manual_seed(seed)
        # Temperature and top_p come from the folder's generation_config.json; top_k 0 lifts transformers' own default.
        out = model.generate(prompt, max_new_tokens=args.tokens, top_k=0, pad_token_id=model.config.eos_token_id)[0]
        new = out[prompt.shape[1] :].tolist()
        in_tokens, in_words = repeated(new), repeated(tokenizer.decode(new).split())
        token_loops += in_tokens > 0
        word_loops += in_words > 0
        print(f"---- seed {seed}, {len(new)} tokens, repeated 6-grams: {in_tokens} of tokens, {in_words} of words")
        print(tokenizer.decode(out.tolist()))
    print(f"of {args.seeds} samples {token_loops} repeat a 6-gram of tokens, {word_loops} one of words")


if __name__ == "__main__":
    main()
