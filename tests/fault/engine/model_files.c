/*
 * model_files.c - allocations fail one at a time while a model is read and written.
 *
 * Invar's allocations fail first, then those of jansson, which has an allocator of its own. Each
 * failure must return INVAR_E_NOMEM with a message and leave no block.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <jansson.h>

#include "base/file.h"
#include "engine/files/hf/hf.h"
#include "tests/fault/faulty.h"

static char work[512];
static invar_device dev;
static invar_model *model; /* made with the usual allocator */
static const char *source;

/* ---- jansson's allocator --------------------------------------------------------------------- */

static int calls, live, fail_at;

static void *json_faulty_alloc(size_t bytes)
{
    void *block = ++calls == fail_at ? NULL : malloc(bytes);

    live += block != NULL;
    return block;
}

static void json_faulty_free(void *block)
{
    live -= block != NULL;
    free(block);
}

/* ---- a model --------------------------------------------------------------------------------- */

static int setup(void **state)
{
    static char path[1024];
    invar_model_spec spec;

    (void)state;
    json_set_alloc_funcs(json_faulty_alloc, json_faulty_free); // must precede the first use
    snprintf(path, sizeof path, "%s/unit/engine/files/hf/data/qwen3_moe", INVAR_TEST_DATA);
    source = path;
    dev.backend = invar_backend_cpu();
    snprintf(work, sizeof work, "%s/model_files-XXXXXX", INVAR_TEST_WORK);
    if (!mkdtemp(work))
        return -1;
    assert_ok(invar_model_spec_read(&spec, source, ""));
    assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_FP32, NULL, &dev));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    invar_model_free(model);
    return invar_held_folder_remove(work) == INVAR_OK ? 0 : -1;
}

static invar_status exercise_spec(void)
{
    invar_model_spec spec;
    size_t bytes;
    char *text;

    INVAR_TRY(invar_model_spec_read(&spec, source, ""));
    INVAR_TRY(invar_model_spec_json(&text, &bytes, &spec, "float32"));
    invar_free(text);
    return INVAR_OK;
}

static invar_status exercise_load(void)
{
    return invar_hf_load(model, source, &dev);
}

/* Saves several shards, which need an index, with the tokenizer files of the source folder. */
static invar_status exercise_save(void)
{
    invar_hf_files files = {.count = 0};
    invar_status status = invar_hf_files_read(&files, source, "");

    if (status == INVAR_OK)
        status = invar_hf_save(model, NULL, work, INVAR_DTYPE_BF16, 6000, &files);
    invar_hf_files_release(&files);
    return status;
}

static void test_fault_model_files__survive_each_of_our_allocations(void **state)
{
    (void)state;
    fail_each_allocation(exercise_spec);
    fail_each_allocation(exercise_load);
    fail_each_allocation(exercise_save);
}

static void fail_each_json_allocation(invar_status (*run)(void))
{
    invar_status status = INVAR_E_NOMEM;

    for (int n = 1; status != INVAR_OK; n++) {
        calls = live = 0;
        fail_at = n;
        status = run();
        if (status != INVAR_OK)
            assert_fails(status, INVAR_E_NOMEM, "no memory for");
        assert_int_equal(live, 0);
    }
    assert_true(fail_at > 100);
    fail_at = 0;
}

static void test_fault_model_files__survive_each_of_janssons_allocations(void **state)
{
    (void)state;
    fail_each_json_allocation(exercise_spec);
    fail_each_json_allocation(exercise_load);
    fail_each_json_allocation(exercise_save);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fault_model_files__survive_each_of_our_allocations),
        cmocka_unit_test(test_fault_model_files__survive_each_of_janssons_allocations),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
