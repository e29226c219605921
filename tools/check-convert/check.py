"""Reads a converted TQ1_0 or TQ2_0 file with the tools that own the format.

    pip install gguf numpy                 # and llama-cpp-python for --golden
    bitnet convert fixtures/llama-bitlinear /tmp/m.gguf --to tq2_0
    python check.py fixtures/llama-bitlinear /tmp/m.gguf --golden fixtures/llama-bitlinear/golden-TQ2_0.safetensors

Every ternary tensor, dequantised by the `gguf` package, must be the packed checkpoint's trits times its scale (rounded
to f16). With --golden, llama.cpp's greedy tokens must be the golden ones up to the first margin below 0.5: its
activations are quantised in blocks of 256, not per token, so closer calls may fall the other way.
"""

import argparse
import json
import pathlib
import struct

import gguf
import numpy as np

NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NUMPY = {"F32": "<f4", "I32": "<i4", "U8": "u1", "BF16": "<u2", "F16": "<f2"}


def safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, info in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        start, end = (8 + size + o for o in info["data_offsets"])
        values = np.frombuffer(data[start:end], NUMPY[info["dtype"]]).reshape(info["shape"])
        if info["dtype"] == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = values
    return tensors


def expected(folder: pathlib.Path, name: str, tensors: dict[str, np.ndarray], config: dict) -> np.ndarray:
    packed = tensors[f"{name}.weight"]
    trits = np.concatenate([(packed >> (2 * i)) & 3 for i in range(4)]).astype(np.float32) - 1
    scale = tensors[f"{name}.weight_scale"].reshape(())
    multiplies = config["quantization_config"].get("linear_class") == "autobitlinear"
    scale = np.float32(scale if multiplies else np.float32(1) / scale)
    return trits * np.float32(np.float16(scale))


def permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of interleaved rope, as llama.cpp's converter writes arch `llama`."""
    rows, cols = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def check_tensors(folder: pathlib.Path, path: pathlib.Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    tensors = safetensors(folder / "model.safetensors")
    reader = gguf.GGUFReader(path)
    interleaved = bytes(reader.fields["general.architecture"].parts[-1]) == b"llama"
    checked = 0
    for tensor in reader.tensors:
        part = tensor.name.split(".")
        if len(part) != 4 or part[2] not in NAMES:
            continue
        want = expected(folder, f"model.layers.{part[1]}.{NAMES[part[2]]}", tensors, config)
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(part[2])
        if interleaved and heads:
            want = permuted(want, heads)
        got = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(want.shape)
        assert np.array_equal(got, want), f"{tensor.name} differs"
        checked += 1
    assert checked == 7 * config["num_hidden_layers"], checked
    print(f"{path.name}: {checked} ternary tensors equal")


def check_greedy(path: pathlib.Path, golden: pathlib.Path) -> None:
    import llama_cpp

    values = safetensors(golden)
    model = llama_cpp.Llama(str(path), n_ctx=512, logits_all=True, verbose=False, n_threads=2)
    compared = 0
    for j in range(5):
        ids = values[f"ids_{j}"].tolist()
        for want, margin in zip(values[f"greedy_{j}"].tolist(), values[f"margin_{j}"].tolist()):
            if margin < 0.5:
                break
            model.reset()
            model.eval(ids)
            got = int(np.argmax(model.scores[len(ids) - 1]))
            assert got == want, f"prompt {j}, position {len(ids)}: {got}, expected {want} with margin {margin}"
            ids.append(want)
            compared += 1
    assert compared > 0, "no margin is wide enough to compare"
    print(f"{path.name}: {compared} greedy tokens equal")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("--golden", type=pathlib.Path)
    arguments = parser.parse_args()
    check_tensors(arguments.folder, arguments.gguf)
    if arguments.golden:
        check_greedy(arguments.gguf, arguments.golden)
