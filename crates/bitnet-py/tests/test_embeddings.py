"""Embeddings are those of the engine, alone and together."""

import json
import subprocess
import urllib.request

import bitnet
import numpy as np
import pytest

NAME = "synthetic:embedding-tiny"
TEXTS = [[1, 2, 3], [7] * 40, [9], list(range(100, 200))]


@pytest.fixture(scope="module")
def embedder():
    with bitnet.Model.load(NAME, device="cpu", threads=2) as model:
        yield model


def test_texts_have_the_same_embeddings_together_as_alone(embedder):
    together = embedder.embed(TEXTS)
    assert together.shape == (4, 256) and together.dtype == np.float32 and together.flags.writeable
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    for row, text in zip(together, TEXTS):
        alone = embedder.embed(text)
        assert alone.shape == (256,)
        np.testing.assert_array_equal(alone, row)
    assert len(np.unique(together, axis=0)) == 4
    assert embedder.embed([]).shape == (0, 256)


def test_fewer_dimensions_are_the_first_ones_with_length_1(embedder):
    whole, short = embedder.embed(TEXTS), embedder.embed(TEXTS, dimensions=10)
    first = whole[:, :10]
    assert short.shape == (4, 10)
    np.testing.assert_allclose(short, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6)


def test_what_cannot_be_embedded_is_refused_with_its_cure(model, embedder):
    for embed, kind, text in [
        (lambda: model.embed("O"), bitnet.InvalidRequest, "demo"),
        (lambda: embedder.embed("O"), bitnet.InvalidRequest, "token"),
        (lambda: embedder.embed([[1], [1 << 20]]), bitnet.InvalidRequest, "1048576"),
        (lambda: embedder.embed([[]]), bitnet.InvalidRequest, "the prompt is empty"),
        (lambda: embedder.embed([1], dimensions=0), bitnet.InvalidRequest, "give a number from 1 to 256"),
        (lambda: embedder.embed([1], dimensions=257), bitnet.InvalidRequest, "give a number from 1 to 256"),
        (lambda: embedder.embed([3.5]), TypeError, "a text or a list of token ids"),
    ]:
        with pytest.raises(kind, match=text):
            embed()


def test_embeddings_are_those_of_the_server(embedder, program):
    serve = [program, "serve", NAME, "--device", "cpu", "--port", "0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            lines = iter(server.stdout.readline, "")
            url = next(word for line in lines for word in line.split() if word.startswith("http://")).rstrip("/.,")
            request = urllib.request.Request(
                f"{url}/embeddings", json.dumps({"input": TEXTS}).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                data = json.load(answer)["data"]
        finally:
            server.terminate()
    served = np.array([item["embedding"] for item in data], np.float32)
    np.testing.assert_array_equal(served, embedder.embed(TEXTS))
