#!/usr/bin/env python3
# sink_mlflow.py [EXPERIMENT] - a run of Invar as a run of MLflow.
#
#     invar train mine.ini --sink 'python3 sink_mlflow.py my-experiment'
#
# MLFLOW_TRACKING_URI is a server, or a folder such as file:./mlruns. A resumed run continues the
# run of MLflow that has its tag.
# SPDX-License-Identifier: Apache-2.0
"""A sink for MLflow."""
import json
import math
import sys

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

BATCH = 100  # parameters that MLflow accepts per request


def find(client, experiment, told):
    """The run of MLflow for this run, as it was begun before or new."""
    there = client.search_runs([experiment], f"tags.`invar.run` = '{told['run']}'")
    if there:
        return there[0].info.run_id
    run = client.create_run(experiment, tags={"invar.run": told["run"]}, run_name=told["name"])
    params = [Param(key, value[:500]) for key, value in told["recipe"].items()]
    for first in range(0, len(params), BATCH):
        client.log_batch(run.info.run_id, params=params[first:first + BATCH])
    return run.info.run_id


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "invar"
    client, run = MlflowClient(), None
    for line in sys.stdin:
        told = json.loads(line)
        if told["event"] == "begin":
            there = client.get_experiment_by_name(name)
            run = find(client, there.experiment_id if there else client.create_experiment(name),
                       told)
        elif told["event"] == "step":
            # MLflow has no metric for what is not a number, and no '@' in names
            values = {key.replace("@", "-at-"): float(value)
                      for key, value in told["metrics"].items()}
            client.log_batch(run, metrics=[
                Metric(key, value, int(told["time"] * 1000), told["step"])
                for key, value in values.items() if math.isfinite(value)])
        elif told["event"] == "end":
            client.set_terminated(run, "FAILED" if told["status"] == "failed" else "FINISHED")


if __name__ == "__main__":
    main()
