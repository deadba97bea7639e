/*
 * partition.c - tests that the partitions of all ranks cover the model, without overlaps.
 *
 * For many layouts, the local shards of all ranks must add up to each parameter, be equal on all
 * ranks or disjoint, and agree with the ranges of docs/arithmetic.md. Impossible layouts are
 * rejected with the sizes that fit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/partition.h"

#include "tests/sharded_model.h"

/* Returns true if two local shards have an element in common. */
static bool overlap(const invar_param *p, const invar_param_shard *a, const invar_param_shard *b)
{
    return a->row < b->row + b->rows && b->row < a->row + a->rows &&
           (p->cols == 0 || (a->col < b->col + b->cols && b->col < a->col + a->cols));
}

static bool equal_shards(const invar_param_shard *a, const invar_param_shard *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Checks the local shards of a parameter on all ranks; returns the number of stages with some. */
static int64_t check_param(const invar_model *model, const invar_param *p,
                           invar_model_partition part)
{
    int64_t all = invar_param_all_elements(p), stages = 0;

    for (part.stage = 0; part.stage < part.stages; part.stage++) {
        invar_param_shard local_shards[8];
        int64_t sum = 0, complete = 0;

        for (part.tensor = 0; part.tensor < part.tensors; part.tensor++) {
            invar_param local_param = *p;
            local_param.local = local_shards[part.tensor] =
                invar_model_partition_shard(&part, &model->spec, p);
            sum += invar_param_elements(&local_param);
            complete += invar_param_elements(&local_param) == all;
            for (int32_t t = 0; t < part.tensor; t++)
                assert_true(local_shards[t].experts == 0 ||
                            equal_shards(&local_shards[t], &local_shards[part.tensor]) ||
                            !overlap(p, &local_shards[t], &local_shards[part.tensor]));
        }
        assert_true(sum == 0 || sum == all || complete == part.tensors);
        stages += sum > 0;
    }
    return stages;
}

/*
 * Compares invar_model_partition_first with a linear search: the lowest rank that has a logical
 * shard.
 */
static void check_first(const invar_model *model, const invar_param *p,
                        const invar_model_partition *any)
{
    for (int64_t expert = 0; expert < p->stack; expert++)
        for (int32_t v = 0; v < p->split.shards; v++) {
            invar_param_shard local_shard = {0};
            int32_t n = -1;

            while (!invar_param_shard_has(&local_shard, expert, v)) {
                invar_model_partition part = invar_model_partition_numbered(any, ++n);
                assert_true(n < invar_model_partition_ranks(any));
                local_shard = invar_model_partition_shard(&part, &model->spec, p);
            }
            assert_int_equal(invar_model_partition_first(any, &model->spec, p, expert, v), n);
        }
}

static void check_all(invar_test_model kind, invar_format format, const invar_device *dev)
{
    invar_model_spec spec = sharded_spec(kind, format);
    invar_model *model;

    assert_ok(invar_model_new(&model, &spec, format, NULL, dev));
    for (int w = 0; w < DIVIDED_WORLDS; w++) {
        const invar_layout_sizes *s = &divided_worlds[w].sizes;
        invar_model_partition part = {.tensors = s->tensor,
                                      .expert_tensors = s->expert_tensor,
                                      .experts = 1,
                                      .stages = s->pipeline,
                                      .chunks = s->virtual_stages};

        assert_ok(invar_model_partition_check(&part, &spec, model->params, model->n_params,
                                              format > INVAR_FORMAT_BF16));
        for (int64_t i = 0; i < model->n_params; i++) {
            bool twice = i == 0 && spec.tied && part.stages > 1;
            assert_int_equal(check_param(model, &model->params[i], part), twice ? 2 : 1);
            for (part.experts = 1; part.experts <= (spec.experts.count ? 4 : 1); part.experts++)
                check_first(model, &model->params[i], &part);
            part.experts = 1;
        }
    }
    invar_model_free(model);
}

static void test_partition__covers_the_model(void **state)
{
    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        check_all(INVAR_TEST_MODEL_DENSE, (invar_format)format, *state);
        check_all(INVAR_TEST_MODEL_EXPERTS, (invar_format)format, *state);
    }
}

/* Model chunks are assigned round-robin: of four stages, stage 1 has the chunks 1 and 5 of 8. */
static void test_partition__model_chunks(void **state)
{
    invar_model_partition part = {
        .tensors = 1, .expert_tensors = 1, .experts = 1, .stage = 1, .stages = 4, .chunks = 2};

    (void)state;
    for (int64_t layer = 0; layer < 16; layer++)
        assert_int_equal(invar_model_partition_has(&part, 16, layer),
                         layer / 2 == 1 || layer / 2 == 5);
    part.stage = 0;
    assert_int_equal(invar_model_partition_chunk(&part, 11, 0).count,
                     2); // 11 layers in 8 model chunks
    assert_int_equal(invar_model_partition_chunk(&part, 11, 3).count, 1);
    assert_int_equal(invar_model_partition_chunk(&part, 11, 7).first, 10);
}

/* 11 atoms in 8 logical shards: atom a is in shard floor(8 a / 11), as the contract says. */
static void test_partition__eleven_atoms(void **state)
{
    static const int64_t atoms[] = {0, 3, 6, 9, 11}; // first atom of each of 4 ranks
    invar_model_spec spec = sharded_spec(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32);
    invar_model *model;

    assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_FP32, NULL, *state));
    for (int32_t t = 0; t < 4; t++) {
        invar_model_partition part = {
            .tensor = t, .tensors = 4, .expert_tensors = 4, .experts = 1, .stages = 1, .chunks = 1};
        invar_param_shard local_shard = invar_model_partition_shard(&part, &spec, model->embedding);
        assert_int_equal(local_shard.row, 256 * atoms[t]);
        assert_int_equal(local_shard.rows, 256 * (atoms[t + 1] - atoms[t]));
        assert_int_equal(local_shard.first_shard, 2 * t);
    }
    invar_model_free(model);
}

