/*
 * weight_sync.c - ranks that only sample get the weights of those that train, in whatever layouts
 * both have, and a bit that differs is found and named.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/weight_sync/weight_sync.h"

#include <stdio.h>

#include "tests/device/fake_gpu.h"
#include "tests/sharded_model.h"

/* Ranks of both sides. */
typedef struct pair {
    int train;
    int tensor, expert_tensor, pipeline, chunks, expert; /* how these divide the model */
    int rollout_ranks, each;
} pair;

static const pair pairs[] = {
    {1, 1, 1, 1, 1, 1, 1, 1}, {2, 1, 1, 1, 1, 1, 3, 1}, {1, 1, 1, 1, 1, 1, 2, 2},
    {4, 2, 2, 2, 1, 1, 1, 1}, {2, 2, 2, 1, 1, 1, 8, 4}, {4, 4, 4, 1, 1, 1, 4, 2},
    {4, 1, 1, 2, 2, 1, 4, 2}, {8, 2, 1, 2, 1, 1, 3, 1},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

static const pair expert_pairs[] = {
    {2, 1, 1, 1, 1, 2, 2, 2},
    {6, 1, 1, 2, 1, 3, 1, 1},
    {4, 2, 1, 1, 1, 2, 4, 4},
};
enum { EXPERT_PAIRS = sizeof expert_pairs / sizeof *expert_pairs };

typedef struct lesson {
    const pair *of;
    invar_model_spec spec;
    invar_format format;
    const invar_device *dev, *far; /* far: of rank 1, and of the last one; NULL: none has it */
    size_t bucket;
    invar_model *one; /* one rank's, */
    int flips;        /* after the weights have moved, a bit of this rank; -1: none */
    const char *name; /* of this parameter */
    invar_digest hash;
    uint64_t bytes; /* that all ranks got */
} lesson;

static invar_rank_role_sizes sizes_of(const pair *p)
{
    return (invar_rank_role_sizes){.train = {.tensor = p->tensor,
                                             .expert_tensor = p->expert_tensor,
                                             .pipeline = p->pipeline,
                                             .virtual_stages = p->chunks,
                                             .expert = p->expert},
                                   .rollout = {.tensor = p->each,
                                               .expert_tensor = p->each,
                                               .pipeline = 1,
                                               .virtual_stages = 1},
                                   .rollout_ranks = p->rollout_ranks};
}

/* ---- a rank ---------------------------------------------------------------------------------- */

/* What it reads afterwards is what one rank reads. */
static invar_status check_weights(const lesson *l, const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        bool equal;

        if (p->local.experts == 0)
            continue;
        INVAR_TRY(divided_compare(&equal, p, &p->local, &l->one->params[i].weight, &l->one->dev,
                                  &p->weight, 0, &model->dev));
        if (!equal)
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "%s did not arrive", p->name);
    }
    return INVAR_OK;
}

static invar_status flip(const lesson *l, const invar_model *model)
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

/* Bytes are those of the plan, and of `invar plan`. */
static invar_status check_bytes(const invar_weight_sync *sync, const invar_rank_roles *sides,
                                const invar_model *model)
{
    invar_comm_stats moved = invar_comm_get_stats(sides->world.world, INVAR_COMM_SENDRECV);

    if (invar_weight_sync_bytes(sync) != (sides->is_rollout_rank ? moved.received : moved.sent) ||
        (sides->is_rollout_rank && moved.received != invar_model_weight_bytes(model)))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "other bytes were moved than planned");
    return INVAR_OK;
}

static invar_status sync_twice(lesson *l, const invar_rank_roles *sides, invar_model *model,
                               int rank)
{
    const invar_weight_sync_options o = {
        .roles = sides, .model = model, .dev = &model->dev, .bucket_bytes = l->bucket};
    invar_weight_sync_result result = {.bytes = 0};
    invar_weight_sync *sync;
    invar_status status = invar_weight_sync_new(&sync, &o);

    if (status == INVAR_OK)
        status = invar_weight_sync_transfer(sync);
    if (status == INVAR_OK)
        status = check_bytes(sync, sides, model);
    if (status == INVAR_OK)
        status = check_weights(l, model);
    if (status == INVAR_OK)
        status = invar_weight_sync_transfer(sync); // as the next rollout does
    if (status == INVAR_OK && l->flips == rank)
        status = flip(l, model);
    if (status == INVAR_OK)
        status = invar_weight_sync_compare(&result, sync);
    if (status == INVAR_OK && rank == 0) {
        l->hash = result.hash;
        l->bytes = result.bytes;
    }
    invar_weight_sync_free(sync);
    return status;
}

