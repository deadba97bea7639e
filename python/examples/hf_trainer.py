# hf_trainer.py - a stock transformers Trainer with a ledger: one callback.
#
#     python hf_trainer.py runs/a
#     python hf_trainer.py runs/b --change 3         step 3 moves one weight: the diff names it
#
# SPDX-License-Identifier: Apache-2.0
"""Trains a tiny random Llama to count, and records every step."""
import argparse

import torch
import transformers

from invar.huggingface import LedgerCallback


class Counting(torch.utils.data.Dataset):
    """Sequences n, n + 1, n + 2, ... of tokens."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.arange(index, index + 16) % 128
        return {"input_ids": ids, "labels": ids}


class Change(transformers.TrainerCallback):
    """Moves one weight by one unit in the last place, like a wrong kernel."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step - 1 == self.step:
            weight = model.model.layers[1].mlp.up_proj.weight.data
            weight[3, 5] = torch.nextafter(weight[3, 5], torch.tensor(9.0))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--change", type=int, default=-1, help="the step that is changed")
    options = parser.parse_args()

    transformers.set_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32))
    arguments = transformers.TrainingArguments(
        output_dir=options.run, max_steps=options.steps, per_device_train_batch_size=4,
        learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True,
        disable_tqdm=True)
    with LedgerCallback(options.run) as ledger:
        transformers.Trainer(model=model, args=arguments, train_dataset=Counting(),
                             callbacks=[Change(options.change), ledger]).train()


if __name__ == "__main__":
    main()
