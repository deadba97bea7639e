/*
 * sharded_model.c - tests of model files with several ranks: they do not depend on the layout.
 *
 * Ranks that divide a model load the Hugging Face folder and the checkpoint that one rank wrote,
 * and must write files with the same bytes. Controls: a model with another seed differs in its
 * parameters and in its checkpoint.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "base/alloc.h"
#include "engine/files/hf/hf.h"
#include "engine/model/shard/full_param.h"
#include "engine/model/shard/master_weights.h"
#include "engine/run/context/run_context.h"
#include "engine/train/optimizer.h"
#include "tests/sharded_model.h"

enum { SETS = 3 };

/* One model, the files of one rank, and the folder for the ranks that divide it. */
typedef struct sharded_case {
    sharded_model base;
    char *hf, *save;   /* Hugging Face folder and checkpoint folder, written by one rank */
    char *rank_folder; /* folder that the dividing ranks write */
    invar_digest hash; /* digest of the checkpoint in `save` */
} sharded_case;

static char work[] = INVAR_TEST_WORK "/divided.XXXXXX";

static char *in_work(const char *name, int number)
{
    char *path = malloc(INVAR_PATH_SIZE);

    (void)snprintf(path, INVAR_PATH_SIZE, "%s/%s-%d", work, name, number);
    return path;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* A model with its moments, and the tensors of its checkpoint. */
typedef struct content {
    invar_model *model;
    invar_optimizer *optimizer;
    invar_full_masters masters;
    invar_checkpoint_tensor *tensors;
    invar_full_param_source *sources;
    int64_t count;
    invar_full_param_reader full;
} content;

/* Fills the moments with numbers that differ from those of the masters. */
static invar_status fill_moments(invar_optimizer *o, const invar_model *model)
{
    invar_status status = INVAR_OK;

    for (int64_t i = 0; i < 2 * model->n_params && status == INVAR_OK; i++) {
        const invar_param *p = &model->params[i / 2];
        size_t all = (size_t)invar_param_all_elements(p);
        float *full = malloc(2 * all * sizeof *full), *local = full + all;

        for (size_t k = 0; k < all; k++)
            full[k] = (float)((size_t)i * 1000003 + k);
        if (p->local.experts > 0)
            invar_param_shard_extract(local, p, &p->local, full);
        status = invar_optimizer_load(o, model, i / 2, i % 2 == 1, local);
        free(full);
    }
    return status;
}

static void list_tensors(content *c)
{
    static const char *const sets[SETS] = {"model", "model.exp_avg", "model.exp_avg_sq"};
    const invar_model *model = c->model;
    const invar_device *optimizer_device = invar_optimizer_device(c->optimizer);
    const invar_device *master_device = c->masters.tensors ? NULL : &model->dev;

    c->tensors = calloc((size_t)(SETS * model->n_params), sizeof *c->tensors);
    c->sources = calloc((size_t)(SETS * model->n_params), sizeof *c->sources);
    for (int set = 0; set < SETS; set++)
        for (int64_t i = 0; i < model->n_params; i++) {
            const invar_param *p = &model->params[i];
            const invar_tensor *master =
                c->masters.tensors ? &c->masters.tensors[i] : invar_param_f32(p);
            const invar_tensor *values = set == 0   ? master
                                         : set == 1 ? &c->optimizer->m[i]
                                                    : &c->optimizer->v[i];
            c->tensors[c->count] = (invar_checkpoint_tensor){
                sets[set], p->name, invar_param_full_tensor(p, NULL), NULL};
            c->sources[c->count++] = (invar_full_param_source){
                model, i, values, set == 0 ? master_device : optimizer_device};
        }
}

static invar_status read_tensor(const void **out, void *payload, int64_t number)
{
    content *c = payload;
    const invar_full_param_source *from = &c->sources[number];

    return invar_full_param_reader_read((const float **)out, &c->full, from, 0,
                                        from->model->params[from->param].stack);
}

static invar_status write_checkpoint(invar_digest *hash, content *c, const char *save,
                                     bool is_rank_0)
{
    invar_checkpoint_state state = {.step = 0};
    invar_checkpoint_content checkpoint_content = {.state = &state,
                                                   .tensors = c->tensors,
                                                   .n_tensors = c->count,
                                                   .fetch = read_tensor,
                                                   .payload = c};
    const void *none;

    if (is_rank_0)
        return invar_checkpoint_write(hash, save, &checkpoint_content, NULL);
    for (int64_t i = 0; i < c->count; i++)
        INVAR_TRY(read_tensor(&none, c, i));
    return INVAR_OK;
}

static invar_status save_all(invar_digest *hash, invar_model *model, const char *save)
{
    content c = {.model = model};
    invar_status status;

    INVAR_TRY(invar_optimizer_new(&c.optimizer, model, 0));
    status = fill_moments(c.optimizer, model);
    if (status == INVAR_OK)
        status = invar_optimizer_collect(c.optimizer, model);
    if (status == INVAR_OK)
        status = invar_full_masters_collect(&c.masters, model);
    if (status == INVAR_OK) {
        list_tensors(&c);
        status = write_checkpoint(hash, &c, save,
                                  !model->layout || invar_comm_rank(model->layout->world) == 0);
    }
    free(c.tensors);
    free(c.sources);
    invar_full_param_reader_release(&c.full);
    invar_full_masters_release(&c.masters);
    invar_optimizer_free(c.optimizer);
    return status;
}

/* Checks the checkpoint of one rank with the reader for single ranks, against the masters. */
static void check_single_rank(const sharded_case *l)
{
    invar_checkpoint *checkpoint;

    assert_ok(invar_checkpoint_open(&checkpoint, l->save, NULL));
    for (int64_t i = 0; i < l->base.one->n_params; i++) {
        const invar_param *p = &l->base.one->params[i];
        invar_tensor into = p->master;

        into.data = malloc(invar_host_staging_span(&into));
        assert_ok(invar_checkpoint_load(&into, checkpoint, "model", p->name));
        assert_memory_equal(into.data, p->master.data, invar_host_staging_span(&into));
        free(into.data);
    }
    invar_checkpoint_close(checkpoint);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Initializes with another seed, so that a parameter that is not loaded is detected. */
static invar_status reinit_weights(invar_model *model, const invar_device *dev)
{
    return invar_model_init(model, 99, dev);
}

static invar_status check_loads(const sharded_case *l, invar_model *model, const invar_device *dev)
{
    INVAR_TRY(reinit_weights(model, dev));
    if (sharded_compare_model(l->base.one, model) == INVAR_OK)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "models of two seeds are the same");
    invar_error_clear();
    INVAR_TRY(invar_hf_load(model, l->hf, dev));
    INVAR_TRY(sharded_compare_model(l->base.one, model));
    INVAR_TRY(reinit_weights(model, dev));
    INVAR_TRY(invar_run_context_load(model, l->save, INVAR_CHECKPOINT_LATEST, dev));
    return sharded_compare_model(l->base.one, model);
}

static invar_status export_hf(const invar_model *model, const char *dir)
{
    invar_full_masters masters = {.tensors = NULL};
    invar_status status = invar_full_masters_collect(&masters, model);

    if (status == INVAR_OK)
        status = invar_hf_save(model, masters.tensors, dir, INVAR_DTYPE_F32, 0, NULL);
    invar_full_masters_release(&masters);
    return status;
}

/* Compares the digest of the checkpoint, which covers all its bytes. */
static invar_status check_saves(const sharded_case *l, invar_model *model, const invar_device *dev)
{
    bool is_rank_0 = invar_comm_rank(model->layout->world) == 0;
    invar_digest hash;

    INVAR_TRY(export_hf(model, l->rank_folder));
    INVAR_TRY(save_all(&hash, model, l->rank_folder));
    if (is_rank_0 && !invar_digest_equal(&hash, &l->hash))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "the checkpoint is another");
    INVAR_TRY(reinit_weights(model, dev));
    INVAR_TRY(save_all(&hash, model, l->rank_folder));
    if (is_rank_0 && invar_digest_equal(&hash, &l->hash))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "other weights have the same checkpoint");
    return INVAR_OK;
}

