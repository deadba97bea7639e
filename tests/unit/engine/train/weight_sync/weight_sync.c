/*
 * weight_sync.c - tests of the weight sync from training ranks to sampling ranks.
 *
 * For many pairs of layouts, sampling ranks must get the compute weights of one rank bit for bit,
 * with the planned number of bytes and a hash that does not depend on the layouts. Control: one
 * flipped bit on any rank must be reported with rank and parameter. Ranks are threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/weight_sync/weight_sync.h"

#include <stdio.h>

#include "tests/device/fake_gpu.h"
#include "tests/sharded_model.h"

/* Layouts of the training and the sampling ranks. */
typedef struct rank_layouts {
    int train;                                           /* number of training ranks */
    int tensor, expert_tensor, pipeline, chunks, expert; /* how they divide the model */
    int rollout_ranks, ranks_per_engine; /* number of sampling ranks, and of ranks per engine */
} rank_layouts;

static const rank_layouts layout_cases[] = {
    {1, 1, 1, 1, 1, 1, 1, 1}, {2, 1, 1, 1, 1, 1, 3, 1}, {1, 1, 1, 1, 1, 1, 2, 2},
    {4, 2, 2, 2, 1, 1, 1, 1}, {2, 2, 2, 1, 1, 1, 8, 4}, {4, 4, 4, 1, 1, 1, 4, 2},
    {4, 1, 1, 2, 2, 1, 4, 2}, {8, 2, 1, 2, 1, 1, 3, 1},
};
enum { PAIRS = sizeof layout_cases / sizeof *layout_cases };

static const rank_layouts expert_layout_cases[] = {
    {2, 1, 1, 1, 1, 2, 2, 2},
    {6, 1, 1, 2, 1, 3, 1, 1},
    {4, 2, 1, 1, 1, 2, 4, 4},
};
enum { EXPERT_PAIRS = sizeof expert_layout_cases / sizeof *expert_layout_cases };

typedef struct sync_case {
    const rank_layouts *layouts;
    invar_model_spec spec;
    invar_format format;
    const invar_device *dev,
        *fake_gpu; /* `fake_gpu`: device of rank 1 and of the last rank; NULL for `dev` */
    size_t bucket;
    invar_model *reference; /* model of one rank */
    int flipped_rank;       /* rank that flips a bit after the transfer; -1 for none */
    const char *name;       /* parameter with the flipped bit */
    invar_weight_sync_result results[MAX_RANKS]; /* of each rank */
    uint64_t received[MAX_RANKS];                /* bytes of the first transfer to each rank */
} sync_case;

static invar_rank_role_sizes sizes_of(const rank_layouts *p)
{
    return (invar_rank_role_sizes){.train = {.tensor = p->tensor,
                                             .expert_tensor = p->expert_tensor,
                                             .pipeline = p->pipeline,
                                             .virtual_stages = p->chunks,
                                             .expert = p->expert},
                                   .rollout = {.tensor = p->ranks_per_engine,
                                               .expert_tensor = p->ranks_per_engine,
                                               .pipeline = 1,
                                               .virtual_stages = 1},
                                   .rollout_ranks = p->rollout_ranks};
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* The compute weights after the sync are those of one rank. */
static invar_status check_weights(const sync_case *l, const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        bool equal;

        if (p->local.experts == 0)
            continue;
        INVAR_TRY(sharded_compare(&equal, p, &p->local, &l->reference->params[i].weight,
                                  &l->reference->dev, &p->weight, 0, &model->dev));
        if (!equal)
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "%s did not arrive", p->name);
    }
    return INVAR_OK;
}

static invar_status flip_bit(const sync_case *l, const invar_model *model)
{
    const invar_param *p = invar_model_find(model, l->name);
    void *last = (char *)p->weight.data + invar_host_staging_span(&p->weight) - 1;
    invar_host_window window = {.dev = &model->dev};
    unsigned char *byte;
    invar_status status = invar_host_window_read((const void **)&byte, &window, last, 1);

    if (status == INVAR_OK) {
        *byte ^= 1;
        status = invar_host_window_store(&window, last, 1);
    }
    invar_host_window_release(&window);
    return status;
}

