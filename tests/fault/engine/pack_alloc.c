/*
 * pack_alloc.c - allocations of tar archives and recorded keys fail one at a time.
 *
 * Each failure must return INVAR_E_NOMEM with a message and leave no block (faulty.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "engine/files/tar.h"
#include "engine/run/replay/recorded_keys.h"
#include "tests/fault/faulty.h"

static char folder[] = INVAR_TEST_WORK "/pack_alloc-XXXXXX";
static char path[sizeof folder + 16], out[sizeof folder + 16];

static invar_status write_archive(void)
{
    invar_tar_writer *tar = NULL;
    invar_status status = invar_tar_writer_open(&tar, path);
    char name[16];

    for (int i = 0; i < 40 && status == INVAR_OK; i++) { // 40 members make the list grow once
        snprintf(name, sizeof name, "a/%d", i);
        status = invar_tar_add(tar, name, "hi", 2);
    }
    if (status == INVAR_OK)
        status = invar_tar_commit(tar);
    invar_tar_writer_close(tar);
    return status;
}

static invar_status read_archive(void)
{
    invar_tar_list list;

    INVAR_TRY(invar_held_folder_remove(out));
    INVAR_TRY(invar_held_folder_make(out));
    INVAR_TRY(invar_tar_unpack(&list, path, out));
    invar_tar_list_release(&list);
    return INVAR_OK;
}

static void test_fault_pack_alloc__archives(void **state)
{
    (void)state;
    fail_each_allocation(write_archive);
    fail_each_allocation(read_archive);
}

static const char text[] = "[model]\n"
                           "num-layers = 1\n"
                           "hidden-size = 16\n"
                           "ffn-hidden-size = 16\n"
                           "num-attention-heads = 1\n"
                           "[ckpt]\n"
                           "save = somewhere\n"
                           "[rollout]\n"
                           "prompt-data = task:max\n"
                           "num-rollout = 4\n"
                           "rollout-batch-size = 2\n"
                           "n-samples-per-prompt = 2\n"
                           "rollout-max-response-len = 2\n"
                           "rm-type = overlap\n"
                           "[engine]\n"
                           "numerics = ieee\n";

static invar_status use_keys(void)
{
    invar_recorded_keys keys;
    invar_config config = {.recipe = NULL};
    invar_status status;

    INVAR_TRY(invar_recorded_keys_load(&keys, path));
    status = invar_recorded_keys_put(&keys, INVAR_KEY_THREADS, "3");
    if (status == INVAR_OK)
        status = invar_recorded_keys_to_config(&config, &keys);
    if (status == INVAR_OK)
        status = invar_recorded_keys_write(&keys, out);
    invar_recipe_free(config.recipe);
    invar_recorded_keys_release(&keys);
    return status;
}

static void test_fault_pack_alloc__keys(void **state)
{
    (void)state;
    assert_ok(invar_held_folder_remove(out));
    assert_ok(invar_file_write(path, text, sizeof text - 1));
    fail_each_allocation(use_keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fault_pack_alloc__archives),
        cmocka_unit_test(test_fault_pack_alloc__keys),
    };
    int rc;

    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(out, sizeof out, "%s/out", folder);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    if (invar_held_folder_remove(folder) != INVAR_OK)
        rc = 1;
    return rc;
}
