/*
 * fake_gpu.h - a backend whose memory the host cannot access, like that of a GPU.
 *
 * Its ops are those of the CPU. The memory is accessible only while one of its ops or copies runs:
 * any other access is a segmentation fault, and a line on stderr names the block. An op with an
 * address in host memory, a copy that does not stay within one block, and the use of a device that
 * was not opened are errors. Graphs are lists of ops that run one by one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_DEVICE_FAKE_GPU_H
#define INVAR_TESTS_DEVICE_FAKE_GPU_H

#include "kernels-deterministic/device.h"

/* Returns the backend. */
const invar_backend *invar_fake_gpu_backend(void);

/*
 * Opens a device like `near` on this memory and resets the counts. Close it with
 * invar_device_close.
 */
invar_status invar_fake_gpu_open(invar_device *out, const invar_device *near) INVAR_MUST_USE;

/*
 * Resets the counts and makes the fail_at-th allocation fail from now on; 0 for none. No memory may
 * be allocated.
 */
void invar_fake_gpu_begin(int fail_at);

/*
 * Loses the device at the at-th further call (allocation, copy, wait or op): this call and all
 * later ones fail with INVAR_E_CUDA. With `delayed`, as for a kernel that fails while the host is
 * ahead of it, the error is reported by the next download or wait, and calls until then have no
 * effect. Call it after invar_fake_gpu_begin, which resets it; 0 restores the device.
 */
void invar_fake_gpu_lose(int64_t at, bool delayed);

/*
 * Delays downloads on devices that are opened while the run's own device is open, until the next
 * call of this function or of invar_fake_gpu_begin: such a copy happens only after the run's device
 * has had no call for `idle_ms` milliseconds, as if its thread waited for the copy. Memory that was
 * changed without waiting is copied as changed. INT64_MAX delays for ever; 0 not at all.
 */
void invar_fake_gpu_delay(int64_t idle_ms);

/* Limits the memory of the device until the next invar_fake_gpu_begin. */
void invar_fake_gpu_limit(size_t bytes);

typedef struct invar_fake_gpu_counts {
    int takes;
    int live;     /* blocks that are not freed */
    size_t bytes; /* size of these blocks */
    size_t most;  /* maximum of bytes at a time */
    int opens;    /* devices that are not closed */
    int64_t ops;
    int graphs;         /* graphs made */
    int live_graphs;    /* graphs not freed */
    int64_t graph_runs; /* launches; the ops of graphs are counted in `ops` */
    int64_t waits;      /* downloads, waits, and ops with results in host memory */
    int64_t calls;      /* calls that invar_fake_gpu_lose counts */
    bool lost;          /* the loss of the device was reported */
} invar_fake_gpu_counts;

invar_fake_gpu_counts invar_fake_gpu_counted(void);

/*
 * Whether ops reject addresses of the host. AddressSanitizer and ThreadSanitizer map their shadow
 * memory over a wide range of addresses that may contain two adjacent 32-bit numbers, so their
 * builds do not check.
 */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define INVAR_FAKE_GPU_REJECTS_HOST_ADDRESSES 0
#else
#define INVAR_FAKE_GPU_REJECTS_HOST_ADDRESSES 1
#endif

/*
 * Copies for another device that can reach this memory. Returns false if an end is not in this
 * memory. With `flip`, a bit of the first byte changes.
 */
INVAR_EXPORT bool invar_fake_gpu_copy(void *to, const void *from, size_t bytes, bool flip);

/* Makes captures of graphs fail until the next invar_fake_gpu_begin. */
void invar_fake_gpu_refuse_graphs(void);

#endif
