/*
 * transport.c - all ranks choose the same way for the bytes of their GPUs, and say why.
 *
 * Ranks are threads, GPUs the far backend with names, NCCL a module in its place.
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

typedef struct choice {
    int gpu[RANKS]; /* of each rank: a number, or CPU */
    invar_distributed_backend wanted;
    bool named;                        /* ranks know which GPU is whose */
    invar_layout_transport got[RANKS]; /* what each chose */
} choice;

static void identify(const invar_device *dev, invar_digest *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out, &dev->ordinal, sizeof dev->ordinal);
}

static invar_backend named_backend(void)
{
    invar_backend backend = *invar_far_backend();

    backend.memory.identify = identify;
    return backend;
}

static invar_status choose(rank_run *run)
{
    choice *c = run->payload;
    int rank = invar_comm_rank(run->comm);
    invar_backend named = named_backend();
    invar_device dev = {.backend = c->gpu[rank] == CPU ? invar_backend_cpu()
                                   : c->named          ? &named
                                                       : invar_far_backend(),
                        .ordinal = c->gpu[rank]};
    invar_layout layout;

    invar_layout_init(&layout, run->comm, SECONDS);
    return invar_layout_choose_transport(&c->got[rank], &layout, &dev, c->wanted);
}

static void chooses(choice c, bool nccl, const char *text)
{
    rank_run runs[MAX_RANKS];

    run_ranks(runs, RANKS, 0, 0, choose, &c);
    assert_ok(ranks_status(runs, RANKS));
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(c.got[r].nccl, nccl);
        assert_string_equal(c.got[r].text, c.got[0].text);
        if (!strstr(c.got[r].text, text))
            fail_msg("\"%s\" has no \"%s\"", c.got[r].text, text);
    }
}

static void refuses(choice c, const char *text)
{
    rank_run runs[MAX_RANKS];

    c.wanted = INVAR_DISTRIBUTED_BACKEND_NCCL;
    run_ranks(runs, RANKS, 0, 0, choose, &c);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(runs[r].status, INVAR_E_UNSUPPORTED);
        if (!strstr(runs[r].error.message, text))
            fail_msg("\"%s\" has no \"%s\"", runs[r].error.message, text);
    }
}

static void test_transport__ranks_with_gpus_of_their_own_take_nccl(void **state)
{
    (void)state;
    chooses((choice){.gpu = {0, 1, 2}, .named = true}, true, "NCCL 1.23.4");
    chooses((choice){.gpu = {0, 0, 0}}, true, "NCCL 1.23.4"); // nobody knows
    chooses((choice){.gpu = {0, 1, 2}, .named = true, .wanted = INVAR_DISTRIBUTED_BACKEND_HOST},
            false, "host memory: distributed-backend = host");
}

static void test_transport__others_take_the_hosts_memory(void **state)
{
    (void)state;
    chooses((choice){.gpu = {CPU, CPU, CPU}}, false, "host memory");
    chooses((choice){.gpu = {0, CPU, 2}, .named = true}, false, "host memory: rank 1 on ");
    refuses((choice){.gpu = {0, CPU, 2}, .named = true}, "computes on its CPU; give each rank a ");
    chooses((choice){.gpu = {0, 1, 0}, .named = true}, false, "host memory: ranks 0 and 2 on ");
    refuses((choice){.gpu = {0, 1, 0}, .named = true}, " share a GPU and a process; ");
    setenv("INVAR_MODULES", "/nowhere", 1);
    chooses((choice){.gpu = {0, 1, 2}, .named = true}, false, " has no NCCL (invar-nccl.so)");
    refuses((choice){.gpu = {0, 1, 2}, .named = true},
            "distributed-backend = nccl cannot be: rank");
    setenv("INVAR_MODULES", MODULES, 1);
}

/* Every rank gives its number in the device's memory, and finds those of all there. */
static invar_status move_far(const invar_layout *layout, const invar_device *dev)
{
    const invar_layout_axis *data = &layout->data;
    char *in = data->buckets, *out = in + invar_layout_bucket_bytes(layout, data);
    size_t bytes[RANKS] = {1, 1, 1};
    invar_comm_transfer move = {.op = INVAR_COMM_ALLGATHERV,
                                .phase = "numbers",
                                .timeout_s = SECONDS,
                                .in = in,
                                .out = out,
                                .out_bytes = bytes};
    char own = (char)data->rank, got[RANKS];

    INVAR_TRY(invar_device_upload(dev, in, &own, 1));
    INVAR_TRY(invar_comm_run(data->device_comm, &move));
    INVAR_TRY(invar_device_download(dev, got, out, sizeof got));
    for (int r = 0; r < RANKS; r++)
        if (got[r] != r)
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "rank %d got a wrong byte", data->rank);
    return INVAR_OK;
}

static invar_status open_and_move(rank_run *run)
{
    invar_device dev = {.backend = invar_far_backend()};
    invar_layout_transport transport = {.nccl = run->seed != 0};
    invar_layout layout;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    INVAR_TRY(invar_device_open(&dev));
    status = invar_layout_open_transport(&layout, &dev, &transport);
    if (status == INVAR_OK && transport.nccl)
        status = move_far(&layout, &dev);
    else if (status == INVAR_OK && layout.data.device_comm)
        status = INVAR_FAIL(INVAR_E_STATE, 0, "there is a group that nobody chose");
    invar_layout_close_transport(&layout, &dev);
    invar_device_close(&dev);
    return status;
}

static void test_transport__what_was_chosen_is_opened(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    for (uint64_t nccl = 0; nccl < 2; nccl++) {
        invar_far_begin(0);
        run_ranks(runs, RANKS, 0, nccl, open_and_move, NULL);
        assert_ok(ranks_status(runs, RANKS));
        assert_int_equal(invar_far_counted().live, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transport__ranks_with_gpus_of_their_own_take_nccl),
        cmocka_unit_test(test_transport__others_take_the_hosts_memory),
        cmocka_unit_test(test_transport__what_was_chosen_is_opened),
    };

    setenv("INVAR_MODULES", MODULES, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
