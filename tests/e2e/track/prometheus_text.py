# prometheus_text.py - a strict reader of Prometheus' text format 0.0.4.
#
# Stricter than Prometheus: every family has HELP and TYPE, once and before its values; values of a
# family are contiguous; no sample occurs twice; exactly the counters end in _total; the text ends
# with a line feed.
# SPDX-License-Identifier: Apache-2.0
"""Reads a text into {name: Family}; a ValueError names the problem."""
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf'({NAME})(?:\{{(.*)\}})? (\S+)')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
NUMBER = re.compile(r"[+-]?(\d+(\.\d+)?([eE][+-]?\d+)?|Inf)|NaN")


class Family:
    """A metric name with all of its values, {sorted labels: value}."""

    def __init__(self, name):
        self.name, self.kind, self.values = name, None, {}


def labels_of(text):
    labels, at = {}, 0
    while text and at < len(text):
        match = LABEL.match(text, at)
        if not match:
            raise ValueError(f"no label: {text[at:]}")
        if match[1] in labels:
            raise ValueError(f"the label {match[1]} twice")
        labels[match[1]] = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], match[2])
        at = match.end()
        if match[3] == "," and at == len(text):
            raise ValueError("a comma at the end")
    return tuple(sorted(labels.items()))


def read_comment(families, line):
    mark, name, rest = line[2:].split(" ", 2)
    if mark == "HELP":
        if name in families or not rest:
            raise ValueError(f"{name}: HELP twice, or empty")
        families[name] = Family(name)
    elif mark == "TYPE":
        if list(families)[-1:] != [name] or families[name].kind:
            raise ValueError(f"{name}: TYPE without HELP before it, or twice")
        if rest not in ("counter", "gauge") or (rest == "counter") != name.endswith("_total"):
            raise ValueError(f"{name}: the kind {rest}")
        families[name].kind = rest
    else:
        raise ValueError(f"a comment: {line}")


def read_sample(families, line):
    match = SAMPLE.fullmatch(line)
    if not match or not NUMBER.fullmatch(match[3]):
        raise ValueError(f"no sample: {line}")
    family = families.get(match[1])
    if not family or not family.kind or list(families)[-1] != match[1]:
        raise ValueError(f"{match[1]}: not behind its TYPE")
    labels = labels_of(match[2])
    if labels in family.values:
        raise ValueError(f"{match[1]}: {labels} twice")
    family.values[labels] = float(match[3])


def read(text):
    families = {}
    if text and not text.endswith("\n"):
        raise ValueError("no line feed at the end")
    for line in text.split("\n")[:-1]:
        (read_comment if line.startswith("# ") else read_sample)(families, line)
    return families


def check_itself():
    """Control: wrong texts are rejected."""
    good = '# HELP a_total b\n# TYPE a_total counter\na_total{x="y",z="\\"\\\\\\n"} 1e+01\n'
    if read(good)["a_total"].values != {(("x", "y"), ("z", '"\\\n')): 10.0}:
        raise ValueError("a good text is read wrongly")
    for bad in (good[:-1], good + good, good.replace("# HELP", "# HELPS"), good + "b 1\n",
                good.replace("counter", "gauge"), good.replace("_total", ""),
                good.replace("1e+01", "inf"), good.replace('"y"', '"y'), good.replace("z=", "x="),
                good.replace("\\n", "\\t"), good.replace("# TYPE a_total counter\n", ""),
                good + 'a_total{z="\\"\\\\\\n",x="y"} 2\n', good.replace('n"}', 'n",}')):
        try:
            read(bad)
        except (ValueError, IndexError):
            continue
        raise ValueError(f"a wrong text is read: {bad}")
