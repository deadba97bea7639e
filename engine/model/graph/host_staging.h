/*
 * host_staging.h - host access to device memory: windows to read or write it, uploads of arrays.
 *
 * If the host can access the device's memory, nothing is copied: a window is the memory itself, and
 * an upload leaves the arrays where they are. For device-local memory (GPU) both have buffers of
 * their own that grow on demand. A NULL device counts as host-accessible.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_HOST_STAGING_H
#define INVAR_ENGINE_MODEL_GRAPH_HOST_STAGING_H

#include "kernels-deterministic/ops.h"

/*
 * If `status` is INVAR_E_NOMEM, adds advice to the error record: `advice`, or that host memory is
 * short if the device has local memory (`device_local`) and another allocation than one of its
 * memory failed. Returns `status`.
 */
invar_status invar_host_staging_advise_oom(invar_status status, bool device_local,
                                           const char *advice) INVAR_MUST_USE;

/*
 * Returns the bytes from the tensor's first element to its last, including the gaps between rows.
 */
size_t invar_host_staging_span(const invar_tensor *tensor);

/*
 * Host view of one range of device memory at a time. Zero-initialize except for `dev`. Release with
 * invar_host_window_release.
 */
typedef struct invar_host_window {
    const invar_device *dev; /* borrowed; NULL is host memory */
    void *buffer;
    size_t bytes;
} invar_host_window;

void invar_host_window_release(invar_host_window *window);

/* *out = the contents of the range, valid until the next call on the window. */
invar_status invar_host_window_read(const void **out, invar_host_window *window, const void *piece,
                                    size_t bytes) INVAR_MUST_USE;

/*
 * Like invar_host_window_read, for a tensor with its scales: *out is `tensor` with host addresses.
 */
invar_status invar_host_window_tensor(invar_tensor *out, invar_host_window *window,
                                      const invar_tensor *tensor) INVAR_MUST_USE;

/*
 * *out = memory to which the host writes new contents of the range; invar_host_window_store then
 * copies them to the device.
 */
invar_status invar_host_window_write(void **out, invar_host_window *window, void *piece,
                                     size_t bytes) INVAR_MUST_USE;
invar_status invar_host_window_store(invar_host_window *window, void *piece,
                                     size_t bytes) INVAR_MUST_USE;

/* One host array to upload. */
typedef struct invar_upload {
    const void **array; /* in: host array; out: address that ops read. NULL stays NULL. */
    size_t bytes;
} invar_upload;

/*
 * Buffers that upload several arrays in one copy. Zero-initialize before use. Release with
 * invar_upload_buffer_release.
 */
typedef struct invar_upload_buffer {
    char *host;   /* copies of the arrays, one after another */
    void *device; /* device memory that ops read */
    size_t bytes;
} invar_upload_buffer;

void invar_upload_buffer_release(invar_upload_buffer *staging, const invar_device *dev);

/*
 * Uploads the arrays and replaces their addresses. Host-accessible arrays stay in place and
 * borrowed; others may be changed after the call. Invalidates the addresses of the previous call.
 */
invar_status invar_upload_buffer_send(invar_upload_buffer *staging, const invar_device *dev,
                                      const invar_upload *arrays, int count) INVAR_MUST_USE;

#endif
