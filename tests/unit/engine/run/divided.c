/*
 * divided.c - files know nothing of ranks: those that divide a model read what one rank wrote.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "engine/hf/hf.h"
#include "engine/run/session.h"
#include "tests/divided.h"

typedef struct lesson {
    const divided_world *world;
    invar_model_spec spec;
    invar_format format;
    const invar_device *dev;
    invar_model *one; /* one rank's, which is in both folders */
    char hf[INVAR_PATH_SIZE], checkpoint[INVAR_PATH_SIZE];
} lesson;

static char work[] = INVAR_TEST_WORK "/divided.XXXXXX";

/* ---- one rank's files ------------------------------------------------------------------------ */

static void write_checkpoint(const char *save, const invar_model *model)
{
    invar_checkpoint_state state = {.step = 0};
    invar_checkpoint_tensor *tensors = calloc((size_t)model->n_params, sizeof *tensors);
    invar_checkpoint_content content = {
        .state = &state, .tensors = tensors, .n_tensors = model->n_params};

    for (int64_t i = 0; i < model->n_params; i++)
        tensors[i] = (invar_checkpoint_tensor){"model", model->params[i].name,
                                               model->params[i].master, &model->dev};
    assert_ok(invar_checkpoint_write(NULL, save, &content, NULL));
    free(tensors);
}

static void write_files(lesson *l, int number)
{
    (void)snprintf(l->hf, sizeof l->hf, "%s/hf-%d", work, number);
    (void)snprintf(l->checkpoint, sizeof l->checkpoint, "%s/save-%d", work, number);
    assert_ok(invar_hf_save(l->one, l->hf, INVAR_DTYPE_F32, 500000, NULL));
    write_checkpoint(l->checkpoint, l->one);
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
    if (divided_same_model(l->one, model) == INVAR_OK)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "models of two seeds are the same");
    invar_error_clear();
    INVAR_TRY(invar_hf_load(model, l->hf, dev));
    INVAR_TRY(divided_same_model(l->one, model));
    INVAR_TRY(forget(model, dev));
    INVAR_TRY(invar_session_load(model, l->checkpoint, INVAR_CHECKPOINT_LATEST, dev));
    return divided_same_model(l->one, model);
}

static invar_status rank_part(rank_run *run)
{
    const lesson *l = run->payload;
    invar_device dev = divided_device(l->dev, NULL, invar_comm_rank(run->comm));
    invar_model *model = NULL;
    invar_layout layout;
    invar_status status = divided_layout(&layout, run->comm, l->world);

    if (status == INVAR_OK)
        status = invar_model_new(&model, &l->spec, l->format, &layout, &dev);
    if (status == INVAR_OK)
        status = check_loads(l, model, &dev);
    if (status != INVAR_OK)
        invar_comm_abort(run->comm, invar_error_last()->message);
    invar_model_free(model);
    invar_layout_release(&layout);
    return status;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void check(lesson *l, invar_test_model kind, int number, const invar_device *dev)
{
    l->dev = dev;
    l->spec = divided_spec(kind, l->format);
    assert_ok(invar_model_new(&l->one, &l->spec, l->format, NULL, dev));
    assert_ok(invar_model_init(l->one, 5, dev));
    write_files(l, number);
    for (int w = number % 2; w < DIVIDED_WORLDS; w += 2) {
        l->world = &divided_worlds[w];
        divided_run(l->world->size, (uint64_t)w, rank_part, l, invar_test_model_name(kind));
    }
    invar_model_free(l->one);
}

static void test_divided__reads_what_one_rank_wrote(void **state)
{
    static const invar_test_model kinds[] = {INVAR_TEST_MODEL_DENSE, INVAR_TEST_MODEL_EXPERTS,
                                             INVAR_TEST_MODEL_BIAS};
    static const invar_format formats[] = {INVAR_FORMAT_BF16, INVAR_FORMAT_FP32, INVAR_FORMAT_INT4};
    lesson l;

    for (int k = 0; k < 3; k++) {
        l = (lesson){.format = formats[k]};
        check(&l, kinds[k], k, *state);
    }
}

static int setup(void **state)
{
    return mkdtemp(work) ? invar_test_devices_setup(state) : -1;
}

static int teardown(void **state)
{
    return invar_folder_remove(work) == INVAR_OK ? invar_test_devices_teardown(state) : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_divided__reads_what_one_rank_wrote),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
