"""A cache in a folder: a prompt is computed once, over restarts, and salts separate tenants."""

import bitnet

PROMPT = "Before we proceed any further, hear me speak. You are all resolved rather to die than to famish? " * 4


def load(folder):
    return bitnet.Model.load("demo", device="cpu", threads=2, cache_dir=folder / "cache", cache_size="1G")


def test_a_later_process_reads_a_prompt_with_the_same_tokens(model, tmp_path):
    alone = model.generate(PROMPT, max_tokens=12, seed=1)
    with load(tmp_path) as first:
        assert first.generate(PROMPT, max_tokens=12, seed=1) == alone
        assert first.counts["folder_tokens"] == 0
    with load(tmp_path) as second:
        assert second.generate(PROMPT, max_tokens=12, seed=1) == alone
        blocks = (alone.prompt_tokens - 1) // 64
        assert second.counts["folder_tokens"] == second.counts["cached_tokens"] == 64 * blocks > 0


def test_salts_share_nothing_in_memory_or_in_the_folder(model, tmp_path):
    alone = model.generate(PROMPT, max_tokens=4, seed=1)
    with load(tmp_path) as first:
        for salt, cached in [("ann", False), ("ben", False), ("ann", True)]:
            before = first.counts["cached_tokens"]
            assert first.generate(PROMPT, max_tokens=4, seed=1, cache_salt=salt) == alone
            assert (first.counts["cached_tokens"] > before) == cached, salt
    with load(tmp_path) as second:
        second.generate(PROMPT, max_tokens=4, seed=1, cache_salt="cleo")
        assert second.counts["folder_tokens"] == 0
        second.generate(PROMPT, max_tokens=4, seed=1, cache_salt="ben")
        assert second.counts["folder_tokens"] > 0
