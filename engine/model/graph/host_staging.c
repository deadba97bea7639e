/*
 * host_staging.c - copies between host and device-local memory for windows and uploads.
 *
 * An upload packs all arrays into one host buffer, so that each pass needs one copy to the device
 * instead of a dozen. Buffers grow and are never shrunk.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/host_staging.h"

#include <string.h>

#include "base/alloc.h"
#include "base/block_carver.h"

#include "base/invar_banned.h"

invar_status invar_host_staging_advise_oom(invar_status status, bool device_local,
                                           const char *advice)
{
    if (device_local && invar_error_last()->native != INVAR_DEVICE_NOMEM)
        advice = "it is the host's memory that is short, not the device's: async-save and "
                 "optimizer-cpu-offload take much of it";
    return invar_error_advise(status, INVAR_E_NOMEM, advice);
}

static bool is_far(const invar_device *dev)
{
    return dev && invar_device_is_local(dev);
}

size_t invar_host_staging_span(const invar_tensor *t)
{
    int64_t elements =
        t->shape[0] > 0 ? (t->shape[0] - 1) * t->row_stride + invar_tensor_row_elements(t) : 0;

    return (size_t)elements * (size_t)invar_dtype_bits(t->dtype) / 8;
}

/* ---- windows --------------------------------------------------------------------------------- */

void invar_host_window_release(invar_host_window *window)
{
    invar_free(window->buffer);
    *window = (invar_host_window){.dev = window->dev};
}

static invar_status ensure_window(invar_host_window *window, size_t bytes)
{
    if (bytes <= window->bytes)
        return INVAR_OK;
    invar_host_window_release(window);
    INVAR_TRY(invar_alloc(&window->buffer, bytes, 1, "a window into the device's memory"));
    window->bytes = bytes;
    return INVAR_OK;
}

invar_status invar_host_window_read(const void **out, invar_host_window *window, const void *piece,
                                    size_t bytes)
{
    *out = piece;
    if (!is_far(window->dev))
        return INVAR_OK;
    INVAR_TRY(ensure_window(window, bytes));
    *out = window->buffer;
    return invar_device_download(window->dev, window->buffer, piece, bytes);
}

invar_status invar_host_window_tensor(invar_tensor *out, invar_host_window *window,
                                      const invar_tensor *tensor)
{
    size_t data = invar_host_staging_span(tensor), scales = invar_tensor_scale_bytes(tensor);
    invar_carver c = {NULL, 0};

    *out = *tensor;
    if (!is_far(window->dev))
        return INVAR_OK;
    invar_carve(&c, data);
    invar_carve(&c, scales);
    INVAR_TRY(ensure_window(window, c.used));
    c = (invar_carver){window->buffer, 0};
    out->data = invar_carve(&c, data);
    INVAR_TRY(invar_device_download(window->dev, out->data, tensor->data, data));
    if (scales == 0)
        return INVAR_OK;
    out->scale = invar_carve(&c, scales);
    return invar_device_download(window->dev, out->scale, tensor->scale, scales);
}

invar_status invar_host_window_write(void **out, invar_host_window *window, void *piece,
                                     size_t bytes)
{
    *out = piece;
    if (!is_far(window->dev))
        return INVAR_OK;
    INVAR_TRY(ensure_window(window, bytes));
    *out = window->buffer;
    return INVAR_OK;
}

invar_status invar_host_window_store(invar_host_window *window, void *piece, size_t bytes)
{
    if (!is_far(window->dev))
        return INVAR_OK;
    return invar_device_upload(window->dev, piece, window->buffer, bytes);
}

/* ---- uploads --------------------------------------------------------------------------------- */

void invar_upload_buffer_release(invar_upload_buffer *staging, const invar_device *dev)
{
    invar_free(staging->host);
    if (staging->device)
        invar_device_free(dev, staging->device);
    *staging = (invar_upload_buffer){0};
}

static invar_status ensure_upload_buffer(invar_upload_buffer *staging, const invar_device *dev,
                                         size_t need)
{
    size_t bytes = invar_device_growth_bytes(dev, need, 8); // headroom, so that growing stops soon

    if (need <= staging->bytes)
        return INVAR_OK;
    invar_upload_buffer_release(staging, dev);
    INVAR_TRY(INVAR_ALLOC(staging->host, bytes, "arrays on their way to the device"));
    INVAR_TRY(invar_device_alloc(dev, &staging->device, bytes, "arrays from the host"));
    staging->bytes = bytes;
    return INVAR_OK;
}

invar_status invar_upload_buffer_send(invar_upload_buffer *staging, const invar_device *dev,
                                      const invar_upload *arrays, int count)
{
    invar_carver here = {NULL, 0}, there;

    if (!is_far(dev))
        return INVAR_OK;
    for (int i = 0; i < count; i++)
        invar_carve(&here, arrays[i].bytes);
    INVAR_TRY(ensure_upload_buffer(staging, dev, here.used));
    here = (invar_carver){staging->host, 0};
    there = (invar_carver){staging->device, 0};
    for (int i = 0; i < count; i++) {
        void *copy = invar_carve(&here, arrays[i].bytes);
        void *address = invar_carve(&there, arrays[i].bytes);
        if (!*arrays[i].array)
            continue;
        if (arrays[i].bytes > 0 && !dev->backend->memory.dry_run) // else addresses only
            memcpy(copy, *arrays[i].array, arrays[i].bytes);
        *arrays[i].array = address;
    }
    return invar_device_upload(dev, staging->device, staging->host, there.used);
}
