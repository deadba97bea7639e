#!/usr/bin/env python3
# generate.py [FOLDER] - writes the fixtures of the tests of model files: small models, as
# transformers and safetensors write them.
#
# FOLDER is the folder of this program by default. It gets one model of each family with random
# weights (save_pretrained), among them a critic and a model in shards, and a file of tensors of
# many types. Made with torch 2.15.0, transformers 5.22.2, safetensors 0.8.0.
# SPDX-License-Identifier: Apache-2.0
"""Writes the fixtures of the tests of model files."""
import pathlib
import sys

import safetensors.torch
import torch
import transformers

SMALL = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}


def models():
    """Yields the name, the model, the dtype of its weights and the size of a shard."""
    config = transformers.LlamaConfig(**SMALL, rope_parameters=LLAMA3)
    yield "llama", transformers.LlamaForCausalLM(config), torch.bfloat16, "1GB"
    config = transformers.Qwen2Config(**SMALL, tie_word_embeddings=True)
    yield "qwen2", transformers.Qwen2ForCausalLM(config), torch.float16, "1GB"
    config = transformers.Qwen3Config(**SMALL, head_dim=8, tie_word_embeddings=True,
                                      use_sliding_window=True, sliding_window=16,
                                      max_window_layers=1)
    yield "qwen3", transformers.Qwen3ForCausalLM(config), torch.float32, "1GB"
    config = transformers.Qwen3MoeConfig(**SMALL, head_dim=8, num_experts=4, num_experts_per_tok=2,
                                         moe_intermediate_size=8, mlp_only_layers=[1],
                                         norm_topk_prob=True)
    yield "qwen3_moe", transformers.Qwen3MoeForCausalLM(config), torch.bfloat16, "6KB"
    config = transformers.Qwen2Config(**SMALL, num_labels=1)
    yield "critic", transformers.Qwen2ForSequenceClassification(config), torch.bfloat16, "1GB"


def mixed():
    """Returns tensors in the order in which safetensors writes them: by width, then by name."""
    return {
        "f64": torch.tensor([[1.5], [-2.0]], dtype=torch.float64),
        "i64": torch.tensor([1, -2, 2**40], dtype=torch.int64),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "a.f32": torch.tensor([[1.0, 2.0, 3.0], [float("inf"), -0.0, 1e-45]]),
        "empty": torch.zeros((0, 3)),
        "i32": torch.tensor([3, -4], dtype=torch.int32),
        "b.bf16": torch.tensor([1.0, 3.140625, -1e-40], dtype=torch.bfloat16),
        "f16": torch.tensor([1.0, 65504.0, 6e-8, -0.0], dtype=torch.float16),
        "name \"\u00e4\"": torch.tensor([1, 255], dtype=torch.uint8),
        "u8": torch.tensor([[9, 8, 7]], dtype=torch.uint8),
    }


def main():
    here = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    here = here if len(sys.argv) > 1 else here.parent
    torch.manual_seed(1)
    for name, model, dtype, shard in models():
        for parameter in model.parameters():  # norms and biases, too: swapped tensors differ
            torch.nn.init.normal_(parameter)
        model.to(dtype).save_pretrained(here / name, max_shard_size=shard)
    safetensors.torch.save_file(mixed(), here / "mixed.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