/* The transferred bytes are those of the sync's plan and of the model. */
static invar_status check_bytes(uint64_t *received_out, const invar_weight_sync *sync,
                                const invar_rank_roles *roles, const invar_model *model)
{
    invar_comm_stats stats = invar_comm_get_stats(roles->world.world, INVAR_COMM_SENDRECV);

    *received_out = stats.received;
    if (invar_weight_sync_bytes(sync) != (roles->is_rollout_rank ? stats.received : stats.sent) ||
        (roles->is_rollout_rank && stats.received != invar_model_weight_bytes(model)))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "other bytes were moved than planned");
    return INVAR_OK;
}

static invar_status sync_twice(sync_case *l, const invar_rank_roles *roles, invar_model *model,
                               int rank)
{
    const invar_weight_sync_options o = {
        .roles = roles, .model = model, .dev = &model->dev, .bucket_bytes = l->bucket};
    invar_weight_sync *sync;
    invar_status status = invar_weight_sync_new(&sync, &o);

    if (status == INVAR_OK)
        status = invar_weight_sync_transfer(sync);
    if (status == INVAR_OK)
        status = check_bytes(&l->received[rank], sync, roles, model);
    if (status == INVAR_OK)
        status = check_weights(l, model);
    if (status == INVAR_OK)
        status = invar_weight_sync_transfer(sync); // like the sync of the next rollout
    if (status == INVAR_OK && l->flipped_rank == rank)
        status = flip_bit(l, model);
    if (status == INVAR_OK)
        status = invar_weight_sync_compare(&l->results[rank], sync);
    invar_weight_sync_free(sync);
    return status;
}

