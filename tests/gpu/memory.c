/*
 * memory.c - copies to a device and back, host arrays in device memory, copies during ops.
 *
 * Copies of every size around those at which a backend changes its method, from heap memory and
 * from pinned memory; the source is changed as soon as the upload returns. Then an op works on two
 * arrays that are staged to the device piece by piece, and a thread copies while ops run and are
 * captured in graphs. Usage: memory cpu|cuda. Exit code 1 if a byte differs, 2 if something fails.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "engine/model/graph/op_runner.h"
#include "engine/train/offload.h"

#define MIB ((size_t)1 << 20)

static void exit_on_error(invar_status status)
{
    if (status == INVAR_OK)
        return;
    fprintf(stderr, "memory: %s\n", invar_error_last()->message);
    exit(2);
}

static void fill_pattern(unsigned char *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)((i * 2654435761u + seed) >> 13);
}

static int compare_bytes(const char *what, const void *got, const void *expected, size_t bytes)
{
    const unsigned char *a = got, *b = expected;

    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i]) {
            printf("%s, %zu bytes: byte %zu is %02x, not %02x\n", what, bytes, i, a[i], b[i]);
            return 1;
        }
    return 0;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Copies to the device by one device handle, and back by the other one. */
static int round_trip(const invar_device *dev, const invar_device *other, size_t bytes, void *from,
                      void *to)
{
    unsigned char *expected;
    void *device_copy;
    int wrong;

    exit_on_error(INVAR_ALLOC(expected, bytes, "what is expected"));
    fill_pattern(expected, bytes, (unsigned)bytes);
    memcpy(from, expected, bytes);
    exit_on_error(invar_device_alloc(dev, &device_copy, bytes, "an array"));
    exit_on_error(invar_device_upload(dev, device_copy, from, bytes));
    memset(from, 0x5A, bytes);
    exit_on_error(invar_device_synchronize(dev));
    memset(to, 0xA5, bytes);
    exit_on_error(invar_device_download(other, to, device_copy, bytes));
    wrong = compare_bytes("there and back", to, expected, bytes);
    invar_device_free(dev, device_copy);
    invar_free(expected);
    return wrong;
}

static int check_copies(const invar_device *dev, const invar_device *other)
{
    const size_t sizes[] = {1,       255,         4096,    MIB - 1,     MIB,
                            MIB + 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 37 * MIB + 3};
    int wrong = 0;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *heap[2], *host[2];

        for (int j = 0; j < 2; j++) {
            exit_on_error(invar_alloc(&heap[j], sizes[i], 1, "an array"));
            exit_on_error(invar_device_alloc_host(dev, &host[j], sizes[i], "an array"));
        }
        wrong += round_trip(dev, other, sizes[i], heap[0], heap[1]);
        wrong += round_trip(dev, other, sizes[i], host[0], heap[1]);
        wrong += round_trip(dev, other, sizes[i], heap[0], host[1]);
        wrong += round_trip(dev, other, sizes[i], host[0], host[1]);
        for (int j = 0; j < 2; j++) {
            invar_free(heap[j]);
            invar_device_free_host(dev, host[j]);
        }
    }
    return wrong;
}

/* ---- host arrays staged in device memory ----------------------------------------------------- */

/* Adds the second array to the first one. */
static invar_status add_arrays(void *payload, size_t first, size_t bytes,
                               void *const device_copy[INVAR_OFFLOAD_ARRAYS])
{
    int64_t n = (int64_t)(bytes / sizeof(float));
    invar_tensor a = invar_tensor_2d(device_copy[0], INVAR_DTYPE_F32, 1, n);
    invar_tensor b = invar_tensor_2d(device_copy[1], INVAR_DTYPE_F32, 1, n);

    (void)first;
    return INVAR_CALL(payload, ADD, add, .out = a, .a = a, .b = b);
}

/* Adds the arrays twice, in chunks of `chunk` bytes. Returns 1 if an element is wrong. */
static int check_staging(invar_op_runner *runner, size_t bytes, size_t chunk)
{
    const invar_device *dev = &runner->dev;
    void *arrays[INVAR_OFFLOAD_ARRAYS];
    size_t n = bytes / sizeof(float);
    invar_offload *offload;
    float *a, *b;
    int wrong = 0;

    for (int i = 0; i < INVAR_OFFLOAD_ARRAYS; i++)
        exit_on_error(invar_device_alloc_host(dev, &arrays[i], bytes, "an array that visits"));
    a = arrays[0];
    b = arrays[1];
    for (size_t i = 0; i < n; i++) {
        a[i] = (float)(i % 1021);
        b[i] = (float)(i % 65521) * 0.5f;
    }
    exit_on_error(invar_offload_new(&offload, dev, bytes, chunk));
    for (int i = 0; i < 2; i++)
        exit_on_error(invar_offload_run(offload, arrays, add_arrays, runner));
    for (size_t i = 0; i < n && !wrong; i++) {
        wrong = a[i] != (float)(i % 1021) + (float)(i % 65521) || b[i] != (float)(i % 65521) * 0.5f;
        if (wrong)
            printf("pieces of %zu bytes: element %zu is %g\n", chunk, i, (double)a[i]);
    }
    invar_offload_free(offload);
    for (int i = 0; i < INVAR_OFFLOAD_ARRAYS; i++)
        invar_device_free_host(dev, arrays[i]);
    return wrong;
}

