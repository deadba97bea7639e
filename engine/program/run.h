/*
 * run.h - running the calls of a program, and looking at what they compute.
 *
 * A program names memory; a run brings it along, so one program serves any weights and any block
 * of memory. Watching changes nothing of what runs: after a call its points are shown.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_PROGRAM_RUN_H
#define INVAR_ENGINE_PROGRAM_RUN_H

#include "engine/program/call.h"
#include "engine/program/program.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_WATCH_INPUTS 8
#define INVAR_WATCH_NAME 48

/* The name of a value among those of a pass. */
typedef struct invar_value_name {
    int64_t layer; /* -1: of none */
    char text[INVAR_WATCH_NAME];
} invar_value_name;

/* What an op has computed: activations, or gradients of them. */
typedef struct invar_forward_value {
    invar_value_name name;
    const char *op; /* "rope.fwd" */
    bool backward;
    bool stream; /* the residual stream at the beginning, in the middle or at the end of a layer */
    /* What it was computed from. None: from what the pass was given. */
    invar_value_name inputs[INVAR_WATCH_INPUTS];
    int n_inputs;
    const invar_device *dev;
    const invar_tensor *rows;      /* in its memory */
    const invar_segments *samples; /* rows of each sample; in the head of each unit; the host's */
    const invar_segments *there;   /* the same, where ops read them */
    /* Rows of tokens that experts hold in their own order: see invar_watch_slots. NULL: others. */
    const invar_tensor *by_slot; /* (T, slots) i32: the row of each */
    struct invar_watch *watch;   /* that shows it */
} invar_forward_value;

/* Where values are shown to: called in the order of execution, for rows of whole samples. */
typedef struct invar_forward_probe {
    invar_status (*take)(void *payload, const invar_forward_value *value);
    void *payload;
    bool parts; /* fused calls are computed by their parts, too: as NAME.parts, behind NAME */
} invar_forward_probe;

typedef struct invar_program_run_args {
    invar_caller *caller;
    void *block;                      /* of the plan's bytes */
    const void *const *given;         /* (INVAR_PROGRAM_MOST_GIVEN) by number */
    bool fresh;                       /* sums that can begin anew do */
    const invar_forward_probe *probe; /* `take` NULL: nobody looks */
    const invar_segments *samples;    /* the lists that points are rows of; the host's */
    const invar_segments *there;      /* the same lists, where ops read them */
} invar_program_run_args;

/* The calls of one segment, in order. */
invar_status invar_program_run(const invar_program *program, int32_t segment,
                               const invar_program_run_args *run) INVAR_MUST_USE;

/* The tensor where it is in a run. */
invar_tensor invar_program_find(const invar_program *program, const invar_tensor *tensor,
                                const invar_program_run_args *run);

#ifdef __cplusplus
}
#endif
#endif
