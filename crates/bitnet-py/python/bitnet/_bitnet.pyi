from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypedDict, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, Unpack

from . import BitnetError, Options

_Message = Mapping[str, Any]
_Prompt = str | Sequence[int] | Sequence[_Message]

class _Backend(TypedDict):
    device: str
    isa: str
    threads: int
    kv: str

@final
class Answer:
    """A complete answer. `str(answer)` is its text."""

    @property
    def text(self) -> str:
        """The new text, without the prompt and the thought; empty for a model without a tokenizer."""
    @property
    def thought(self) -> str:
        """What the model thought before its answer to a conversation; empty if it did not think."""
    @property
    def tokens(self) -> list[int]:
        """The new token ids, those of the thought included, without the one that ended the text."""
    @property
    def prompt_tokens(self) -> int:
        """Number of tokens in the prompt."""
    @property
    def thought_tokens(self) -> int:
        """Number of tokens of the thought, markers included."""
    @property
    def finish_reason(self) -> Literal["stop", "length", "context", "cancelled"]:
        """Why the answer ended: `stop`, `length`, `context` or `cancelled`."""
    @property
    def seed(self) -> int:
        """The seed, which gives the same text again."""

@final
class Stream:
    """The pieces of an answer as it is generated: an iterator, and an async iterator in an asyncio event loop. `await`
    gives the whole answer. Closing or dropping it cancels the request."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> str: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> str: ...
    def __await__(self) -> Generator[Any, None, Answer]: ...
    def answer(self) -> Answer:
        """Waits for the end and returns the whole answer, including pieces already taken."""
    def close(self) -> None:
        """Cancels the request. The stream then has no more pieces."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def _poll(self, wake: Callable[[], object]) -> str | None: ...

@final
class Model:
    """A running model. All calls, from all threads, share one engine, which computes them together; no call changes the
    answer of another.

    A model belongs to the process that loaded it: load it after a fork, not before."""

    @staticmethod
    def load(
        model: str | PathLike[str],
        *,
        device: str = "auto",
        threads: int | None = None,
        memory: str | int | None = None,
        kv: Literal["f32", "f16", "bf16", "int8"] | None = None,
        batch_size: int | None = None,
        context: int | None = None,
        speculate: int | None = None,
        draft: str = "auto",
        cache_dir: str | PathLike[str] | None = None,
        cache_size: str | int | None = None,
        host_cache: str | int | None = None,
        progress: Callable[[str, int, int], object] | None = None,
    ) -> Model:
        """Opens a model and starts its engine. Only `device` and `kv` can change a token.

        :param model: a name on Hugging Face (`org/name`, `org/name@revision`, `org/name:file.gguf`), a `.gguf` file, a
            folder, `demo`, or `synthetic:NAME`.
        :param device: `auto`, `cpu`, `cuda` or `cuda:N`. `auto` takes a GPU if it can; if not, `notes` says why.
        :param threads: CPU threads; one on each physical core that the process may use by default.
        :param memory: limit for weights, activations and cache, such as `8G`, `50%` or a number of bytes.
        :param kv: type of cached keys and values. A smaller type holds longer texts but rounds more.
        :param batch_size: maximum number of requests computed together, 8 by default. Others wait.
        :param context: maximum number of tokens in a request; the model's context by default.
        :param speculate: maximum number of drafted tokens for a sequence in a step; 0 by default.
        :param draft: what drafts them: `auto`, `head`, `ngram`, `none`, or a smaller model with the same vocabulary.
        :param cache_dir: a folder that keeps the cache of prompts and answers: one that begins as an earlier one, of this
            or an earlier process, is then read instead of computed, with the same tokens.
        :param cache_size: maximum size of that folder, such as `20G` (the default) or a number of bytes.
        :param host_cache: host memory, such as `8G`, for what leaves the cache in a GPU's memory; only with a GPU.
        :param progress: called with the file being downloaded, `loading` or `hashing`, the amount done, and the total.
        """
    def generate(self, prompt: _Prompt, **options: Unpack[Options]) -> Answer:
        """Continues a text or token ids, or answers a conversation, and waits for the end."""
    def chat(self, messages: Sequence[_Message], **options: Unpack[Options]) -> Answer:
        """Answers a conversation: dicts with `role` and `content`, formatted by the model's chat template; without a
        template, their contents are joined by blank lines."""
    def stream(self, prompt: _Prompt, *, thoughts: bool = False, **options: Unpack[Options]) -> Stream:
        """Returns the pieces of an answer as they are generated. With `thoughts`, those of thoughts come too, as texts
        of the class `Thought`."""
    @overload
    def batch(
        self,
        prompts: Iterable[_Prompt | Mapping[str, Any]],
        *,
        return_errors: Literal[False] = False,
        **options: Unpack[Options],
    ) -> list[Answer]: ...
    @overload
    def batch(
        self,
        prompts: Iterable[_Prompt | Mapping[str, Any]],
        *,
        return_errors: Literal[True],
        **options: Unpack[Options],
    ) -> list[Answer | BitnetError]:
        """Answers many prompts in the same steps. Each gets the same tokens as alone.

        A prompt may also be a dict of `prompt` and options of its own, which go before the common ones. The first error
        is raised, or with `return_errors` each is returned in its place.
        """
    @overload
    def logits(self, prompt: str | Sequence[int]) -> NDArray[np.float32]: ...
    @overload
    def logits(self, prompt: Sequence[str] | Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Returns the logits that follow a prompt, with shape `(vocab,)`, or each of several prompts, with shape
        `(prompts, vocab)`. Several prompts are computed together and share their common beginnings."""
    def score(self, prompt: str | Sequence[int]) -> NDArray[np.float32]:
        """Returns the log-probability (natural logarithm) of every token of a prompt except the first, with shape
        `(tokens - 1,)`."""
    def embed(
        self, texts: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]], *, dimensions: int | None = None
    ) -> NDArray[np.float32]:
        """Returns the embedding of a text, with shape `(hidden,)`, or each of several texts, with shape
        `(texts, hidden)`. An embedding has length 1, also if `dimensions` keeps only its first values. Several texts
        are computed together, and each has the same embedding as alone."""
    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Converts a text to token ids, with the model's special tokens around it unless `special` is false."""
    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Converts token ids to text, with special tokens if `special` is true."""
    def close(self) -> None:
        """Ends the engine and frees its memory. Requests that still run fail."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    @property
    def name(self) -> str:
        """Name of the model."""
    @property
    def context(self) -> int:
        """Maximum number of tokens in a request, including its answer."""
    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""
    @property
    def notes(self) -> list[str]:
        """Notes for the user: warnings about the files, or why no GPU is used."""
    @property
    def backend(self) -> _Backend:
        """Where the model computes."""
    @property
    def counts(self) -> dict[str, int]:
        """What the engine has counted so far: `requests`, `steps`, `prompt_tokens`, `generated_tokens`, `cancelled`,
        `failed`, `cached_tokens` and `folder_tokens` of prompts that were in the cache and that came from the folder, and
        in `largest_batch` the maximum number of requests computed together."""
