"""Makes the tokenizers of fixtures/thinking: those of two fixtures with markers of thoughts and calls as added tokens.

Usage: make.py [FIXTURES]

The four markers take the ids of the four last merged tokens, so that the vocabulary keeps its size and the weights of
the fixture fit: `tokenizer.json` those of qwen3-unpacked, `tokenizer-recurrent.json` those of qwen35-ternary.
"""
import json
import sys
from pathlib import Path

MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


def main():
    fixtures = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2] / "fixtures")
    for base, name in [("qwen3-unpacked", "tokenizer.json"), ("qwen35-ternary", "tokenizer-recurrent.json")]:
        tokenizer = json.loads((fixtures / base / "tokenizer.json").read_text())
        model = tokenizer["model"]
        last = sorted(model["vocab"], key=model["vocab"].get)[-len(MARKERS):]
        for token, marker in zip(last, MARKERS):
            place = model["vocab"].pop(token)
            merged = [m for m in model["merges"] if "".join(m if isinstance(m, list) else m.split(" ")) == token]
            model["merges"] = [m for m in model["merges"] if m not in merged]
            tokenizer["added_tokens"].append({"id": place, "content": marker, "single_word": False, "lstrip": False,
                                              "rstrip": False, "normalized": False, "special": False})
        tokenizer["added_tokens"].sort(key=lambda token: token["id"])
        assert not any(last_token in "".join(m) for last_token in last for m in model["merges"] if isinstance(m, list))
        (fixtures / "thinking" / name).write_text(json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
