# What the scripts of engine/ext/embedded_script.c share, before each of them: the loop over lines.
#
# It has no single quote either.
# SPDX-License-Identifier: Apache-2.0
import json
import resource
import sys


def serve(memory, first, others, describe):
    """Answers the first line by one function, all others by another, what they raise by a text."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or hard > memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    answer = first
    for line in sys.stdin.buffer:
        try:
            reply = answer(**json.loads(line))
            answer = others
        except Exception as error:
            reply = {"error": describe(error)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
