/*
 * far.h - a backend for tests whose memory the host cannot touch, as a GPU's.
 *
 * Its ops are those of the CPU. Its memory can be accessed only while one of its ops or copies
 * runs: an access by anyone else is a segmentation fault, and a line on stderr says what was
 * touched. An op that is given an address of the host, a copy that does not stay within one block
 * of this memory, and a device that was not opened are errors.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FAR_H
#define INVAR_TESTS_FAR_H

#include "kernels-deterministic/device.h"

const invar_backend *invar_far_backend(void);

/* Counts anew; of the coming takes the fail_at-th fails, 0: none. Nothing may be taken. */
void invar_far_begin(int fail_at);

typedef struct invar_far_counts {
    int takes;
    int live;  /* blocks that were not given back */
    int opens; /* devices that were not closed */
    int64_t ops;
} invar_far_counts;

invar_far_counts invar_far_counted(void);

#endif
