# script_loop.py - the loop over lines, put before each script that embedded_script.c opens.
#
# A script has no single quote, see the command in embedded_script.c.
# SPDX-License-Identifier: Apache-2.0
import json
import resource
import sys


def serve(memory, first, others, describe):
    """Answers the first line with first(), all others with others(), exceptions with describe().

    The address space is limited to `memory` bytes.
    """
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
