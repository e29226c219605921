"""Threads and event loops share one engine, and nobody waits for the interpreter."""

import asyncio
import threading
import time

import bitnet
import pytest


def test_calls_of_several_threads_are_computed_together(model):
    prompts = [f"Citizen {i}:" for i in range(6)]
    alone = [model.generate(prompt, max_tokens=60, seed=i) for i, prompt in enumerate(prompts)]
    with bitnet.Model.load("demo", device="cpu", threads=2) as fresh:
        answers, begin = [None] * len(prompts), threading.Barrier(len(prompts))

        def ask(i):
            begin.wait()
            answers[i] = fresh.generate(prompts[i], max_tokens=60, seed=i)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert answers == alone
        # One after the other they would take 60 steps each.
        assert fresh.counts["steps"] < 3 * 60 and fresh.counts["largest_batch"] >= 4, fresh.counts


def test_other_threads_run_while_a_text_is_computed(model):
    counted, done = 0, threading.Event()

    def count():
        nonlocal counted
        while not done.is_set():
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    tokens = model.generate("O", max_tokens=200, ignore_eos=True, seed=1).tokens
    done.set()
    thread.join()
    assert len(tokens) == 200 and counted > 10_000


def test_async_streams_give_the_same_texts_together(model):
    prompts = [f"Citizen {i}:" for i in range(5)]
    alone = [model.generate(prompt, max_tokens=40, seed=i) for i, prompt in enumerate(prompts)]
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def read(i):
        stream = model.stream(prompts[i], max_tokens=40, seed=i)
        pieces = [piece async for piece in stream]
        assert len(pieces) > 10
        assert stream.answer() == alone[i]
        return "".join(pieces)

    async def all_of_them():
        ticking = asyncio.create_task(tick())
        texts = await asyncio.gather(*(read(i) for i in range(len(prompts))))
        whole = await model.stream(prompts[0], max_tokens=40, seed=0)
        ticking.cancel()
        return texts, whole

    texts, whole = asyncio.run(all_of_them())
    assert texts == [answer.text for answer in alone] and whole == alone[0]
    assert ticks > 50, "the event loop runs while texts are computed"


def test_a_cancelled_task_cancels_its_request(model):
    async def give_up():
        endless = model.stream("O", max_tokens=1900, ignore_eos=True, seed=1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(endless, 0.01)
        return endless

    before = model.counts["cancelled"]
    stream = asyncio.run(give_up())
    with pytest.raises(bitnet.BitnetError, match="closed before its end"):
        stream.answer()
    deadline = time.monotonic() + 20
    while model.counts["cancelled"] == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_closed_or_dropped_stream_is_cancelled(model):
    before = model.counts["cancelled"]
    with model.stream("O", max_tokens=400, ignore_eos=True, seed=1) as stream:
        next(stream)
    assert list(stream) == []
    dropped = model.stream("O", max_tokens=400, ignore_eos=True, seed=1)
    next(dropped)
    del dropped
    deadline = time.monotonic() + 20
    while model.counts["cancelled"] < before + 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_more_streams_than_the_queue_holds_wait_for_room(model):
    async def all_of_them():
        streams = [model.stream("O", max_tokens=2, ignore_eos=True, seed=i) for i in range(400)]
        return await asyncio.gather(*streams)

    answers = asyncio.run(all_of_them())
    assert [len(answer.tokens) for answer in answers] == [2] * 400
    assert answers[7] == model.generate("O", max_tokens=2, ignore_eos=True, seed=7)
