"""bitnet as a model of LlamaIndex, in this process: whole, and as a stream.

    pip install llama-index-core bitnet-*.whl    (the wheel of this repository)
    python llama_index_llm.py [MODEL]
"""

import sys
from typing import Any

import bitnet
from llama_index.core.llms import CompletionResponse, CompletionResponseGen, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback


class Bitnet(CustomLLM):
    model: Any
    options: dict[str, Any] = {}

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            model_name=self.model.name,
            context_window=self.model.context,
            num_output=self.options.get("max_tokens", 256),
        )

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **options: Any) -> CompletionResponse:
        answer = self.model.generate(prompt, **{**self.options, **options})
        return CompletionResponse(text=answer.text, additional_kwargs={"finish_reason": answer.finish_reason})

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **options: Any) -> CompletionResponseGen:
        text = ""
        for piece in self.model.stream(prompt, **{**self.options, **options}):
            text += piece
            yield CompletionResponse(text=text, delta=piece)


with bitnet.Model.load(sys.argv[1] if len(sys.argv) > 1 else "demo") as model:
    llm = Bitnet(model=model, options={"max_tokens": 40, "seed": 1})
    whole = llm.complete("First Citizen:\n")
    print(repr(whole.text))
    print("a stream gives the same text:", "".join(r.delta for r in llm.stream_complete("First Citizen:\n")) == whole.text)