static invar_status run_rank(rank_run *run)
{
    sync_case *l = run->payload;
    const invar_rank_role_sizes sizes = sizes_of(l->layouts);
    int rank = invar_comm_rank(run->comm), last = invar_comm_size(run->comm) - 1;
    invar_device dev = sharded_device(l->dev, l->fake_gpu, rank == last ? 1 : rank);
    invar_model *model = NULL;
    invar_layout layout = {.world = NULL};
    invar_rank_roles roles;
    invar_status status =
        invar_rank_roles_open(&roles, &layout, run->comm, SHARDED_TIMEOUT_S, &sizes);

    if (status == INVAR_OK)
        status = roles.is_rollout_rank
                     ? invar_model_new_weights(&model, &l->spec, l->format, &layout, &dev)
                     : invar_model_new(&model, &l->spec, l->format, &layout, &dev);
    if (status == INVAR_OK && !roles.is_rollout_rank)
        status = invar_model_init(model, 5, &dev);
    if (status == INVAR_OK)
        status = sync_twice(l, &roles, model, rank);
    if (status != INVAR_OK && status != INVAR_E_MISMATCH)
        invar_comm_abort(run->comm, invar_error_last()->message);
    invar_model_free(model);
    invar_layout_release(&layout);
    invar_rank_roles_close(&roles);
    return status;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Checks that all ranks have the same result: this hash, and the bytes that all ranks received. */
static void check_results(const sync_case *l, const invar_digest *hash, int size)
{
    uint64_t received = 0;

    for (int r = 0; r < size; r++)
        received += l->received[r];
    assert_true(received > 0);
    for (int r = 0; r < size; r++) {
        assert_true(invar_digest_equal(&l->results[r].hash, hash));
        assert_int_equal(l->results[r].bytes, received);
        assert_false(l->results[r].differ);
    }
}

static void check_layouts(sync_case *l, const rank_layouts *p, size_t bucket, uint64_t schedule)
{
    const invar_digest before = l->results[0].hash;
    char what[80];

    memset(l->results, 0, sizeof l->results);
    memset(l->received, 0, sizeof l->received);
    l->layouts = p;
    l->bucket = bucket;
    (void)snprintf(what, sizeof what, "%d ranks train (%d x %d x %d), %d sample by %d", p->train,
                   p->tensor, p->expert, p->pipeline, p->rollout_ranks, p->ranks_per_engine);
    sharded_run(p->train + p->rollout_ranks, schedule, run_rank, l, what);
    // the hash does not depend on the layouts
    check_results(l, p == layout_cases ? &l->results[0].hash : &before,
                  p->train + p->rollout_ranks);
}

/*
 * Checks the first pair of layouts, and every third one from `first` on; by default only those that
 * have a bit in `reduced`, and expert parallelism.
 */
static void check_cases(invar_test_model kind, invar_format format, int first, unsigned reduced,
                        const invar_device *dev, const invar_device *fake_gpu)
{
    static const size_t buckets[] = {(size_t)1 << 30, 9001, 100001};
    sync_case l = {.dev = dev,
                   .fake_gpu = fake_gpu,
                   .spec = sharded_spec(kind, format),
                   .format = format,
                   .flipped_rank = -1};

    assert_ok(invar_model_new(&l.reference, &l.spec, format, NULL, dev));
    assert_ok(invar_model_init(l.reference, 5, dev));
    check_layouts(&l, layout_cases, buckets[first % 3], 0);
    for (int i = first; i < PAIRS; i += 3)
        if (invar_test_full() || reduced >> i & 1)
            check_layouts(&l, &layout_cases[i], buckets[i % 3], (uint64_t)i);
    for (int i = first - 1; i < EXPERT_PAIRS && l.spec.experts.count > 0; i += 2)
        check_layouts(&l, &expert_layout_cases[i], buckets[i % 3], (uint64_t)i);
    invar_model_free(l.reference);
}

static void test_weight_sync__sampling_ranks_get_the_weights(void **state)
{
    // by default every pair of layouts once, also those of test_weight_sync__fake_gpu
    check_cases(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 1, 1u << 7, *state, NULL);
    check_cases(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, 2, 0, *state, NULL);
    check_cases(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP8, 1, 1u << 1, *state, NULL);
    check_cases(INVAR_TEST_MODEL_BIAS, INVAR_FORMAT_INT4, 1, 1u << 4, *state, NULL);
    check_cases(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_MXFP8, 3, 1u << 3 | 1u << 6, *state, NULL);
}

static void test_weight_sync__fake_gpu(void **state)
{
    invar_device fake_gpu;

    assert_ok(invar_fake_gpu_open(&fake_gpu, *state));
    check_cases(INVAR_TEST_MODEL_BIAS, INVAR_FORMAT_FP8, 2, 1u << 2 | 1u << 5, *state, &fake_gpu);
    invar_device_close(&fake_gpu);
}

/* Flips a bit of a parameter on one rank; all ranks must report it. */
static void check_flip(sync_case *l, const rank_layouts *p, int rank, const char *name)
{
    rank_run runs[MAX_RANKS];
    char text[200];

    l->layouts = p;
    l->flipped_rank = rank;
    l->name = name;
    memset(l->results, 0, sizeof l->results);
    run_ranks(runs, p->train + p->rollout_ranks, 0, 0, run_rank, l);
    (void)snprintf(text, sizeof text, "rank %d on ", rank);
    for (int r = 0; r < p->train + p->rollout_ranks; r++) {
        assert_int_equal(runs[r].status, INVAR_E_MISMATCH);
        assert_true(l->results[r].differ);
        assert_memory_equal(runs[r].error.message, text, strlen(text));
        assert_non_null(strstr(runs[r].error.message, name));
    }
}

/* Control: bits of training ranks, of sampling ranks, and of later ranks of an engine. */
static void test_weight_sync__names_a_flipped_bit(void **state)
{
    static const rank_layouts engine = {2, 1, 1, 1, 1, 1, 2, 2}, data = {2, 1, 1, 1, 1, 1, 1, 1};
    static const rank_layouts one_engine = {1, 1, 1, 1, 1, 1, 2, 2};
    sync_case l = {.dev = *state,
                   .spec = sharded_spec(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP8),
                   .format = INVAR_FORMAT_FP8,
                   .bucket = 4096};

    assert_ok(invar_model_new(&l.reference, &l.spec, l.format, NULL, l.dev));
    assert_ok(invar_model_init(l.reference, 5, l.dev));
    check_flip(&l, &data, 2, "model.layers.3.mlp.down_proj.weight");
    check_flip(&l, &data, 1, "model.embed_tokens.weight");
    check_flip(&l, &engine, 3, "model.norm.weight");
    check_flip(&l, &engine, 3, "model.layers.0.self_attn.o_proj.weight");
    if (invar_test_full()) {
        check_flip(&l, &engine, 2, "model.layers.0.self_attn.o_proj.weight");
        check_flip(&l, &one_engine, 1, "model.layers.1.mlp.up_proj.weight");
        check_flip(&l, &one_engine, 2, "model.layers.0.self_attn.o_proj.weight");
    }
    invar_model_free(l.reference);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weight_sync__sampling_ranks_get_the_weights),
        cmocka_unit_test(test_weight_sync__fake_gpu),
        cmocka_unit_test(test_weight_sync__names_a_flipped_bit),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
