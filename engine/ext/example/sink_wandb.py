#!/usr/bin/env python3
# sink_wandb.py [PROJECT] - a run of Invar as a run of Weights & Biases.
#
#     invar train mine.ini --sink 'python3 sink_wandb.py my-project'
#
# WANDB_MODE=offline writes a folder that `wandb sync` uploads later. A resumed run continues the
# same run of W&B.
# SPDX-License-Identifier: Apache-2.0
"""A sink for Weights & Biases."""
import json
import sys

import wandb


def main():
    run = None
    for line in sys.stdin:
        told = json.loads(line)
        if told["event"] == "begin":
            run = wandb.init(project=sys.argv[1] if len(sys.argv) > 1 else "invar",
                             id=told["run"], name=told["name"], resume="allow",
                             config=told["recipe"])
            # W&B numbers its rows by itself: the step of Invar, from -1 on, is the axis
            run.define_metric("step")
            run.define_metric("*", step_metric="step")
        elif told["event"] == "step":
            values = {name: float(value) for name, value in told["metrics"].items()}
            run.log({"step": told["step"], **values})
        elif told["event"] == "end":
            run.finish(exit_code=0 if told["status"] != "failed" else 1)


if __name__ == "__main__":
    main()
