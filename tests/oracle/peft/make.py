#!/usr/bin/env python3
# make.py BASES OUT         - writes adapters of models in BASES with the installed peft.
# make.py --again BASES OUT - computes OUT/NAME.json of the adapters in OUT with the installed peft.
#
# Writes a folder OUT/NAME per case with save_pretrained of peft. OUT/NAME.json has its base, its
# keys in a recipe, and token sequences with the log-probabilities that peft computes in float64.
# compare.py reads the result.
# SPDX-License-Identifier: Apache-2.0
"""Adapters of one version of peft."""
import json
import pathlib
import sys

import peft
import torch
import transformers

# name: base, rank, alpha, layers, additional configuration
CASES = {
    "llama-all": ("llama-fp16-tied", 4, 8, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                            "up_proj", "down_proj"], {}),
    "llama-patterns": ("llama-fp16-tied", 3, 2, ["q_proj", "o_proj"], {
        "rank_pattern": {"layers.0.self_attn.q_proj": 17, "o_proj": 1},
        "alpha_pattern": {"q_proj": 2.5}}),
    "llama-rslora": ("llama-fp16-tied", 3, 2, ["q_proj", "o_proj"], {"use_rslora": True}),
    "qwen3-attention": ("qwen3-fp16", 17, 3, ["q_proj", "v_proj"], {}),
    "qwen3_moe-mlp": ("qwen3_moe-bf16-shards", 2, 5, ["gate_proj", "up_proj", "down_proj"], {}),
}


def load(base):
    return transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64,
                                                             attn_implementation="eager")


def adapt(model, rank, alpha, layers, more):
    """Returns an adapter with a random B; with a zero B, as peft starts, the test would prove
    nothing."""
    adapted = peft.get_peft_model(model, peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=layers, task_type="CAUSAL_LM", **more))
    for name, value in adapted.named_parameters():
        if "lora_" in name:
            scale = 0.5 if "lora_B" in name else 0.3
            value.data = torch.randn(value.shape, dtype=torch.float32) * scale
    return adapted


def score(model, tokens):
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].to(torch.float64)
    logp = torch.log_softmax(logits[:-1], dim=-1)
    return [logp[i, token].item() for i, token in enumerate(tokens[1:])]


def write(out, name, base, about, model):
    torch.manual_seed(2)
    vocabulary = model.get_base_model().config.vocab_size
    lines = [torch.randint(0, vocabulary, (n,)).tolist() for n in (2, 5, 17, 40)]
    about |= {"peft": peft.__version__, "base": base,
              "samples": [[tokens, score(model, tokens)] for tokens in lines]}
    (out / f"{name}.json").write_text(json.dumps(about) + "\n", encoding="utf-8")


def main():
    again = sys.argv[1] == "--again"
    bases, out = (pathlib.Path(path) for path in sys.argv[1 + again:])
    for name, (base, rank, alpha, layers, more) in CASES.items():
        torch.manual_seed(1)
        if again:  # the folder names its base
            model = peft.AutoPeftModelForCausalLM.from_pretrained(
                out / name, dtype=torch.float64, attn_implementation="eager")
        else:
            model = adapt(load(bases / base), rank, alpha, layers, more)
            model.save_pretrained(out / name)
            (out / name / "README.md").unlink(missing_ok=True)
        model.to(torch.float64).eval()
        write(out, name, base, {"rank": rank, "alpha": alpha, "layers": layers} | more, model)


main()
