# plain_torch.py - a plain PyTorch loop with a ledger.
#
#     python plain_torch.py runs/a
#     python plain_torch.py runs/b                   the same bits: invar diff runs/a runs/b
#     python plain_torch.py runs/c --change 7        step 7 scales one gradient: the diff names it
#
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on sums of numbers, and records every step."""
import argparse

import torch

import invar


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--change", type=int, default=-1, help="the step that is changed")
    options = parser.parse_args()

    config = {"seed": 7, "lr": 0.05, "width": 32}
    torch.manual_seed(config["seed"])
    model = torch.nn.Sequential(torch.nn.Linear(8, config["width"]), torch.nn.Tanh(),
                                torch.nn.Linear(config["width"], 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    with invar.Ledger(options.run, config=config) as ledger:
        for step in range(options.steps):
            x = torch.randn(64, 8)
            loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            if step == options.change:
                model[2].weight.grad *= 1.000001
            gradients = invar.hash_gradients(model)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            ledger.step(loss=loss, grad_norm=norm, batch=x,
                        digests=gradients + invar.hash_tensors(model))
        print(f"chain {ledger.chain}")
    print(f"next: invar ledger show {options.run}")


if __name__ == "__main__":
    main()