static invar_status check_rank(void *payload, invar_model *model, const invar_device *dev)
{
    INVAR_TRY(check_loads(payload, model, dev));
    return check_saves(payload, model, dev);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void assert_same_file(const char *a, const char *b, const char *name)
{
    char path[2][INVAR_PATH_SIZE];
    invar_digest hash[2];
    int64_t bytes[2];

    assert_ok(invar_path_join(path[0], sizeof path[0], a, name));
    assert_ok(invar_path_join(path[1], sizeof path[1], b, name));
    for (int i = 0; i < 2; i++)
        assert_ok(invar_file_hash(&hash[i], &bytes[i], path[i]));
    assert_true(invar_digest_equal(&hash[0], &hash[1]) && bytes[0] == bytes[1]);
}

static void check_world(sharded_case *l, const sharded_world *world, const char *what, int number)
{
    l->base.world = world;
    l->rank_folder = in_work("again", number);
    sharded_check(&l->base, (uint64_t)number, what);
    assert_same_file(l->hf, l->rank_folder, "model.safetensors");
    assert_same_file(l->hf, l->rank_folder, "config.json");
    free(l->rank_folder);
}

static void check_model(invar_test_model kind, invar_format format, int number,
                        const invar_device *dev)
{
    sharded_case l = {.base = {.spec = sharded_spec(kind, format),
                               .format = format,
                               .dev = dev,
                               .check = check_rank,
                               .payload = &l}};

    l.hf = in_work("hf", number);
    l.save = in_work("save", number);
    assert_ok(invar_model_new(&l.base.one, &l.base.spec, format, NULL, dev));
    assert_ok(invar_model_init(l.base.one, 5, dev));
    assert_ok(invar_hf_save(l.base.one, NULL, l.hf, INVAR_DTYPE_F32, 0, NULL));
    assert_ok(save_all(&l.hash, l.base.one, l.save));
    check_single_rank(&l);
    for (int w = number; w < DIVIDED_WORLDS; w += 3)
        if (sharded_runs(w) || w == 14) // the third model has the last world
            check_world(&l, &divided_worlds[w], invar_test_model_name(kind), w);
    for (int w = invar_test_full() ? 0 : 1;
         l.base.spec.experts.count > 0 && w < DIVIDED_EXPERT_WORLDS; w += invar_test_full() ? 1 : 2)
        check_world(&l, &divided_expert_worlds[w], "experts of ranks", w);
    invar_model_free(l.base.one);
    free(l.hf);
    free(l.save);
}

static void test_sharded_model__reads_and_writes_as_one_rank(void **state)
{
    check_model(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 0, *state);
    check_model(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, 1, *state);
    check_model(INVAR_TEST_MODEL_BIAS, INVAR_FORMAT_INT4, 2, *state);
}

static int setup(void **state)
{
    return mkdtemp(work) ? invar_test_devices_setup(state) : -1;
}

static int teardown(void **state)
{
    return invar_held_folder_remove(work) == INVAR_OK ? invar_test_devices_teardown(state) : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharded_model__reads_and_writes_as_one_rank),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
