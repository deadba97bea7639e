/*
 * transport.c - tests of the transport between GPUs: all ranks choose NCCL or host memory alike.
 *
 * Ranks are threads, their GPUs are fake (tests/device/fake_gpu.h) with the ordinal as identity,
 * and the NCCL module is a fake. Every rank must choose the same transport with the same
 * reason.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "engine/ranks/layout/transport.h"
#include "tests/device/fake_gpu.h"
#include "tests/ranks.h"

#define SECONDS 60
#define MODULES INVAR_TEST_WORK "/nccl"

enum { RANKS = 3, CPU = -1 };

typedef struct transport_case {
    int gpu[RANKS]; /* ordinal of each rank's GPU, or CPU */
    invar_distributed_backend wanted;
    bool has_identity; /* devices have an identity, so that sharing is detected */
    invar_layout_transport chosen[RANKS]; /* choice of each rank */
} transport_case;

static void identify(const invar_device *dev, invar_digest *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out, &dev->ordinal, sizeof dev->ordinal);
}

static invar_backend backend_with_identity(void)
{
    invar_backend backend = *invar_fake_gpu_backend();

    backend.memory.identify = identify;
    return backend;
}

static invar_status choose_transport(rank_run *run)
{
    transport_case *c = run->payload;
    int rank = invar_comm_rank(run->comm);
    invar_backend has_identity = backend_with_identity();
    invar_device dev = {.backend = c->gpu[rank] == CPU ? invar_backend_cpu()
                                   : c->has_identity   ? &has_identity
                                                       : invar_fake_gpu_backend(),
                        .ordinal = c->gpu[rank]};
    invar_layout layout;

    invar_layout_init(&layout, run->comm, SECONDS);
    return invar_layout_choose_transport(&c->chosen[rank], &layout, &dev, c->wanted);
}

static void check_choice(transport_case c, bool nccl, const char *text)
{
    rank_run runs[MAX_RANKS];

    run_ranks(runs, RANKS, 0, 0, choose_transport, &c);
    assert_ok(ranks_status(runs, RANKS));
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(c.chosen[r].nccl, nccl);
        assert_string_equal(c.chosen[r].text, c.chosen[0].text);
        if (!strstr(c.chosen[r].text, text))
            fail_msg("\"%s\" has no \"%s\"", c.chosen[r].text, text);
    }
}

static void check_rejected(transport_case c, const char *text)
{
    rank_run runs[MAX_RANKS];

    c.wanted = INVAR_DISTRIBUTED_BACKEND_NCCL;
    run_ranks(runs, RANKS, 0, 0, choose_transport, &c);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(runs[r].status, INVAR_E_UNSUPPORTED);
        if (!strstr(runs[r].error.message, text))
            fail_msg("\"%s\" has no \"%s\"", runs[r].error.message, text);
    }
}

static void test_transport__ranks_with_gpus_of_their_own_take_nccl(void **state)
{
    (void)state;
    check_choice((transport_case){.gpu = {0, 1, 2}, .has_identity = true}, true, "NCCL 1.23.4");
    check_choice((transport_case){.gpu = {0, 0, 0}}, true,
                 "NCCL 1.23.4"); // without identity, a shared GPU is not detected
    check_choice((transport_case){.gpu = {0, 1, 2},
                                  .has_identity = true,
                                  .wanted = INVAR_DISTRIBUTED_BACKEND_HOST},
                 false, "host memory: distributed-backend = host");
}

static void test_transport__others_take_the_hosts_memory(void **state)
{
    (void)state;
    check_choice((transport_case){.gpu = {CPU, CPU, CPU}}, false, "host memory");
    check_choice((transport_case){.gpu = {0, CPU, 2}, .has_identity = true}, false,
                 "host memory: rank 1 on ");
    check_rejected((transport_case){.gpu = {0, CPU, 2}, .has_identity = true},
                   "computes on its CPU; give each rank a ");
    check_choice((transport_case){.gpu = {0, 1, 0}, .has_identity = true}, false,
                 "host memory: ranks 0 and 2 on ");
    check_rejected((transport_case){.gpu = {0, 1, 0}, .has_identity = true},
                   " share a GPU and a process; ");
    setenv("INVAR_MODULES", "/nowhere", 1);
    check_choice((transport_case){.gpu = {0, 1, 2}, .has_identity = true}, false,
                 " has no NCCL (invar-nccl.so)");
    check_rejected((transport_case){.gpu = {0, 1, 2}, .has_identity = true},
                   "distributed-backend = nccl cannot be: rank");
    setenv("INVAR_MODULES", MODULES, 1);
}

/* Gathers the number of every rank between memories of devices and checks the result. */
static invar_status gather_in_device_memory(const invar_layout *layout, const invar_device *dev)
{
    const invar_layout_axis *data = &layout->data;
    char *in = data->buckets, *out = in + invar_layout_bucket_bytes(layout, data);
    size_t bytes[RANKS] = {1, 1, 1};
    invar_comm_transfer transfer = {.op = INVAR_COMM_ALLGATHERV,
                                    .phase = "numbers",
                                    .timeout_s = SECONDS,
                                    .in = in,
                                    .out = out,
                                    .out_bytes = bytes};
    char own = (char)data->rank, chosen[RANKS];

    INVAR_TRY(invar_device_upload(dev, in, &own, 1));
    INVAR_TRY(invar_comm_run(data->device_comm, &transfer));
    INVAR_TRY(invar_device_download(dev, chosen, out, sizeof chosen));
    for (int r = 0; r < RANKS; r++)
        if (chosen[r] != r)
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "rank %d got a wrong byte", data->rank);
    return INVAR_OK;
}

static invar_status open_and_gather(rank_run *run)
{
    invar_device dev = {.backend = invar_fake_gpu_backend()};
    invar_layout_transport transport = {.nccl = run->seed != 0};
    invar_layout layout;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    INVAR_TRY(invar_device_open(&dev));
    status = invar_layout_open_transport(&layout, &dev, &transport);
    if (status == INVAR_OK && transport.nccl)
        status = gather_in_device_memory(&layout, &dev);
    else if (status == INVAR_OK && layout.data.device_comm)
        status = INVAR_FAIL(INVAR_E_STATE, 0, "there is a group that nobody chose");
    invar_layout_close_transport(&layout, &dev);
    invar_device_close(&dev);
    return status;
}

static void test_transport__opens_the_chosen_transport(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    for (uint64_t nccl = 0; nccl < 2; nccl++) {
        invar_fake_gpu_begin(0);
        run_ranks(runs, RANKS, 0, nccl, open_and_gather, NULL);
        assert_ok(ranks_status(runs, RANKS));
        assert_int_equal(invar_fake_gpu_counted().live, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transport__ranks_with_gpus_of_their_own_take_nccl),
        cmocka_unit_test(test_transport__others_take_the_hosts_memory),
        cmocka_unit_test(test_transport__opens_the_chosen_transport),
    };

    setenv("INVAR_MODULES", MODULES, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
