"""Logits are those of the engine, wherever they are read."""

import json
import subprocess
import urllib.request

import numpy as np
import pytest


def log_softmax(logits):
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


TEXT = "First Citizen:\nBefore we proceed any further, hear me speak."


def test_logits_of_prefixes_give_the_scores_of_a_text(model):
    ids = model.tokenize(TEXT)
    rows = model.logits([ids[:n] for n in range(1, len(ids))])
    assert rows.shape == (len(ids) - 1, model.vocab_size) and rows.dtype == np.float32
    scores = model.score(ids)
    assert scores.shape == (len(ids) - 1,) and scores.dtype == np.float32
    of_rows = log_softmax(rows)[np.arange(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(scores, of_rows, atol=1e-5, rtol=0)
    np.testing.assert_array_equal(model.score(TEXT), scores)
    # Alone, a prompt has the same bits.
    np.testing.assert_array_equal(model.logits(ids[:9]), rows[8])
    assert model.generate(ids[:9], max_tokens=1, temperature=0).tokens == [rows[8].argmax()]
    np.testing.assert_array_equal(model.logits(["O", TEXT])[1], model.logits(TEXT))


def test_arrays_can_be_empty_and_are_writable(model):
    assert model.score(model.tokenize("O")[:1]).shape == (0,)
    row = model.logits("O")
    row += 1
    assert row.flags.writeable
    assert model.logits([]).shape == (0, model.vocab_size)
    with pytest.raises(TypeError, match="a text or a list of token ids"):
        model.score(3)


def test_scores_are_those_of_the_server(model, program):
    serve = [program, "serve", "demo", "--device", "cpu", "--port", "0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            lines = iter(server.stdout.readline, "")
            url = next(word for line in lines for word in line.split() if word.startswith("http://")).rstrip("/.,")
            body = {"prompt": TEXT, "echo": True, "logprobs": 1, "max_tokens": 0}
            request = urllib.request.Request(
                f"{url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                logprobs = json.load(answer)["choices"][0]["logprobs"]["token_logprobs"]
        finally:
            server.terminate()
    assert logprobs[0] is None
    np.testing.assert_array_equal(np.array(logprobs[1:], np.float32), model.score(TEXT))
