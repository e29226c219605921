"""What the user guide shows of the Python package. Its tests run this."""

import asyncio

import bitnet

with bitnet.Model.load("demo", device="cpu") as model:
    # A text, whole.
    print(model.generate("First Citizen:", max_tokens=20, seed=1))

    # Its pieces, as they are generated.
    for piece in model.stream("First Citizen:", max_tokens=20, seed=1):
        print(piece, end="")
    print()

    # Many prompts in the same steps; each gets what it gets alone.
    prompts = ["First Citizen:", "The king is", "O, "]
    for prompt, answer in zip(prompts, model.batch(prompts, max_tokens=8, temperature=0)):
        print(prompt, "->", answer)

    # In an event loop.
    async def pieces():
        return [str(piece) async for piece in model.stream("O, ", max_tokens=8, seed=1)]

    print(asyncio.run(pieces()))

    # NumPy arrays: the logits that follow a prompt, and how likely its own tokens were.
    print(model.logits("First Citizen:").shape, model.score("First Citizen:").mean())