/* ---- copies while ops run -------------------------------------------------------------------- */

/* The thread that copies. */
typedef struct copier {
    const invar_device *dev; /* device of the thread */
    const void *device_copy;
    const unsigned char *expected;
    size_t bytes;
    int wrong;
    _Atomic bool done;
} copier;

/* Copies to new memory each time, like the first checkpoint of a run. */
static void *copy_in_thread(void *payload)
{
    enum { N_COPIES = 20 };
    copier *c = payload;

    for (int i = 0; i < N_COPIES; i++) {
        void *host;

        exit_on_error(invar_device_alloc_host(c->dev, &host, c->bytes, "a copy"));
        exit_on_error(invar_device_download(c->dev, host, c->device_copy, c->bytes));
        c->wrong += compare_bytes("beside ops", host, c->expected, c->bytes);
        invar_device_free_host(c->dev, host);
    }
    atomic_store(&c->done, true);
    return NULL;
}

/* Runs x += 1 in a newly captured graph if the backend has graphs, else directly. */
static void increment(const invar_device *dev, const invar_add_args *increment_args)
{
    const invar_device_graphs *graphs = &dev->backend->graphs;
    invar_device_graph *graph;

    if (!graphs->begin) {
        exit_on_error(invar_add(dev, increment_args));
        return;
    }
    exit_on_error(graphs->begin(dev));
    exit_on_error(invar_add(dev, increment_args));
    exit_on_error(graphs->end(&graph, dev));
    exit_on_error(graphs->launch(dev, graph));
    exit_on_error(invar_device_synchronize(dev));
    graphs->free(dev, graph);
}

/* Copies in a thread while this thread runs ops. Returns the number of differences. */
static int check_concurrent_copies(const invar_device *dev, const invar_device *other)
{
    const float start[2] = {0.0f, 1.0f};
    copier c = {.dev = other, .bytes = 24 * MIB + 4};
    unsigned char *expected;
    void *device_copy, *counter;
    pthread_t thread;
    float counted, expected_count = 0.0f;

    exit_on_error(INVAR_ALLOC(expected, c.bytes, "what is expected"));
    fill_pattern(expected, c.bytes, 7);
    exit_on_error(invar_device_alloc(dev, &device_copy, c.bytes, "an array"));
    exit_on_error(invar_device_alloc(dev, &counter, sizeof start, "a counter"));
    exit_on_error(invar_device_upload(dev, device_copy, expected, c.bytes));
    exit_on_error(invar_device_upload(dev, counter, start, sizeof start));
    exit_on_error(invar_device_synchronize(dev));
    c.device_copy = device_copy;
    c.expected = expected;
    if (pthread_create(&thread, NULL, copy_in_thread, &c) != 0)
        exit(2);
    for (; !atomic_load(&c.done); expected_count += 1.0f) {
        invar_tensor x = invar_tensor_2d(counter, INVAR_DTYPE_F32, 1, 1);
        invar_tensor one = invar_tensor_2d((float *)counter + 1, INVAR_DTYPE_F32, 1, 1);
        increment(dev, &(invar_add_args){.out = x, .a = x, .b = one});
    }
    pthread_join(thread, NULL);
    exit_on_error(invar_device_download(dev, &counted, counter, sizeof counted));
    if (counted != expected_count)
        printf("beside copies: %g ops, counted %g\n", (double)expected_count, (double)counted);
    c.wrong += counted != expected_count;
    invar_device_free(dev, device_copy);
    invar_device_free(dev, counter);
    invar_free(expected);
    return c.wrong;
}

int main(int argc, char **argv)
{
    bool cuda = argc == 2 && strcmp(argv[1], "cuda") == 0;
    const invar_backend *backend = cuda ? invar_backend_cuda() : invar_backend_cpu();
    invar_device dev = {.backend = backend}, other = {.backend = backend};
    invar_op_runner runner;
    int wrong;

    if (!backend || argc != 2 || (!cuda && strcmp(argv[1], "cpu") != 0)) {
        fputs("usage: memory cpu|cuda, the latter in a build with CUDA\n", stderr);
        return 2;
    }
    exit_on_error(invar_pool_new(&dev.pool, 4));
    exit_on_error(invar_device_open(&dev));
    exit_on_error(invar_device_open(&other));
    invar_op_runner_init(&runner, &dev);
    wrong = check_copies(&dev, &other);
    wrong += check_staging(&runner, 40 * MIB + 256, 8 * MIB);
    wrong += check_staging(&runner, 3 * MIB, 256 * 100);
    wrong += check_staging(&runner, 5 * MIB, 64 * MIB);
    wrong += check_concurrent_copies(&dev, &other);
    invar_op_runner_release(&runner);
    invar_device_close(&other);
    invar_device_close(&dev);
    invar_pool_free(dev.pool);
    printf("%d differences\n", wrong);
    return wrong > 0;
}
