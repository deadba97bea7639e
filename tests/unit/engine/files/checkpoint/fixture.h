/*
 * fixture.h - fixture of the checkpoint tests: a save folder for each test, and checkpoints in it.
 *
 * The contents of a checkpoint are a function of its step
 * (tests/fault/engine/checkpoint_scenario.h), so a checkpoint that was read can be compared with
 * its step. With RUN the tests of a program work below one folder, which is removed at the end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_FILES_CHECKPOINT_FIXTURE_H
#define INVAR_TESTS_UNIT_ENGINE_FILES_CHECKPOINT_FIXTURE_H

#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "tests/fault/engine/checkpoint_scenario.h"

enum { ROWS = 8 }; /* rows of the matrices in a checkpoint */

static char folder[400];              /* folder of the test program */
static char save[sizeof folder + 16]; /* path of the save folder; another one for each test */
static ckpt_data data;                /* contents of the checkpoint that is written next */

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

static inline int next_save_folder(void **state)
{
    static int number;

    (void)state;
    snprintf(save, sizeof save, "%s/save%d", folder, number++);
    return 0;
}

/* Writes the checkpoint of `step`; keeps the newest `keep` ones, 0 for all. */
static inline void write_step(int64_t step, int64_t keep)
{
    assert_ok(invar_checkpoint_write(NULL, save, ckpt_make(&data, step, ROWS),
                                     &(invar_checkpoint_options){.keep = keep}));
}

static inline void path_in_save(char out[600], const char *name)
{
    snprintf(out, 600, "%s/%s", save, name);
}

static inline bool exists_in_save(const char *name)
{
    char path[600];

    path_in_save(path, name);
    return invar_path_exists(path);
}

static inline void write_in_save(const char *name, const char *text)
{
    char path[600];

    path_in_save(path, name);
    assert_ok(invar_file_write(path, text, strlen(text)));
}

/* Opens the latest checkpoint, compares it with its step and returns the step. */
static inline int64_t open_latest(void)
{
    return ckpt_open_and_check(save, NULL, ROWS);
}

/* Creates the ledger NAME.db with a run of `steps` steps; the caller closes it. */
static inline invar_ledger *make_ledger(const char *name, int64_t steps)
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

/* Returns the number of rows of a named query for the only run of the ledger. */
static inline int count_query_rows(invar_ledger *ledger, const char *name)
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

/* Folder of the test program; one test with a new save folder; all tests. */
#define FOLDER INVAR_TEST_WORK "/checkpoint-XXXXXX"
#define TEST(name) cmocka_unit_test_setup(test_engine_checkpoint__##name, next_save_folder)
#define RUN(tests)                                                                                 \
    (snprintf(folder, sizeof folder, "%s", FOLDER),                                                \
     cmocka_run_group_tests((tests), set_up, tear_down))

#endif
