#!/usr/bin/env python3
# make.py GGUF OUT - SmolLM2-135M-Instruct as a Hugging Face folder, out of a GGUF file.
#
# Weights are dequantised to float32 by the package gguf, and the rows of q and k put back in the
# order of Hugging Face. config.json has the keys of the published one. The tokenizer has vocabulary
# and merges of the file, and the steps of the published tokenizer.json.
# SPDX-License-Identifier: Apache-2.0
"""A real pretrained model without the Hugging Face hub."""
import sys

import gguf
import tokenizers
import torch
import transformers

NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def hf_name(name):
    if name in TOP:
        return TOP[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.{kind}"


def in_hf_order(rows, heads):
    """In llama.cpp the halves of a rotated head alternate; here one follows the other."""
    count, width = rows.shape
    pairs = rows.reshape(heads, count // heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(count, width)


def field(reader, name):
    return reader.fields[name].contents()


def make_model(reader):
    def number(name):
        return field(reader, f"llama.{name}")
    heads = {"attn_q": number("attention.head_count"), "attn_k": number("attention.head_count_kv")}
    config = transformers.LlamaConfig(
        vocab_size=number("vocab_size"), hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"), num_hidden_layers=number("block_count"),
        num_attention_heads=heads["attn_q"], num_key_value_heads=heads["attn_k"],
        max_position_embeddings=number("context_length"), rms_norm_eps=1e-5,
        rope_theta=number("rope.freq_base"), tie_word_embeddings=True, bos_token_id=1,
        eos_token_id=2, pad_token_id=2, unk_token_id=0, is_llama_config=True,
        rope_interleaved=False)
    weights = {}
    for tensor in reader.tensors:
        value = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            value = in_hf_order(value, heads[part])
        weights[hf_name(tensor.name)] = torch.from_numpy(value.copy())
    model = transformers.LlamaForCausalLM(config)
    missing = model.load_state_dict(weights, strict=False)
    assert missing.missing_keys in ([], ["lm_head.weight"]) and not missing.unexpected_keys
    model.tie_weights()
    return model


def make_tokenizer(reader):
    tokens, kinds = (field(reader, f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    special = [t for t, kind in zip(tokens, kinds) if kind == gguf.TokenType.CONTROL]
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]))
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Digits(individual_digits=True),
         tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.add_special_tokens(special)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=special[1], eos_token=special[2], unk_token=special[0],
        pad_token=special[2], chat_template=field(reader, "tokenizer.chat_template"),
        clean_up_tokenization_spaces=False)


def main():
    reader, out = gguf.GGUFReader(sys.argv[1]), sys.argv[2]
    transformers.utils.logging.disable_progress_bar()
    make_model(reader).save_pretrained(out)
    make_tokenizer(reader).save_pretrained(out)


if __name__ == "__main__":
    main()
