/*
 * device.c - opens the devices of libinvar, on which ops run, and manages their scratch.
 *
 * A device has a mutex, a thread pool and a scratch arena that grows to the size of the largest
 * call.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "api/device.h"

#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"

#include "base/invar_banned.h"

#define MOST_DIGITS 3 /* maximum digits of the number of a GPU */

static invar_status find_word(int *out, const char *what, const char *word, size_t bytes,
                              const invar_choices *words)
{
    *out = invar_choices_find(words, word, bytes);
    if (*out < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s \"%.40s\" does not exist", what, word);
    return INVAR_OK;
}

/* Parses the kind of a device: "cpu", "cuda" or "cuda:1". */
static invar_status read_kind(invar_device *dev, const char *kind)
{
    size_t word = strcspn(kind, ":"), digits = 0;
    int chosen;

    INVAR_TRY(find_word(&chosen, "device", kind, word, &invar_device_kind_choices));
    if (kind[word])
        digits = strspn(kind + word + 1, "0123456789");
    if (kind[word] && (chosen == INVAR_DEVICE_CPU || digits == 0 || digits > MOST_DIGITS ||
                       kind[word + 1 + digits]))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "device \"%.40s\" does not exist; there are cpu, cuda and cuda:N", kind);
    for (size_t i = 0; i < digits; i++)
        dev->ordinal = 10 * dev->ordinal + (kind[word + 1 + i] - '0');
    return invar_backend_find(&dev->backend, (invar_device_kind)chosen);
}

static invar_status open_device(invar_api_device *device, int32_t threads)
{
    int asked = device->dev.ordinal;

    if (threads != 1)
        INVAR_TRY(invar_pool_new(&device->dev.pool, threads));
    INVAR_TRY(invar_device_open(&device->dev));
    if (device->dev.ordinal == asked)
        return INVAR_OK;
    invar_device_close(&device->dev);
    return INVAR_FAIL(INVAR_E_NODEVICE, 0, "there is no GPU %d: nvidia-smi lists those there are",
                      asked);
}

int32_t invar_api_device_open(invar_api_device **out, const char *kind, const char *numerics,
                              int32_t threads)
{
    invar_device dev = {0};
    invar_status status;
    int way;

    *out = NULL;
    INVAR_TRY(find_word(&way, "numerics", numerics, strlen(numerics), &invar_numerics_choices));
    dev.numerics = (invar_numerics)way;
    INVAR_TRY(read_kind(&dev, kind));
    INVAR_TRY(INVAR_ALLOC(*out, 1, "a device"));
    **out = (invar_api_device){.dev = dev};
    status = open_device(*out, threads);
    if (status != INVAR_OK) {
        invar_pool_free((*out)->dev.pool);
        invar_free(*out);
        *out = NULL;
        return status;
    }
    INVAR_CHECK(pthread_mutex_init(&(*out)->busy, NULL) == 0);
    return INVAR_OK;
}

void invar_api_device_close(invar_api_device *device)
{
    if (!device)
        return;
    invar_arena_free(device->dev.scratch);
    invar_device_close(&device->dev);
    invar_pool_free(device->dev.pool);
    pthread_mutex_destroy(&device->busy);
    invar_free(device);
}

int32_t invar_api_device_wait(invar_api_device *device)
{
    invar_status status;

    pthread_mutex_lock(&device->busy);
    status = invar_device_synchronize(&device->dev);
    pthread_mutex_unlock(&device->busy);
    return status;
}

invar_status invar_api_device_scratch(invar_api_device *device, size_t bytes)
{
    invar_arena *arena;
    invar_status status;

    if (bytes <= device->scratch_bytes)
        return INVAR_OK;
    INVAR_TRY(invar_device_arena(&arena, &device->dev, "scratch of ops"));
    status = invar_arena_plan_scratch(arena, invar_aligned(bytes));
    if (status == INVAR_OK)
        status = invar_arena_reserve(arena);
    if (status != INVAR_OK) {
        invar_arena_free(arena);
        return status;
    }
    invar_arena_free(device->dev.scratch);
    device->dev.scratch = arena;
    device->scratch_bytes = bytes;
    return INVAR_OK;
}
