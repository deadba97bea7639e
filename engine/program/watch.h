/*
 * watch.h - what the points of a program were computed from, and how they are shown.
 *
 * A watch follows a list of calls from its beginning. Nobody writes down what a point depends on:
 * it is the points that its call has read, and of results without a point those behind them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_PROGRAM_WATCH_H
#define INVAR_ENGINE_PROGRAM_WATCH_H

#include "engine/program/run.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_watch invar_watch;

/* Before the first call. The program stays as it is meanwhile. */
invar_status invar_watch_new(invar_watch **out, const invar_program *program,
                             const invar_program_run_args *run) INVAR_MUST_USE;
void invar_watch_free(invar_watch *watch);

/* Goes on to the next call, without looking. */
void invar_watch_pass(invar_watch *watch);

/*
 * The next call is about to run with these arguments. Where the probe wants that and the call is
 * fused, its parts run now, aside: neither what the call reads nor what it adds to changes.
 */
invar_status invar_watch_before(invar_watch *watch, const void *args) INVAR_MUST_USE;

/* Goes on to the next call, which has just run, and shows its points and those of its parts. */
invar_status invar_watch_show(invar_watch *watch) INVAR_MUST_USE;

/*
 * For whoever is shown a value: *out = its rows in the order of tokens, in the device's memory,
 * until the next value.
 */
invar_status invar_watch_rows(invar_tensor *out, const invar_forward_value *value) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
