#!/usr/bin/env python3
# live.py INVAR FOLDER - runs report to the real W&B, MLflow, trackio, TensorBoard and
# prometheus_client.
#
# Runs are stopped and resumed, and one is killed. The data of each program are read with its own
# library and compared with the ledger. Control: values of other steps differ.
# SPDX-License-Identifier: Apache-2.0
"""Real dashboards."""
import json
import math
import os
import pathlib
import struct
import sys

from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing import event_accumulator
from wandb.proto import wandb_internal_pb2

import prometheus_text
from fixture import Fixture

ROLLOUTS = 8
EXAMPLES = "engine/ext/example"


class Live(Fixture):
    """Runs with the sinks of the examples."""

    def numbers(self, run):
        """Returns {name: {step: value}} of the ledger."""
        sql = "SELECT name, step, value_bits FROM {} x JOIN series USING (series) WHERE seg = " \
              "(SELECT max(seg) FROM {} y WHERE y.step = x.step)"
        found = {}
        for table, newest in (("metric", "step"), ("gauge", "step"), ("evaluation", "evaluation")):
            for name, step, bits in self.select(run, sql.format(table, newest)):
                value, = struct.unpack("<d", struct.pack("<q", bits))
                found.setdefault(name, {})[step] = value
        return found

    def sink(self, run, program):
        words = ["--sink", f"'{sys.executable}' {EXAMPLES}/{program} proof", "--sink-timeout", 300]
        for flags in (["--until", 7], []):
            told = self.train(run, *words, *flags)
            trouble = [line for line in told.splitlines()  # waiting is no trouble
                       if "sink:" in line and "waiting up to" not in line]
            self.expect(not trouble, f"{run}: {trouble}")
        wanted = self.numbers(run)
        self.expect(len(wanted) > 20 and -1 in wanted["eval/test"], f"{run}: {sorted(wanted)}")
        return wanted

    def compare(self, run, found, wanted):
        missing = [name for name in wanted if found.get(name) != wanted[name]]
        self.expect(not missing, f"{run}: {[(n, found.get(n), wanted[n]) for n in missing[:3]]}")
        # Control: values of other steps differ.
        name = "rollout/response_len/mean"
        wrong = {step + 1: value for step, value in wanted[name].items()}
        self.expect(found[name] != wrong, f"{run}: wrong steps are not noticed")
        print(f"{run}: {len(wanted)} series, {sum(map(len, wanted.values()))} values")


def wandb_records(data):
    """Yields records of an offline run: blocks of 32 KiB with pieces of checksum, length and
    kind."""
    whole, at = b"", 7  # the file header ends here
    while at < len(data):
        rest = 32768 - at % 32768
        if rest < 7:
            at += rest
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a complete record, or its last piece
            yield whole
            whole = b""


def check_wandb(s):
    os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": str(s.folder), "WANDB_SILENT": "true"}
    wanted, found = s.sink("wandb", "sink_wandb.py"), {}
    files = sorted((s.folder / "wandb").glob("offline-run-*/*.wandb"))
    s.expect(len(files) == 2, f"wandb: {files}")
    for data in map(pathlib.Path.read_bytes, files):
        s.expect(data[:4] == b":W&B", "wandb: no offline run")
        for record in map(wandb_internal_pb2.Record.FromString, wandb_records(data)):
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json)
                   for item in record.history.item}
            for name in wanted.keys() & row.keys():
                found.setdefault(name, {})[row["step"]] = float(row[name])
    s.compare("wandb", found, wanted)


def check_mlflow(s):
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{s.folder.resolve()}/mlflow.db"
    from mlflow import MlflowClient
    wanted = s.sink("mlflow", "sink_mlflow.py")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("proof")
    runs = client.search_runs([experiment.experiment_id])
    s.expect(len(runs) == 1 and runs[0].info.status == "FINISHED", f"mlflow: {runs}")
    s.expect(runs[0].data.params["num-rollout"] == str(ROLLOUTS), "mlflow: no parameters")
    found = {name.replace("-at-", "@"): {m.step: m.value for m in client.get_metric_history(
        runs[0].info.run_id, name)} for name in runs[0].data.metrics}
    finite = {name: {step: v for step, v in values.items() if math.isfinite(v)}
              for name, values in wanted.items()}
    s.compare("mlflow", found, finite)


def check_trackio(s):
    os.environ["TRACKIO_DIR"] = str(s.folder / "trackio")
    wanted, found = s.sink("trackio", "sink_trackio.py"), {}
    from trackio.sqlite_storage import SQLiteStorage
    names = SQLiteStorage.get_runs("proof")
    s.expect(len(names) == 1, f"trackio: {names}")
    for row in SQLiteStorage.get_logs("proof", names[0]):
        for name in wanted.keys() & row.keys():
            found.setdefault(name, {})[row["invar_step"]] = float(row[name])
    s.compare("trackio", found, wanted)


def single(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def check_tensorboard(s):
    flags = ["--tensorboard-dir", s.folder / "board", "--save-interval", 5, "--num-rollout", 40]
    s.kill_at(37, "board", *flags)
    s.train("board", *flags)
    reader = event_accumulator.EventAccumulator(str(s.folder / "board/board"),
                                                size_guidance={"scalars": 0})
    reader.Reload()
    found = {}
    for tag in reader.Tags()["scalars"]:
        events = reader.Scalars(tag)
        s.expect(len({e.step for e in events}) == len(events), f"board: {tag} has a step twice")
        found[tag] = {e.step: e.value for e in events}
    s.compare("board", found, {name: {step: single(value) for step, value in values.items()}
                               for name, values in s.numbers("board").items()})


def check_prometheus(s):
    path = s.folder / "run.prom"
    s.train("prom", "--prometheus-file", path)
    text = path.read_text(encoding="utf-8")
    theirs = {sample.name: {} for family in text_string_to_metric_families(text)
              for sample in family.samples}
    for family in text_string_to_metric_families(text):
        s.expect(family.documentation and family.type in ("gauge", "counter"), family)
        for sample in family.samples:
            theirs[sample.name][tuple(sorted(sample.labels.items()))] = sample.value
    ours = {name: family.values for name, family in prometheus_text.read(text).items()}
    s.expect(theirs == ours and len(ours) > 10, f"prometheus_client: {theirs.keys() ^ ours.keys()}")
    print(f"prometheus_client: {len(theirs)} families")


def main():
    s = Live(*sys.argv[1:], ROLLOUTS)
    check_prometheus(s)
    check_tensorboard(s)
    check_trackio(s)
    check_mlflow(s)
    check_wandb(s)
    sys.exit(1 if s.failed else 0)


if __name__ == "__main__":
    main()
