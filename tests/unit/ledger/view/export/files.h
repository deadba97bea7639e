/*
 * files.h - two ledgers and helpers that export them and read the files, for tests of exports.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_LEDGER_VIEW_EXPORT_FILES_H
#define INVAR_TESTS_UNIT_LEDGER_VIEW_EXPORT_FILES_H

#include <dirent.h>
#include <math.h>

#include "ledger/view/export/export.h"
#include "tests/ledger.h"
#include "tests/unit/ledger/view/fixture.h"

/* ---- ledgers --------------------------------------------------------------------------------- */

/* Names that need quoting, and numbers that lose bits if they are printed with too few digits. */
static const invar_ledger_metric special_metrics[] = {
    {"comma,quote\"", 0.1},
    {"eval/x", 1.0 / 3.0},
    {"m/\xC3\xA4\xE2\x82\xAC", 5e-324},
    {"minus_zero", -0.0},
    {"nan", NAN},
    {"tiny", 1.1754943508222875e-38},
    {"inf", HUGE_VAL},
    {"minus_inf", -HUGE_VAL},
    {"large", 1.7976931348623157e308},
    {"=1+1", 0.30000000000000004},
    {"hundred", 100},
    {"\"", 2},
};
#define N_SPECIAL (sizeof special_metrics / sizeof special_metrics[0])

static inline void write_special_run(invar_ledger *ledger)
{
    const invar_ledger_pair identity = {"seed", "1"};
    const invar_digest digest = {{1, 2, 3}};
    const invar_ledger_metric gauge = {"perf/tokens_per_s", 12345.678};
    const invar_ledger_metric result = {"reward", 0.25}, later = {"pass@8", 0.5};
    invar_digest chain;
    int64_t last;
    invar_ledger_run run = {.name = "../odd name",
                            .kind = "train",
                            .identity = &identity,
                            .n_identity = 1,
                            .circumstances = no_provenance};
    invar_ledger_step step = {.digests = &digest,
                              .metrics = special_metrics,
                              .n_metrics = N_SPECIAL,
                              .gauges = &gauge,
                              .n_gauges = 1};

    assert_ok(invar_ledger_begin(ledger, &run));
    define(ledger, "p \"0\"");
    assert_ok(invar_ledger_add_evaluation(ledger, "math,500", &result, 1));
    assert_ok(invar_ledger_append(ledger, &step));
    step.step = 1;
    step.n_metrics = 0;
    assert_ok(invar_ledger_append(ledger, &step));
    assert_ok(invar_ledger_add_evaluation(ledger, "math,500", &result, 1));
    assert_ok(invar_ledger_chain(&last, &chain, ledger));
    assert_ok(invar_ledger_finish(ledger, 0, "done"));
    assert_ok(invar_ledger_resume(ledger, NULL, last, &chain, &no_provenance));
    assert_ok(invar_ledger_add_evaluation(ledger, "math,500", &later, 1));
    assert_ok(invar_ledger_finish(ledger, 0, "done"));
}

/* Writes run.db: a run that was resumed once and has NaN from step 20 on. */
static inline invar_status write_run(void)
{
    return invar_test_ledger_write(
        path_of("run.db"),
        &(invar_test_ledger){.steps = 25,
                             .crash = 17,
                             .resume = 10,
                             .faults = {{INVAR_TEST_NAN, .step = 20, .point = "layer.1.mlp.out"}}});
}

static inline int make_ledgers(void **state)
{
    char seal[INVAR_LEDGER_SEAL_SIZE];
    invar_ledger *ledger;

    (void)state;
    assert_non_null(mkdtemp(work_folder));
    assert_ok(
        invar_ledger_open(&ledger, path_of("odd.db"), &(invar_ledger_options){.create = true}));
    write_special_run(ledger);
    assert_ok(invar_ledger_seal(seal, ledger, 1));
    invar_ledger_close(ledger);
    assert_ok(write_run());
    return 0;
}

static inline invar_status read_count(void *payload, const char *const *columns,
                                      const invar_ledger_value *values, int count)
{
    (void)columns, (void)count;
    if (values)
        *(int64_t *)payload = values[0].integer;
    return INVAR_OK;
}

static inline int64_t count_rows(invar_ledger *ledger, const char *sql)
{
    int64_t count = -1;

    assert_ok(invar_ledger_select(
        ledger, &(invar_ledger_select_request){.sql = sql, .row = read_count, .payload = &count}));
    return count;
}

/* ---- files ----------------------------------------------------------------------------------- */

typedef struct text {
    char *data;
    size_t bytes;
} text;

static inline text write_text(invar_status (*write)(FILE *, invar_ledger *, int64_t),
                              const char *name)
{
    invar_ledger *ledger = open_ledger(name);
    text out = {NULL, 0};
    FILE *stream = open_memstream(&out.data, &out.bytes);

    assert_non_null(stream);
    assert_ok(write(stream, ledger, 1));
    assert_int_equal(fclose(stream), 0);
    invar_ledger_close(ledger);
    return out;
}

static inline text read_all(const char *path)
{
    text out = {NULL, 0};
    FILE *in = fopen(path, "r"), *copy = open_memstream(&out.data, &out.bytes);

    assert_non_null(in);
    assert_non_null(copy);
    for (int c = fgetc(in); c != EOF; c = fgetc(in))
        fputc(c, copy);
    assert_int_equal(fclose(copy), 0);
    assert_int_equal(fclose(in), 0);
    return out;
}

/* Reads the only file in FOLDER/NAME, which must be an event file. */
static inline text read_events(const char *folder, const char *name)
{
    char path[1200];
    struct dirent *entry;
    DIR *dir;
    int files = 0;
    text out = {NULL, 0};

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    dir = opendir(path);
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.' && strlen(entry->d_name) < 3)
            continue;
        assert_int_equal(strncmp(entry->d_name, "events.out.tfevents.", 20), 0);
        assert_int_equal(files++, 0);
        (void)snprintf(path, sizeof path, "%s/%s/%s", folder, name, entry->d_name);
        out = read_all(path);
    }
    closedir(dir);
    return out;
}

static inline text write_events(const char *ledger_name, const char *folder, const char *name)
{
    invar_ledger *ledger = open_ledger(ledger_name);

    assert_ok(invar_export_tensorboard(folder, ledger, 1));
    invar_ledger_close(ledger);
    return read_events(folder, name);
}

#endif
