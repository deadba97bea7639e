# tiny.py - recipes of runs that take well under a second, for tests in Python.
# SPDX-License-Identifier: Apache-2.0
"""The recipe tiny.ini and variants of it."""
import configparser
import io
import pathlib


def recipe(rollouts, **sections):
    """Returns tiny.ini with `rollouts` rollouts; keys of `sections` replace its keys or are
    added."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(pathlib.Path(__file__).with_name("tiny.ini").read_text("ascii"))
    parser.read_dict({"rollout": {"num-rollout": rollouts}})
    parser.read_dict(sections)
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()
