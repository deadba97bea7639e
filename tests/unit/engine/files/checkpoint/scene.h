/*
 * scene.h - a folder for each test, and checkpoints in it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_FILES_CHECKPOINT_SCENE_H
#define INVAR_TESTS_UNIT_ENGINE_FILES_CHECKPOINT_SCENE_H

#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "tests/fault/engine/checkpoint_scenario.h"

enum { ROWS = 8 };

static char folder[400];
static char save[sizeof folder + 16]; /* a new one for each test */
static ckpt_data data;

static inline int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static inline int tear_down(void **state)
{
    (void)state;
    return invar_held_folder_remove(folder) == INVAR_OK ? 0 : -1;
}

static inline int new_save(void **state)
{
    static int number;

    (void)state;
    snprintf(save, sizeof save, "%s/save%d", folder, number++);
    return 0;
}

static inline void write_step(int64_t step, int64_t keep)
{
    assert_ok(invar_checkpoint_write(NULL, save, ckpt_make(&data, step, ROWS),
                                     &(invar_checkpoint_options){.keep = keep}));
}

static inline void path_in(char out[600], const char *name)
{
    snprintf(out, 600, "%s/%s", save, name);
}

static inline bool there(const char *name)
{
    char path[600];

    path_in(path, name);
    return invar_path_exists(path);
}

static inline void put(const char *name, const char *text)
{
    char path[600];

    path_in(path, name);
    assert_ok(invar_file_write(path, text, strlen(text)));
}

static inline int64_t open_latest(void)
{
    return ckpt_open_and_check(save, NULL, ROWS);
}

static inline invar_ledger *a_ledger(const char *name, int64_t steps)
{
    char path[600];
    invar_ledger *ledger;

    snprintf(path, sizeof path, "%s/%s.db", folder, name);
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    assert_ok(scenario_begin(ledger));
    assert_ok(scenario_define(ledger));
    for (int64_t step = 0; step < steps; step++)
        assert_ok(scenario_append(ledger, step));
    return ledger;
}

static inline invar_status count_row(void *payload, const char *const *columns,
                                     const invar_ledger_value *values, int count)
{
    (void)columns;
    (void)count;
    *(int *)payload += values != NULL;
    return INVAR_OK;
}

/* Rows that a named query gives for the only run. */
static inline int rows_of(invar_ledger *ledger, const char *name)
{
    invar_ledger_argument run = {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = 1}};
    invar_ledger_query query;
    int rows = 0;

    assert_ok(invar_ledger_query_find(&query, name));
    assert_ok(invar_ledger_select(ledger, &(invar_ledger_select_request){.sql = query.sql,
                                                                         .arguments = &run,
                                                                         .n_arguments = 1,
                                                                         .row = count_row,
                                                                         .payload = &rows}));
    return rows;
}

/* Where the tests work; how one and all of them are run. */
#define FOLDER INVAR_TEST_WORK "/checkpoint-XXXXXX"
#define TEST(name) cmocka_unit_test_setup(test_engine_checkpoint__##name, new_save)
#define RUN(tests)                                                                                 \
    (snprintf(folder, sizeof folder, "%s", FOLDER),                                                \
     cmocka_run_group_tests((tests), set_up, tear_down))

#endif