static invar_status rank_part(rank_run *run)
{
    lesson *l = run->payload;
    const invar_rank_role_sizes sizes = sizes_of(l->of);
    int rank = invar_comm_rank(run->comm), last = invar_comm_size(run->comm) - 1;
    invar_device dev = divided_device(l->dev, l->far, rank == last ? 1 : rank);
    invar_model *model = NULL;
    invar_layout own = {.world = NULL};
    invar_rank_roles sides;
    invar_status status = invar_rank_roles_open(&sides, &own, run->comm, DIVIDED_SECONDS, &sizes);

    if (status == INVAR_OK)
        status = sides.is_rollout_rank
                     ? invar_model_new_weights(&model, &l->spec, l->format, &own, &dev)
                     : invar_model_new(&model, &l->spec, l->format, &own, &dev);
    if (status == INVAR_OK && !sides.is_rollout_rank)
        status = invar_model_init(model, 5, &dev);
    if (status == INVAR_OK)
        status = sync_twice(l, &sides, model, rank);
    if (status != INVAR_OK && status != INVAR_E_MISMATCH)
        invar_comm_abort(run->comm, invar_error_last()->message);
    invar_model_free(model);
    invar_layout_release(&own);
    invar_rank_roles_close(&sides);
    return status;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void check_pair(lesson *l, const pair *p, size_t bucket, uint64_t schedule)
{
    const invar_digest before = l->hash;
    char what[80];

    l->of = p;
    l->bucket = bucket;
    (void)snprintf(what, sizeof what, "%d ranks train (%d x %d x %d), %d sample by %d", p->train,
                   p->tensor, p->expert, p->pipeline, p->rollout_ranks, p->each);
    divided_run(p->train + p->rollout_ranks, schedule, rank_part, l, what);
    if (p != pairs) // the hash knows nothing of layouts
        assert_true(invar_digest_equal(&before, &l->hash));
}

/* The first pair, and of the others every third one from `first` on. */
static void check(invar_test_model kind, invar_format format, int first, const invar_device *dev,
                  const invar_device *far)
{
    static const size_t buckets[] = {(size_t)1 << 30, 9001, 100001};
    lesson l = {
        .dev = dev, .far = far, .spec = divided_spec(kind, format), .format = format, .flips = -1};

    assert_ok(invar_model_new(&l.one, &l.spec, format, NULL, dev));
    assert_ok(invar_model_init(l.one, 5, dev));
    check_pair(&l, pairs, buckets[first % 3], 0);
    for (int i = first; i < PAIRS; i += 3)
        check_pair(&l, &pairs[i], buckets[i % 3], (uint64_t)i);
    for (int i = first - 1; i < EXPERT_PAIRS && l.spec.experts > 0; i += 2)
        check_pair(&l, &expert_pairs[i], buckets[i % 3], (uint64_t)i);
    invar_model_free(l.one);
}

static void test_sync__ranks_that_sample_have_the_weights(void **state)
{
    check(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 1, *state, NULL);
    check(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, 2, *state, NULL);
    check(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP8, 1, *state, NULL);
    check(INVAR_TEST_MODEL_BIAS, INVAR_FORMAT_INT4, 1, *state, NULL);
    check(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_MXFP8, 3, *state, NULL);
}

static void test_sync__memory_may_be_far(void **state)
{
    invar_device far;

    assert_ok(invar_far_open(&far, *state));
    check(INVAR_TEST_MODEL_BIAS, INVAR_FORMAT_FP8, 2, *state, &far);
    invar_device_close(&far);
}

/* Rank `rank` of a pair has another bit in a parameter: all ranks say so. */
static void check_flip(lesson *l, const pair *p, int rank, const char *name)
{
    rank_run runs[MAX_RANKS];
    char text[200];

    l->of = p;
    l->flips = rank;
    l->name = name;
    run_ranks(runs, p->train + p->rollout_ranks, 0, 0, rank_part, l);
    (void)snprintf(text, sizeof text, "rank %d on ", rank);
    for (int r = 0; r < p->train + p->rollout_ranks; r++) {
        assert_int_equal(runs[r].status, INVAR_E_MISMATCH);
        assert_memory_equal(runs[r].error.message, text, strlen(text));
        assert_non_null(strstr(runs[r].error.message, name));
    }
}

/* The negative control: also a copy that is not the first of its engine, and one that trains. */
static void test_sync__a_flipped_bit_is_named(void **state)
{
    static const pair engine = {2, 1, 1, 1, 1, 1, 2, 2}, data = {2, 1, 1, 1, 1, 1, 1, 1};
    static const pair one_engine = {1, 1, 1, 1, 1, 1, 2, 2};
    lesson l = {.dev = *state,
                .spec = divided_spec(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP8),
                .format = INVAR_FORMAT_FP8,
                .bucket = 4096};

    assert_ok(invar_model_new(&l.one, &l.spec, l.format, NULL, l.dev));
    assert_ok(invar_model_init(l.one, 5, l.dev));
    check_flip(&l, &data, 2, "model.layers.3.mlp.down_proj.weight");
    check_flip(&l, &data, 1, "model.embed_tokens.weight");
    check_flip(&l, &engine, 2, "model.layers.0.self_attn.o_proj.weight");
    check_flip(&l, &engine, 3, "model.norm.weight");
    check_flip(&l, &engine, 3, "model.layers.0.self_attn.o_proj.weight");
    check_flip(&l, &one_engine, 1, "model.layers.1.mlp.up_proj.weight");
    check_flip(&l, &one_engine, 2, "model.layers.0.self_attn.o_proj.weight");
    invar_model_free(l.one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sync__ranks_that_sample_have_the_weights),
        cmocka_unit_test(test_sync__memory_may_be_far),
        cmocka_unit_test(test_sync__a_flipped_bit_is_named),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
