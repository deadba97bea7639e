#!/usr/bin/env python3
# make.py OUT [NAME ...] - writes small models and tokenizers with the installed transformers.
# make.py --again OUT    - computes NAME.json of existing folders with the installed transformers.
#
# Writes a Hugging Face folder OUT/NAME per case, as after fine-tuning: loaded, then saved by
# save_pretrained of model and tokenizer with their defaults. OUT/NAME.json has
# texts with their tokens, and token sequences with the log-probabilities that transformers computes
# from the folder. A family that this version of transformers does not have is left out. compare.py
# reads the result.
# SPDX-License-Identifier: Apache-2.0
"""Folders of one version of transformers."""
import json
import os
import pathlib
import shutil
import sys

import tokenizers
import torch
import transformers

SIZES = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128)
MOE = dict(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8)
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
if tuple(map(int, transformers.__version__.split(".")[:2])) < (4, 45):
    LLAMA3_ROPE = None

# name: class, additional configuration, type of the files, largest shard
CASES = {
    "llama-fp32": ("Llama", {}, "float32", "1GB"),
    "llama-fp16-tied": ("Llama", dict(tie_word_embeddings=True, rms_norm_eps=1e-5), "float16",
                        "1GB"),
    "llama-bf16-shards": ("Llama", dict(rope_theta=500000.0, rope_scaling=LLAMA3_ROPE), "bfloat16",
                          "6KB"),
    "qwen2-fp32-tied": ("Qwen2", dict(tie_word_embeddings=True), "float32", "1GB"),
    "qwen2-fp16-shards": ("Qwen2", dict(rope_theta=1000000.0), "float16", "6KB"),
    "qwen2-bf16": ("Qwen2", {}, "bfloat16", "1GB"),
    "qwen3-fp32-shards": ("Qwen3", dict(head_dim=8), "float32", "12KB"),
    "qwen3-fp16": ("Qwen3", dict(head_dim=8, rope_theta=1000000.0), "float16", "1GB"),
    "qwen3-bf16-tied": ("Qwen3", dict(head_dim=8, tie_word_embeddings=True), "bfloat16", "1GB"),
    "qwen3_moe-fp32": ("Qwen3Moe", MOE, "float32", "1GB"),
    "qwen3_moe-fp16": ("Qwen3Moe", MOE | dict(norm_topk_prob=True), "float16", "1GB"),
    "qwen3_moe-bf16-shards": ("Qwen3Moe", MOE | dict(mlp_only_layers=[0], rope_theta=1000000.0),
                              "bfloat16", "12KB"),
}

# Small vocabularies learn these words; other text is spelled in bytes.
CORPUS = ["The quick brown fox jumps over the lazy dog, again and again.",
          "def add(a, b):\n    return a + b\n", "1 + 1 = 2, 12 + 30 = 42, 3 * 14 = 42"] * 4
TEXTS = ["The dog jumps.", "  two spaces,\ttab\n\nlines ", "1234 + 5 = 1239", "naïve façade 東京 🙂",
         "<|im_start|>user\nHi<|im_end|>\n", "def f(x): return x", "DON'T panic, it's 42%"]
CHAT = "What is 12 + 30?"
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+"
           r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3_PATTERN, QWEN2_PATTERN = PATTERN % "{1,3}", PATTERN % ""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def make_tokenizer(kind):
    """Returns a byte-level BPE with the class and the pattern of the family's own tokenizers."""
    split, level = tokenizers.pre_tokenizers.Split, tokenizers.pre_tokenizers.ByteLevel
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    cls, pattern = transformers.PreTrainedTokenizerFast, LLAMA3_PATTERN
    if kind != "Llama":
        cls, pattern = transformers.Qwen2TokenizerFast, QWEN2_PATTERN
        bpe.normalizer = tokenizers.normalizers.NFC()
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [split(tokenizers.Regex(pattern), "isolated"),
         level(add_prefix_space=False, use_regex=False)])
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.train_from_iterator(CORPUS, tokenizers.trainers.BpeTrainer(
        vocab_size=300, show_progress=False, special_tokens=SPECIAL,
        initial_alphabet=level.alphabet()))
    out = cls(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>",
              unk_token=None, clean_up_tokenization_spaces=False)
    out.chat_template = TEMPLATE
    return out


def make_model(kind, extra, dtype, vocab):
    """Returns a model with weights that matter: attention not uniform, norms not 1, bias not 0."""
    config = getattr(transformers, kind + "Config")(vocab_size=vocab, bos_token_id=0,
                                                    eos_token_id=2, **SIZES, **extra)
    model = getattr(transformers, kind + "ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
            else:
                parameter.normal_(std=1.2 / parameter.shape[-1] ** 0.5)
    return model.to(getattr(torch, dtype))


def score(folder, samples):
    """Returns log-probabilities of every token but the first, in float32, from the saved folder."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, torch_dtype=torch.float32, attn_implementation="eager").eval()
    out = []
    with torch.no_grad():
        for tokens in samples:
            logits = model(torch.tensor([tokens])).logits[0, :-1].double()
            out.append(logits.log_softmax(-1)[range(len(tokens) - 1), tokens[1:]].tolist())
    return out


def make(name):
    kind, extra, dtype, shard = CASES[name]
    tokenizer = make_tokenizer(kind)
    make_model(kind, extra, dtype, len(tokenizer)).save_pretrained("before")
    model = transformers.AutoModelForCausalLM.from_pretrained("before", torch_dtype="auto")
    model.save_pretrained(name, max_shard_size=shard)
    tokenizer.save_pretrained(name)
    shutil.rmtree("before")


def expect(name):
    """Writes NAME.json from the folder alone."""
    again = transformers.AutoTokenizer.from_pretrained(name)
    torch.manual_seed(sum(name.encode()))
    samples = [torch.randint(0, len(again), (n,)).tolist() for n in (2, 7, 33, 90)]
    chat = again.apply_chat_template([{"role": "user", "content": CHAT}], tokenize=False,
                                     add_generation_prompt=True)
    expected = {
        "transformers": transformers.__version__,
        "texts": [[text, again.encode(text, add_special_tokens=False)] for text in TEXTS],
        "chat": [CHAT, again.encode(chat, add_special_tokens=False)],
        "samples": [list(pair) for pair in zip(samples, score(name, samples))]}
    pathlib.Path(f"{name}.json").write_text(json.dumps(expected), encoding="utf-8")


def main():
    again = sys.argv[1] == "--again"
    os.chdir(sys.argv[1 + again])  # configurations store the path that a model was loaded from
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name in sys.argv[2 + again:] or CASES:
        if not hasattr(transformers, CASES[name][0] + "ForCausalLM"):
            continue
        if not again:
            torch.manual_seed(sum(name.encode()))
            make(name)
        expect(name)


if __name__ == "__main__":
    main()
