/*
 * fake_gpu.h - a backend for tests whose memory the host cannot touch, as a GPU's.
 *
 * Its ops are those of the CPU. Its memory can be accessed only while one of its ops or copies
 * runs: an access by anyone else is a segmentation fault, and a line on stderr says what was
 * touched. An op that is given an address of the host, a copy that does not stay within one block
 * of this memory, and a device that was not opened are errors. It has graphs: lists of ops that are
 * run one by one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_DEVICE_FAKE_GPU_H
#define INVAR_TESTS_DEVICE_FAKE_GPU_H

#include "kernels-deterministic/device.h"

const invar_backend *invar_far_backend(void);

/* A device that is like `near` but for its memory, open; counts begin anew. Close. */
invar_status invar_far_open(invar_device *out, const invar_device *near) INVAR_MUST_USE;

/* Counts anew; of the coming takes the fail_at-th fails, 0: none. Nothing may be taken. */
void invar_far_begin(int fail_at);

/*
 * The device is lost at the at-th of the coming calls, be they takes, copies, waits or ops: this
 * one and all after it fail with INVAR_E_CUDA. `late`: as with a kernel that fails while the host
 * is ahead of it, nobody notices before the next get or wait, and what is done until then has no
 * effect. After invar_far_begin, which ends it; 0: it is well again.
 */
void invar_far_lose(int64_t at, bool late);

/*
 * A device that is opened while the run's own is open copies beside it. From now on, until the next
 * call or begin, such a copy to the host comes as late as it may: once the run's device has had no
 * call for `still` milliseconds, as while its thread waits for the copy. What was changed without
 * waiting is copied as it has become. INT64_MAX: it does not come; 0: at once.
 */
void invar_far_delay(int64_t still);

/* From now on, until the next begin, the device has so much memory. */
void invar_far_limit(size_t bytes);

typedef struct invar_far_counts {
    int takes;
    int live;     /* blocks that were not given back */
    size_t bytes; /* of these */
    size_t most;  /* at a time */
    int opens;    /* devices that were not closed */
    int64_t ops;
    int graphs;         /* that were made */
    int live_graphs;    /* that were not freed */
    int64_t graph_runs; /* their ops are counted among the ops */
    int64_t waits;      /* gets, waits and the op whose result is the host's */
    int64_t calls;      /* of which invar_far_lose speaks */
    bool lost;          /* and somebody was told */
} invar_far_counts;

invar_far_counts invar_far_counted(void);

/*
 * What another device does that can reach this memory: false, where an end is elsewhere. `flip`: a
 * bit of the first byte changes.
 */
INVAR_EXPORT bool invar_far_copy(void *to, const void *from, size_t bytes, bool flip);

/* From now on, until the next begin, no graph can be made. */
void invar_far_refuse_graphs(void);

#endif
