/*
 * host_staging.h - a device's memory where the host can use it, and the host's arrays where ops
 * can.
 *
 * Where a device's memory is near, which is to say the host's own, nothing is copied: a window
 * shows the memory itself, and a staging leaves arrays where they are. Where it is far, both have
 * room of their own that grows on demand. A device that is NULL is near.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_HOST_STAGING_H
#define INVAR_ENGINE_MODEL_GRAPH_HOST_STAGING_H

#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Adds to the record of a failure for want of memory what helps: `advice` where it is memory of the
 * device, far or not, else that it is the host's; yields `status` again.
 */
invar_status invar_host_staging_advise_oom(invar_status status, bool far,
                                           const char *advice) INVAR_MUST_USE;

/* Bytes from a tensor's first element to its last, the gaps between rows included. */
size_t invar_host_staging_span(const invar_tensor *tensor);

/* One piece of a device's memory at a time, on the host. Zeroed but for the device; release. */
typedef struct invar_host_window {
    const invar_device *dev; /* borrowed */
    void *room;
    size_t bytes;
} invar_host_window;

void invar_host_window_release(invar_host_window *window);

/* *out = what the piece holds, until the next call. */
invar_status invar_host_window_read(const void **out, invar_host_window *window, const void *piece,
                                    size_t bytes) INVAR_MUST_USE;

/* The same of a whole tensor: *out is `tensor` with other addresses. */
invar_status invar_host_window_tensor(invar_tensor *out, invar_host_window *window,
                                      const invar_tensor *tensor) INVAR_MUST_USE;

/* *out = where the host writes what the piece shall hold; `store` then brings it there. */
invar_status invar_host_window_write(void **out, invar_host_window *window, void *piece,
                                     size_t bytes) INVAR_MUST_USE;
invar_status invar_host_window_store(invar_host_window *window, void *piece,
                                     size_t bytes) INVAR_MUST_USE;

/* An array of the host. */
typedef struct invar_upload {
    const void **array; /* gets the address that ops read it at; one that is NULL stays it */
    size_t bytes;
} invar_upload;

/* Arrays that ops read, sent all at once. Zeroed at first; release. */
typedef struct invar_upload_buffer {
    char *host;   /* copies side by side */
    void *device; /* what ops read */
    size_t bytes;
} invar_upload_buffer;

void invar_upload_buffer_release(invar_upload_buffer *staging, const invar_device *dev);

/*
 * Replaces the addresses. What is near stays borrowed; what is far may be changed at once. The
 * addresses of an earlier call are void.
 */
invar_status invar_upload_buffer_send(invar_upload_buffer *staging, const invar_device *dev,
                                      const invar_upload *arrays, int count) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
