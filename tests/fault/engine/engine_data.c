/*
 * engine_data.c - allocations of data sets and of lists in recipes fail one at a time.
 *
 * The sources are JSON lines, gzip, Parquet and built-in tasks. Each failure must return
 * INVAR_E_NOMEM with a message and leave no block (faulty.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/zip/gzip.h"
#include "engine/config/config.h"
#include "engine/files/data/parquet.h"
#include "tests/fault/faulty.h"
#include "tests/unit/engine/config/config_of.h"
#include "tests/unit/engine/files/data/options.h"

static invar_status read_dataset(bool sft)
{
    static const char text[] =
        "{\"input\": \"3,7=\", \"label\": 1000000000000000000007, \"metadata\": {\"a\": [1]}}\n"
        "{\"input\": \"3,8=\", \"label\": \"8\"}\n"
        "{\"input\": \"3,3,3,3=\", \"label\": 0.5}\n";
    invar_dataset_options options = dataset_options("d.jsonl", "label");
    invar_tokenizer *tokenizer;
    invar_dataset *dataset = NULL;
    invar_status status;

    options.max_prompt_tokens = 6;
    options.sft = sft;
    INVAR_TRY(invar_tokenizer_alphabet(&tokenizer, "0123456789.,="));
    status = invar_dataset_parse(&dataset, &options, tokenizer, text, sizeof text - 1);
    if (status == INVAR_OK)
        assert_int_equal(invar_dataset_size(dataset), 2);
    invar_dataset_close(dataset);
    invar_tokenizer_free(tokenizer);
    return status;
}

static invar_status exercise_gzip(void)
{
    static const char data[] =
        "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xab\x56\xca\xcc\x2b\x28\x2d\x51\xb2\x52"
        "\x50\x32\xd6\x31\xb7\x55\xd2\x51\x50\xca\x49\x4c\x4a\xcd\x01\x0a\x98\xd7\x72\x01"
        "\x00\x08\x7a\x17\xc0\x1e\x00\x00\x00";
    invar_status status;
    size_t bytes;
    char *text;

    status = invar_gzip_expand(&text, &bytes, "d.gz", data, sizeof data - 1, 1 << 20);
    if (status == INVAR_OK)
        assert_int_equal(bytes, 30);
    invar_free(text);
    return status;
}

/* Reads Parquet rows from a fake python3 (a script in PATH) that prints fixed lines. */
static invar_status exercise_parquet(void)
{
    static const char *const columns[] = {"input", NULL};
    invar_status status;
    size_t bytes;
    char *text;

    status = invar_parquet_read(&text, &bytes, "d.parquet", columns, 1 << 20);
    if (status == INVAR_OK)
        assert_string_equal(text, "{\"input\": \"3,7=\"}\n");
    invar_free(text);
    return status;
}

static invar_status exercise_prompts(void)
{
    return read_dataset(false);
}

static invar_status exercise_sft(void)
{
    return read_dataset(true);
}

/* 70 prompts are more than the initial capacity, so the arrays grow. */
static invar_status exercise_task(void)
{
    invar_dataset_options options = {.path = "task:copy", .task_size = 70, .label_key = ""};
    invar_tokenizer *tokenizer;
    invar_dataset *dataset = NULL;
    invar_status status;

    INVAR_TRY(invar_tokenizer_alphabet(&tokenizer, invar_builtin_task_alphabet("copy")));
    status = invar_dataset_open(&dataset, &options, tokenizer);
    invar_dataset_close(dataset);
    invar_tokenizer_free(tokenizer);
    return status;
}

static invar_status exercise_lists(void)
{
    invar_recipe *recipe;
    char **strings = NULL;
    int32_t *ids = NULL;
    int64_t count;
    invar_status status;

    INVAR_TRY(invar_recipe_new(&recipe, invar_config_schema()));
    status = invar_recipe_set(recipe, "rollout-stop", "[\"a\", \"b\"]", "--rollout-stop");
    if (status == INVAR_OK)
        status = invar_recipe_set(recipe, "rollout-stop-token-ids", "1,2", "--ids");
    if (status == INVAR_OK)
        status = invar_config_strings(&strings, &count, config_of(recipe), INVAR_KEY_ROLLOUT_STOP);
    if (status == INVAR_OK)
        status =
            invar_config_ids(&ids, &count, config_of(recipe), INVAR_KEY_ROLLOUT_STOP_TOKEN_IDS);
    invar_free(strings);
    invar_free(ids);
    invar_recipe_free(recipe);
    return status;
}

static void test_fault_engine_data__lines(void **state)
{
    (void)state;
    fail_each_allocation(exercise_prompts);
    fail_each_allocation(exercise_sft);
    fail_each_allocation(exercise_gzip);
}

static void test_fault_engine_data__rows(void **state)
{
    static const char python[] =
        "#!/bin/sh\n"
        "read -r _ && printf '%s\\n' '{\"ok\": true}'\n"
        "read -r _ && printf '%s\\n' '{\"lines\": \"{\\\"input\\\": \\\"3,7=\\\"}\\n\"}'\n"
        "read -r _ && printf '%s\\n' '{\"end\": true}'\n";
    char folder[] = INVAR_TEST_WORK "/engine-data-XXXXXX", path[4096];
    const char *old_path = getenv("PATH");
    char *old_path_copy = strdup(old_path ? old_path : "");

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/python3", folder);
    assert_ok(invar_file_write(path, python, sizeof python - 1));
    assert_int_equal(chmod(path, 0755), 0);
    snprintf(path, sizeof path, "%s:%s", folder, old_path_copy);
    assert_int_equal(setenv("PATH", path, 1), 0);
    fail_each_allocation(exercise_parquet);
    assert_int_equal(setenv("PATH", old_path_copy, 1), 0);
    free(old_path_copy);
    assert_ok(invar_held_folder_remove(folder));
}

static void test_fault_engine_data__task(void **state)
{
    (void)state;
    fail_each_allocation(exercise_task);
}

static void test_fault_engine_data__lists(void **state)
{
    (void)state;
    fail_each_allocation(exercise_lists);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fault_engine_data__lines),
        cmocka_unit_test(test_fault_engine_data__rows),
        cmocka_unit_test(test_fault_engine_data__task),
        cmocka_unit_test(test_fault_engine_data__lists),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