/* Inserting an extracted shard restores its elements and changes no others. */
static void test_partition__extract_and_insert(void **state)
{
    invar_param p = {.stack = 3, .rows = 5, .cols = 7};
    const invar_param_shard local_shards[] = {
        {.expert = 1, .experts = 2, .row = 2, .rows = 3, .cols = 7},
        {.experts = 3, .rows = 5, .col = 3, .cols = 2},
        {.experts = 3, .rows = 5, .cols = 7}};
    float complete[105], back[105], local_shard[105];

    (void)state;
    for (int i = 0; i < 105; i++)
        complete[i] = (float)(i + 1);
    for (size_t b = 0; b < sizeof local_shards / sizeof *local_shards; b++) {
        int64_t count = local_shards[b].experts * local_shards[b].rows * local_shards[b].cols,
                kept = 0;

        invar_param_shard_extract(local_shard, &p, &local_shards[b], complete);
        assert_true(sharded_shard_equal(&p, &local_shards[b], complete, local_shard));
        memset(back, 0, sizeof back);
        invar_param_shard_insert(back, &p, &local_shards[b], local_shard);
        for (int i = 0; i < 105; i++) {
            assert_true(back[i] == 0.0f || back[i] == complete[i]);
            kept += back[i] == complete[i];
        }
        assert_int_equal(kept, count);
    }
}

static void test_partition__refuses(void **state)
{
    invar_model_spec spec = sharded_spec(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32);
    invar_model_partition part = {
        .tensors = 1, .expert_tensors = 1, .experts = 1, .stages = 4, .chunks = 2};
    invar_model *model;

    assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_FP32, NULL, *state));
    assert_fails(invar_model_partition_check(&part, &spec, model->params, model->n_params, false),
                 INVAR_E_INVALID,
                 "8 runs of layers (pipeline-model-parallel-size 4): the model has only 4 layers");
    part.stages = part.chunks = 1;
    part.tensors = 16;
    assert_fails(invar_model_partition_check(&part, &spec, model->params, model->n_params, false),
                 INVAR_E_INVALID,
                 "tensor-model-parallel-size 16 does not divide the pieces of this model: "
                 "logical-tp is 8; sizes that fit now: 1, 2, 4, 8");
    spec.logical_tp = 1;
    part.tensors = 2;
    assert_fails(invar_model_partition_check(&part, &spec, model->params, model->n_params, false),
                 INVAR_E_INVALID, "logical-tp is 1; sizes that fit now: 1");
    spec.logical_tp = 8;
    part.tensors = 2; // 11 atoms of features: uneven
    assert_ok(invar_model_partition_check(&part, &spec, model->params, model->n_params, false));
    assert_fails(invar_model_partition_check(&part, &spec, model->params, model->n_params, true),
                 INVAR_E_INVALID,
                 "mlp.gate_proj.weight has 1408 rows in atoms of 128; sizes that fit now: 1, 8");
    part.tensors = 1;
    part.experts = 2;
    assert_fails(invar_model_partition_check(&part, &spec, model->params, model->n_params, false),
                 INVAR_E_INVALID, "expert-model-parallel-size 2: the model has 0 experts");
    part.experts = 1;
    part.contexts = 3;
    assert_fails(invar_model_partition_check(&part, &spec, model->params, model->n_params, false),
                 INVAR_E_INVALID,
                 "context-parallel-size 3 does not divide the 8 groups of heads of this model with "
                 "tensor-model-parallel-size 1; it takes 1, 2, 4, 8");
    part.tensors = part.expert_tensors = 4;
    part.contexts = 4;
    assert_fails(invar_model_partition_check(&part, &spec, model->params, model->n_params, false),
                 INVAR_E_INVALID, "with tensor-model-parallel-size 4; it takes 1, 2");
    part.contexts = 2;
    assert_ok(invar_model_partition_check(&part, &spec, model->params, model->n_params, false));
    spec.experts.count = 8; // values of a model with experts
    spec.logical_etp = 8;
    part.experts = 4;
    assert_ok(invar_model_partition_check(&part, &spec, model->params, model->n_params, false));
    part.experts = 5; // some ranks have only one expert
    assert_fails(invar_model_partition_check(&part, &spec, model->params, model->n_params, false),
                 INVAR_E_INVALID,
                 "context-parallel-size 2 does not divide the work of 1 experts, which a rank has "
                 "with expert-model-parallel-size 5; it takes 1");
    part.tensors = part.expert_tensors = 1;
    part.experts = 2;
    part.contexts = 8;
    assert_fails(invar_model_partition_check(&part, &spec, model->params, model->n_params, false),
                 INVAR_E_INVALID,
                 "the work of 4 experts, which a rank has with expert-model-parallel-size 2; it "
                 "takes 1, 2, 4");
    invar_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_partition__covers_the_model),
        cmocka_unit_test(test_partition__model_chunks),
        cmocka_unit_test(test_partition__eleven_atoms),
        cmocka_unit_test(test_partition__extract_and_insert),
        cmocka_unit_test(test_partition__refuses),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
