/*
 * sharded_model.c - files know nothing of ranks: those that divide a model read what one rank
 * wrote, and write the same bytes.
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

typedef struct lesson {
    divided_model of;
    char *hf, *save;   /* one rank's folders, */
    char *again;       /* and one that ranks write into */
    invar_digest hash; /* of its checkpoint */
} lesson;

static char work[] = INVAR_TEST_WORK "/divided.XXXXXX";

static char *in_work(const char *name, int number)
{
    char *path = malloc(INVAR_PATH_SIZE);

    (void)snprintf(path, INVAR_PATH_SIZE, "%s/%s-%d", work, name, number);
    return path;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* A model and its moments, of all ranks or of one. */
typedef struct content {
    invar_model *model;
    invar_optimizer *optimizer;
    invar_full_masters masters;
    invar_checkpoint_tensor *tensors;
    invar_full_param_source *sources;
    int64_t count;
    invar_full_param_reader whole;
} content;

/* Some other numbers than the masters have. */
static invar_status fill_moments(invar_optimizer *o, const invar_model *model)
{
    invar_status status = INVAR_OK;

    for (int64_t i = 0; i < 2 * model->n_params && status == INVAR_OK; i++) {
        const invar_param *p = &model->params[i / 2];
        size_t all = (size_t)invar_param_all_elements(p);
        float *whole = malloc(2 * all * sizeof *whole), *own = whole + all;

        for (size_t k = 0; k < all; k++)
            whole[k] = (float)((size_t)i * 1000003 + k);
        if (p->local.experts > 0)
            invar_param_shard_extract(own, p, &p->local, whole);
        status = invar_optimizer_load(o, model, i / 2, i % 2 == 1, own);
        free(whole);
    }
    return status;
}

static void list(content *c)
{
    static const char *const sets[SETS] = {"model", "model.exp_avg", "model.exp_avg_sq"};
    const invar_model *model = c->model;
    const invar_device *place = invar_optimizer_device(c->optimizer);
    const invar_device *home = c->masters.tensors ? NULL : &model->dev;

    c->tensors = calloc((size_t)(SETS * model->n_params), sizeof *c->tensors);
    c->sources = calloc((size_t)(SETS * model->n_params), sizeof *c->sources);
    for (int set = 0; set < SETS; set++)
        for (int64_t i = 0; i < model->n_params; i++) {
            const invar_param *p = &model->params[i];
            const invar_tensor *master =
                c->masters.tensors ? &c->masters.tensors[i] : invar_param_f32(p);
            const invar_tensor *of = set == 0   ? master
                                     : set == 1 ? &c->optimizer->m[i]
                                                : &c->optimizer->v[i];
            c->tensors[c->count] = (invar_checkpoint_tensor){
                sets[set], p->name, invar_param_full_tensor(p, NULL), NULL};
            c->sources[c->count++] =
                (invar_full_param_source){model, i, of, set == 0 ? home : place};
        }
}

static invar_status fetch(const void **out, void *payload, int64_t number)
{
    content *c = payload;
    const invar_full_param_source *from = &c->sources[number];

    return invar_full_param_reader_read((const float **)out, &c->whole, from, 0,
                                        from->model->params[from->param].stack);
}

static invar_status write(invar_digest *hash, content *c, const char *save, bool leads)
{
    invar_checkpoint_state state = {.step = 0};
    invar_checkpoint_content what = {.state = &state,
                                     .tensors = c->tensors,
                                     .n_tensors = c->count,
                                     .fetch = fetch,
                                     .payload = c};
    const void *none;

    if (leads)
        return invar_checkpoint_write(hash, save, &what, NULL);
    for (int64_t i = 0; i < c->count; i++)
        INVAR_TRY(fetch(&none, c, i));
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
        list(&c);
        status =
            write(hash, &c, save, !model->layout || invar_comm_rank(model->layout->world) == 0);
    }
    free(c.tensors);
    free(c.sources);
    invar_full_param_reader_release(&c.whole);
    invar_full_masters_release(&c.masters);
    invar_optimizer_free(c.optimizer);
    return status;
}

