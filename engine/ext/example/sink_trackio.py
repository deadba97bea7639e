#!/usr/bin/env python3
# sink_trackio.py [PROJECT] - a run of Invar as a run of trackio.
#
#     invar train mine.ini --sink 'python3 sink_trackio.py my-project'
#     trackio show --project my-project
#
# A resumed run continues the same run of trackio, which is called NAME-UUID.
# SPDX-License-Identifier: Apache-2.0
"""A sink for trackio."""
import json
import sys

import trackio


def main():
    run = None
    for line in sys.stdin:
        told = json.loads(line)
        if told["event"] == "begin":
            run = trackio.init(project=sys.argv[1] if len(sys.argv) > 1 else "invar",
                               name=f"{told['name']}-{told['run'][:8]}", resume="allow",
                               config=told["recipe"])
        elif told["event"] == "step":
            values = {name: float(value) for name, value in told["metrics"].items()}
            run.log({"invar_step": told["step"], **values})
        elif told["event"] == "end":
            run.finish()


if __name__ == "__main__":
    main()
