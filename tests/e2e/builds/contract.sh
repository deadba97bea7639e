#!/usr/bin/env bash
# contract.sh COMPILER ARGUMENT ... - a compiler that contracts a*b+c, against the project's flags.
# SPDX-License-Identifier: Apache-2.0
exec "$@" -ffp-contract=fast
