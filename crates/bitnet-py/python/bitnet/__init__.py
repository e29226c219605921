"""Ternary (BitNet b1.58) language models on any CPU and on NVIDIA GPUs.

    import bitnet
    model = bitnet.Model.load("demo")
    print(model.generate("First Citizen:", max_tokens=40, seed=1))

`Model.load` takes the name of a model on Hugging Face, a `.gguf` file, a folder with `config.json` and safetensors,
`demo` (a small model in this package) or `synthetic:NAME`. All calls, from all threads, share one engine that computes
them together; the answer to a prompt and a seed never depends on what else is running.

Errors are exceptions of the class `BitnetError`. Their text is one line that ends with the cure, which is also in
`cure`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from ._bitnet import Answer, Model, Stream

__all__ = [
    "Answer",
    "BitnetError",
    "InvalidRequest",
    "Model",
    "ModelNotFound",
    "Options",
    "OutOfMemory",
    "RequestTimeout",
    "Stream",
    "Thought",
]


class BitnetError(Exception):
    """A model could not be loaded, or a request failed."""

    cure: str
    """What to do about it."""

    def __init__(self, message: str, cure: str = "") -> None:
        super().__init__(message)
        self.cure = cure

    def __reduce__(self):
        return type(self), (str(self), self.cure)


class ModelNotFound(BitnetError, FileNotFoundError):
    """There is no such model, file or folder."""


class InvalidRequest(BitnetError, ValueError):
    """An argument or option has a value that is not allowed for this model."""


class OutOfMemory(BitnetError, MemoryError):
    """The machine, or the limit that was given, has too little memory for the model."""


class RequestTimeout(BitnetError, TimeoutError):
    """The request took longer than its `timeout`."""


class Thought(str):
    """A piece of what a model thinks, in a stream with `thoughts=True`."""


class Options(TypedDict, total=False):
    """How to continue a prompt. What is absent or `None` follows the model's defaults."""

    max_tokens: int
    """Maximum number of new tokens; 256 by default."""
    min_tokens: int
    """Until this many tokens are generated, the text does not end."""
    temperature: float
    """Divides the logits; 0 always takes the most likely token."""
    top_k: int
    """Draws only from this many of the most likely tokens; 0 draws from all."""
    top_p: float
    """Draws only from the smallest set of most likely tokens whose total probability reaches this."""
    min_p: float
    """Draws only from tokens with at least this fraction of the most likely token's probability."""
    repetition_penalty: float
    """Divides the positive logits of tokens in the prompt or text so far, and multiplies their other logits."""
    presence_penalty: float
    """Subtracted from the logits of tokens generated so far."""
    frequency_penalty: float
    """Subtracted from the logits of tokens generated so far, once for each occurrence."""
    logit_bias: Mapping[int, float]
    """What is added to the logits of these token ids."""
    seed: int
    """Seed of the random numbers: the same seed gives the same text."""
    stop: str | Sequence[str]
    """The text ends before any of these."""
    stop_token_ids: Sequence[int]
    """Token ids that end the text, in addition to the model's own."""
    ignore_eos: bool
    """Treats the model's own end tokens as ordinary tokens."""
    json_schema: Mapping[str, Any] | str
    """The text is JSON that follows this schema."""
    regex: str
    """The whole text matches this regular expression, in the syntax of Rust's `regex`."""
    choice: Sequence[str]
    """The text is one of these."""
    tools: Sequence[Mapping[str, Any]]
    """Tools in OpenAI's form, which the model's chat template describes to the model. Calls are part of the text."""
    chat_template_kwargs: Mapping[str, Any]
    """Variables for the model's chat template, such as Qwen3's `enable_thinking`."""
    thinking: bool
    """Whether to think before the answer to a conversation, if the chat template leaves the choice."""
    thinking_budget: int
    """Maximum number of tokens of a thought; 0 is no thought."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
    """How much to think: becomes the nearest effort that the chat template accepts."""
    keep_thoughts: bool
    """Whether the thoughts of earlier turns stay in the prompt, if the chat template can keep them: by default they do."""
    priority: Literal["interactive", "normal", "batch"]
    """How urgent the request is, compared to others."""
    cache_salt: str
    """Requests with different salts share no cached prompts, in memory or in `cache_dir`."""
    timeout: float
    """Seconds, including those in the queue, after which the request fails with `RequestTimeout`."""


async def _next_piece(stream: Stream) -> str:
    loop = asyncio.get_running_loop()
    while True:
        asked_again = loop.create_future()
        piece = stream._poll(lambda: loop.call_soon_threadsafe(_resolve, asked_again))
        if piece is not None:
            return piece
        await asked_again


async def _whole_answer(stream: Stream) -> Answer:
    try:
        async for _ in stream:
            pass
    except BaseException:
        stream.close()
        raise
    return stream.answer()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
