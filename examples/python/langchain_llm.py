"""bitnet as a model of LangChain, in this process: whole, in batches, and as an async stream.

    pip install langchain-core bitnet-*.whl    (the wheel of this repository)
    python langchain_llm.py [MODEL]
"""

import asyncio
import sys
from typing import Any

import bitnet
from langchain_core.language_models.llms import BaseLLM
from langchain_core.outputs import Generation, GenerationChunk, LLMResult
from langchain_core.prompts import PromptTemplate


class Bitnet(BaseLLM):
    model: Any
    options: dict[str, Any] = {}

    @property
    def _llm_type(self) -> str:
        return "bitnet"

    def _generate(self, prompts, stop=None, run_manager=None, **options) -> LLMResult:
        answers = self.model.batch(prompts, stop=stop, **{**self.options, **options})
        of = lambda answer: Generation(text=answer.text, generation_info={"finish_reason": answer.finish_reason})
        return LLMResult(generations=[[of(answer)] for answer in answers])

    def _stream(self, prompt, stop=None, run_manager=None, **options):
        for piece in self.model.stream(prompt, stop=stop, **{**self.options, **options}):
            yield GenerationChunk(text=piece)

    async def _astream(self, prompt, stop=None, run_manager=None, **options):
        async for piece in self.model.stream(prompt, stop=stop, **{**self.options, **options}):
            yield GenerationChunk(text=piece)


async def read(chain, speaker: str) -> str:
    return "".join([piece async for piece in chain.astream({"speaker": speaker})])


async def read_all(chain, speakers: list[str]) -> list[str]:
    return await asyncio.gather(*(read(chain, speaker) for speaker in speakers))


with bitnet.Model.load(sys.argv[1] if len(sys.argv) > 1 else "demo") as model:
    llm = Bitnet(model=model, options={"max_tokens": 40, "seed": 1})
    chain = PromptTemplate.from_template("{speaker}:\n") | llm.bind(stop=["\n\n"])
    speakers = ["ROMEO", "JULIET", "First Citizen"]
    whole = chain.batch([{"speaker": speaker} for speaker in speakers])
    for speaker, text in zip(speakers, whole):
        print(f"{speaker}: {text!r}")
    streamed = asyncio.run(read_all(chain, speakers))
    print("streams give the same texts:", streamed == whole)
