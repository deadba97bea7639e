#!/usr/bin/env python3
# replay_files.py FOLDER - a byte tokenizer, a model's config and a data set, for replay.sh.
# SPDX-License-Identifier: Apache-2.0
"""Writes FOLDER/hf/{config,tokenizer}.json and FOLDER/data.jsonl."""
import json
import pathlib
import sys


def byte_letters():
    """The printable letter that byte-level BPE shows each byte as."""
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
          "initializer_range": 0.02, "eos_token_id": 256, "torch_dtype": "float32"}


def main():
    folder = pathlib.Path(sys.argv[1])
    (folder / "hf").mkdir(parents=True)
    for name, value in (("config", CONFIG), ("tokenizer", tokenizer()),
                        ("tokenizer_config", {"eos_token": "<end>"})):
        (folder / "hf" / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    lines = [json.dumps({"input": f"{i} + {i} = ", "label": str(2 * i)}) for i in range(12)]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
