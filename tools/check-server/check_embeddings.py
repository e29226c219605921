"""Embeds texts with the unmodified clients `openai` and `ollama`, and compares each embedding with the others and with
the oracle's.

    bitnet serve ../../fixtures/qwen3-embedding --log off &
    pip install openai ollama safetensors numpy
    python check_embeddings.py http://127.0.0.1:8080 ../../fixtures/qwen3-embedding
"""
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import ollama
import openai
from safetensors.numpy import load_file

from refusal import refused

TEXTS = ["First Citizen:", "O Romeo, Romeo! wherefore art thou Romeo?", "caf\u00e9"]


def main():
    host, fixture = sys.argv[1], Path(sys.argv[2])
    client = openai.OpenAI(base_url=f"{host}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id

    def embedded(texts, **more):
        answer = client.embeddings.create(model=model, input=texts, **more)
        assert [item.index for item in answer.data] == list(range(len(texts))) and answer.usage.prompt_tokens > 0
        return np.array([item.embedding for item in answer.data], np.float32), answer.usage.prompt_tokens

    golden = load_file(fixture / "golden.safetensors")
    prompts = [name.removeprefix("ids_") for name in golden if name.startswith("ids_")]
    ours, _ = embedded([golden[f"ids_{j}"].tolist() for j in prompts])
    worst = max(np.abs(row - golden[f"embedding_{j}"]).max() for row, j in zip(ours, prompts))
    assert worst < 1e-5, worst
    print(f"openai {version('openai')}: {len(prompts)} embeddings, at most {worst:.1e} from the oracle's")

    # The client asks for base64 unless it is told otherwise.
    coded, tokens = embedded(TEXTS)
    plain, _ = embedded(TEXTS, encoding_format="float")
    assert (coded == plain).all() and np.allclose(np.linalg.norm(coded, axis=1), 1, atol=1e-6)
    short, _ = embedded(TEXTS, dimensions=10)
    assert short.shape == (len(TEXTS), 10)

    other = ollama.Client(host=host)
    answer = other.embed(model=model, input=TEXTS)
    assert (np.array(answer.embeddings, np.float32) == coded).all() and answer.prompt_eval_count == tokens
    assert answer.total_duration > 0
    one = other.embed(model=model, input=TEXTS[0], truncate=True, keep_alive="5m", options={"num_ctx": 512})
    assert (np.array(one.embeddings, np.float32) == coded[:1]).all()
    old = other.embeddings(model=model, prompt=TEXTS[1])
    assert (np.array(old.embedding, np.float32) == coded[1]).all()
    cut = other.embed(model=model, input=TEXTS, dimensions=10)
    assert (np.array(cut.embeddings, np.float32) == short).all()
    problem = refused(lambda: other.embed(model=model, input="x " * 9999), ollama.ResponseError)
    print(f"ollama {version('ollama')}: the same embeddings; too long: {problem}")


if __name__ == "__main__":
    main()
