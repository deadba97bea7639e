#!/usr/bin/env python3
# replay_files.py FOLDER - a small model with a byte-level tokenizer, and a data set, for replay.sh.
# SPDX-License-Identifier: Apache-2.0
"""Writes FOLDER/hf, in Hugging Face's format, and FOLDER/data.jsonl."""
import json
import pathlib
import random
import struct
import sys


def byte_letters():
    """Returns the printable letter by which byte-level BPE represents each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    letters = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [letters[b] for b in range(256)]


def tokenizer():
    end = {"id": 256, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}
    vocab = {letter: i for i, letter in enumerate(byte_letters())}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end],
            "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}}


CONFIG = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 264,
          "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
          "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
          "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
          "hidden_act": "silu", "tie_word_embeddings": True, "attention_bias": False,
          "initializer_range": 0.02, "eos_token_id": 256, "torch_dtype": "float32",
          "training_note": "hf-ignore-keys names this one"}


def shapes():
    """Returns name and shape of every tensor of the model that CONFIG describes."""
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    heads = CONFIG["num_attention_heads"] * CONFIG["head_dim"]
    kv_heads = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    layer = {"input_layernorm": [hidden], "post_attention_layernorm": [hidden],
             "self_attn.q_norm": [CONFIG["head_dim"]], "self_attn.k_norm": [CONFIG["head_dim"]],
             "self_attn.q_proj": [heads, hidden], "self_attn.k_proj": [kv_heads, hidden],
             "self_attn.v_proj": [kv_heads, hidden], "self_attn.o_proj": [hidden, heads],
             "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden],
             "mlp.down_proj": [hidden, inner]}
    out = {"model.embed_tokens.weight": [CONFIG["vocab_size"], hidden],
           "model.norm.weight": [hidden]}
    for i in range(CONFIG["num_hidden_layers"]):
        out |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return out


def weights():
    """Returns the bytes of model.safetensors: random matrices, and norms of ones."""
    header, data, draw = {}, bytearray(), random.Random(1)
    for name, shape in shapes().items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = ([1.0] * count if len(shape) == 1 else
                  [draw.gauss(0, CONFIG["initializer_range"]) for _ in range(count)])
        start = len(data)
        data += struct.pack(f"<{count}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def main():
    folder = pathlib.Path(sys.argv[1])
    (folder / "hf").mkdir(parents=True)
    for name, value in (("config", CONFIG), ("tokenizer", tokenizer()),
                        ("tokenizer_config", {"eos_token": "<end>"})):
        (folder / "hf" / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    (folder / "hf" / "model.safetensors").write_bytes(weights())
    lines = [json.dumps({"input": f"{i} + {i} = ", "label": str(2 * i)}) for i in range(12)]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