/* The plain way, without anything that ranks need: what `fetch` yields must be that. */
static void check_plain(const lesson *l)
{
    invar_checkpoint *checkpoint;

    assert_ok(invar_checkpoint_open(&checkpoint, l->save, NULL));
    for (int64_t i = 0; i < l->of.one->n_params; i++) {
        const invar_param *p = &l->of.one->params[i];
        invar_tensor into = p->master;

        into.data = malloc(invar_host_staging_span(&into));
        assert_ok(invar_checkpoint_load(&into, checkpoint, "model", p->name));
        assert_memory_equal(into.data, p->master.data, invar_host_staging_span(&into));
        free(into.data);
    }
    invar_checkpoint_close(checkpoint);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Other values, so that what is not read shows. */
static invar_status forget(invar_model *model, const invar_device *dev)
{
    return invar_model_init(model, 99, dev);
}

static invar_status check_loads(const lesson *l, invar_model *model, const invar_device *dev)
{
    INVAR_TRY(forget(model, dev));
    if (divided_same_model(l->of.one, model) == INVAR_OK)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "models of two seeds are the same");
    invar_error_clear();
    INVAR_TRY(invar_hf_load(model, l->hf, dev));
    INVAR_TRY(divided_same_model(l->of.one, model));
    INVAR_TRY(forget(model, dev));
    INVAR_TRY(invar_run_context_load(model, l->save, INVAR_CHECKPOINT_LATEST, dev));
    return divided_same_model(l->of.one, model);
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

/* The hash of a checkpoint is of all its bytes. */
static invar_status check_saves(const lesson *l, invar_model *model, const invar_device *dev)
{
    bool leads = invar_comm_rank(model->layout->world) == 0;
    invar_digest hash;

    INVAR_TRY(export_hf(model, l->again));
    INVAR_TRY(save_all(&hash, model, l->again));
    if (leads && !invar_digest_equal(&hash, &l->hash))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "the checkpoint is another");
    INVAR_TRY(forget(model, dev));
    INVAR_TRY(save_all(&hash, model, l->again));
    if (leads && invar_digest_equal(&hash, &l->hash))
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

static void check_world(lesson *l, const divided_world *world, const char *what, int number)
{
    l->of.world = world;
    l->again = in_work("again", number);
    divided_check(&l->of, (uint64_t)number, what);
    assert_same_file(l->hf, l->again, "model.safetensors");
    assert_same_file(l->hf, l->again, "config.json");
    free(l->again);
}

static void check(invar_test_model kind, invar_format format, int number, const invar_device *dev)
{
    lesson l = {.of = {.spec = divided_spec(kind, format),
                       .format = format,
                       .dev = dev,
                       .check = check_rank,
                       .payload = &l}};

    l.hf = in_work("hf", number);
    l.save = in_work("save", number);
    assert_ok(invar_model_new(&l.of.one, &l.of.spec, format, NULL, dev));
    assert_ok(invar_model_init(l.of.one, 5, dev));
    assert_ok(invar_hf_save(l.of.one, NULL, l.hf, INVAR_DTYPE_F32, 0, NULL));
    assert_ok(save_all(&l.hash, l.of.one, l.save));
    check_plain(&l);
    for (int w = number; w < DIVIDED_WORLDS; w += 3)
        check_world(&l, &divided_worlds[w], invar_test_model_name(kind), w);
    for (int w = 0; l.of.spec.experts > 0 && w < DIVIDED_EXPERT_WORLDS; w++)
        check_world(&l, &divided_expert_worlds[w], "experts of ranks", w);
    invar_model_free(l.of.one);
    free(l.hf);
    free(l.save);
}

static void test_divided__reads_and_writes_as_one_rank(void **state)
{
    check(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 0, *state);
    check(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, 1, *state);
    check(INVAR_TEST_MODEL_BIAS, INVAR_FORMAT_INT4, 2, *state);
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
        cmocka_unit_test(test_divided__reads_and_writes_as_one_rank),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
