#!/usr/bin/env python3
# agent_openai.py - agent.py with the package openai of PyPI in place of its own requests.
#
#     custom-agent-path = python3 engine/ext/example/agent_openai.py
#
# SPDX-License-Identifier: Apache-2.0
"""Plays higher or lower with the model through the client of OpenAI's API."""
from agent import lead
from openai import OpenAI


def complete(task, prompt):
    client = OpenAI(base_url=task["base_url"], api_key=task["api_key"])
    reply = client.completions.create(model=task["model"], prompt=prompt, max_tokens=1)
    return reply.choices[0].text


if __name__ == "__main__":
    lead(complete)
