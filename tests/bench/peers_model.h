/*
 * peers_model.h - a complete model with our ops and with those of a peer, in turn.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_BENCH_PEERS_MODEL_H
#define INVAR_TESTS_BENCH_PEERS_MODEL_H

#include "cli/bench/model.h"
#include "tests/bench/peers.h"

/*
 * Measures training steps and decoding of the model with the ops of a shared object (path; it
 * exports invar_bench_peer) beside ours, and prints them.
 */
invar_status invar_bench_compare_model(const invar_bench_model_options *options,
                                       const char *path) INVAR_MUST_USE;

#endif
