/*
 * track.c - tests of what a sink is told: whole lines, or none.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/track/track.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"
#include "engine/config/config.h"
#include "tests/unit/ledger/raw_ledger.h"

enum { STEPS = 6, DAMAGED = 3 };

typedef struct heard {
    int lines;      /* that have a step */
    bool of[STEPS]; /* the step was told */
    size_t metrics; /* of each of them */
    int said;       /* lines for people */
} heard;

static void count_said(void *payload, const char *line)
{
    heard *h = payload;

    assert_non_null(strstr(line, "numbers of the ledger: "));
    h->said++;
}

static void look_at(heard *h, const char *line, size_t bytes)
{
    json_t *is = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, NULL);
    int64_t step;

    if (!is)
        fail_msg("no JSON: %.*s", (int)bytes, line);
    if (strcmp(json_string_value(json_object_get(is, "event")), "step") == 0) {
        step = json_integer_value(json_object_get(is, "step"));
        assert_true(step >= 0 && step < STEPS && !h->of[step]);
        h->of[step] = true;
        h->lines++;
        if (step != DAMAGED) {
            size_t metrics = json_object_size(json_object_get(is, "metrics"));
            assert_true(!h->metrics || h->metrics == metrics);
            h->metrics = metrics;
        }
    }
    json_decref(is);
}

/* A run of the ledger, told step by step to a program that repeats what it hears. */
static heard tell(const char *path)
{
    heard h = {0};
    invar_ledger *ledger = raw_reader(path);
    invar_recipe *recipe;
    invar_track *track;
    char *text;
    size_t bytes;

    (void)unlink(raw_path("sink.log"));
    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    assert_ok(invar_recipe_set(recipe, "sink", "cat", "test"));
    assert_ok(invar_track_open(&track, &(invar_track_run){.recipe = recipe,
                                                          .ledger = ledger,
                                                          .run = 1,
                                                          .name = "told",
                                                          .uuid = "uuid",
                                                          .folder = raw_folder,
                                                          .last_step = INVAR_TRACK_NOTHING,
                                                          .say = count_said,
                                                          .payload = &h}));
    for (int64_t step = 0; step < STEPS; step++)
        invar_track_report_steps(track, step);
    invar_track_close(track, "done");
    invar_recipe_free(recipe);
    invar_ledger_close(ledger);
    assert_ok(invar_file_read(&text, &bytes, raw_path("sink.log"), 1 << 20));
    for (const char *at = text; *at; at = strchr(at, '\n') + 1)
        look_at(&h, at, strcspn(at, "\n"));
    invar_free(text);
    return h;
}

static void test_track__a_step_that_cannot_be_read_is_no_half_line(void **state)
{
    const char *path = raw_path("told.db");
    heard h;

    (void)state;
    assert_ok(invar_test_ledger_write(path, &(invar_test_ledger){.steps = STEPS}));
    h = tell(path);
    assert_int_equal(h.lines, STEPS);
    assert_int_equal(h.said, 0);
    assert_true(h.metrics > 2);
    // the last value of one step has a name that is none: all before it are read by then
    raw_tamper(path, "INSERT INTO series(series, name) VALUES(9999, CAST(x'7a7aff' AS TEXT))");
    raw_tamper(path, "INSERT INTO metric SELECT run, step, seg, 9999, value_bits, value, sum FROM"
                     " metric WHERE step = 3 LIMIT 1");
    h = tell(path);
    assert_int_equal(h.lines, STEPS - 1);
    assert_false(h.of[DAMAGED]);
    assert_int_equal(h.said, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_track__a_step_that_cannot_be_read_is_no_half_line),
    };

    return cmocka_run_group_tests(tests, raw_setup, raw_teardown);
}
