/*
 * page.h - ledgers, report pages and access to the data of a page, for tests of the report.
 *
 * A page is read like a browser does: the data element ends at the first </script, and its content
 * is JSON. The appearance is tested with a browser in tests/e2e/ledger/report_look.py.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_LEDGER_VIEW_REPORT_PAGE_H
#define INVAR_TESTS_UNIT_LEDGER_VIEW_REPORT_PAGE_H

#include <inttypes.h>
#include <math.h>

#include "ledger/view/report/report.h"
#include "tests/ledger.h"
#include "tests/no_sync.h"
#include "tests/unit/ledger/view/fixture.h"

#define HOSTILE "</script><script>alert(1)</script><!--<script>&amp;\"'"

/* ---- pages ----------------------------------------------------------------------------------- */

typedef struct page {
    char *text;
    size_t bytes;
    json_t *data;
} page;

static char damage_line[1024]; /* last message about a damaged kept sample */

static inline void record_damage(void *payload, const char *line)
{
    (void)payload;
    (void)snprintf(damage_line, sizeof damage_line, "%s", line);
}

static const invar_ledger_pair defaults[] = {{"lr", "1e-06"}, {"dtype", "bf16"}};
static const invar_report_options options = {.defaults = defaults,
                                             .n_defaults = sizeof defaults / sizeof *defaults,
                                             .damaged = record_damage};

static inline invar_status write_page(page *out, const invar_report_run *runs, size_t count)
{
    FILE *stream = open_memstream(&out->text, &out->bytes);

    assert_non_null(stream);
    invar_status status = invar_report_write(stream, runs, count, &options);
    assert_int_equal(fclose(stream), 0);
    return status;
}

static inline page read_page(const invar_report_run *runs, size_t count)
{
    static const char begin[] = "<script type=\"application/json\" id=\"data\">";
    json_error_t error;
    page p;

    assert_ok(write_page(&p, runs, count));
    char *data = strstr(p.text, begin);
    assert_non_null(data);
    data += strlen(begin);
    char *end = strstr(data, "</script"); // a browser ends the element here
    assert_non_null(end);
    p.data = json_loadb(data, (size_t)(end - data), JSON_ALLOW_NUL, &error);
    if (!p.data)
        fail_msg("%s at byte %d: %.60s", error.text, error.position, data + error.position);
    return p;
}

static inline void page_release(page *p)
{
    json_decref(p->data);
    free(p->text);
}

/* Returns the page of runs 1 to `count` of a ledger, at most 8. */
static inline page page_of(const char *name, size_t count)
{
    invar_report_run runs[8];
    invar_ledger *ledger = open_ledger(name);

    for (size_t i = 0; i < count; i++)
        runs[i] = (invar_report_run){ledger, (int64_t)i + 1, NULL};
    page p = read_page(runs, count);
    invar_ledger_close(ledger);
    return p;
}

static inline size_t occurrences(const char *text, const char *what)
{
    size_t count = 0;

    for (; (text = strstr(text, what)) != NULL; text++)
        count++;
    return count;
}

/* ---- data ------------------------------------------------------------------------------------ */

/* Returns the member at a path such as "runs/0/label"; fails the test if there is none. */
static inline json_t *at(const page *p, const char *path)
{
    json_t *value = p->data;

    for (const char *part = path; *part != '\0';) {
        char key[64];
        size_t length = strcspn(part, "/");
        (void)snprintf(key, sizeof key, "%.*s", (int)length, part);
        value = json_is_array(value) ? json_array_get(value, (size_t)atol(key))
                                     : json_object_get(value, key);
        if (!value)
            fail_msg("the data has no %s (at %s)", path, key);
        part += length + (part[length] == '/');
    }
    return value;
}

static inline void assert_text(const page *p, const char *path, const char *expected)
{
    const char *text = json_string_value(at(p, path));

    if (!text)
        fail_msg("%s is no text", path);
    assert_string_equal(text, expected);
}

static inline void assert_number(const page *p, const char *path, int64_t expected)
{
    json_t *value = at(p, path);

    if (!json_is_integer(value) || json_integer_value(value) != expected)
        fail_msg("%s is %" JSON_INTEGER_FORMAT ", expected %" PRId64, path,
                 json_integer_value(value), expected);
}

static inline int64_t number_in(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* ---- ledgers --------------------------------------------------------------------------------- */

static inline void append_value(invar_ledger *ledger, int64_t step, double value)
{
    const invar_digest digest = {{1}};
    const invar_ledger_metric metric = {"train/x", value};

    assert_ok(invar_ledger_append(
        ledger, &(invar_ledger_step){
                    .step = step, .digests = &digest, .metrics = &metric, .n_metrics = 1}));
}

/* Begins a run with one point and one event that contains markup. */
static inline invar_ledger *begin_run_as(const char *file, const char *name,
                                         invar_ledger_pair identity)
{
    const invar_ledger_event event = {
        .step = -1, .level = "warning", .kind = "k", .message = HOSTILE, .data = "\"</script>\""};
    invar_ledger *ledger;

    assert_ok(invar_ledger_open(&ledger, path_of(file), &(invar_ledger_options){.create = true}));
    assert_ok(invar_ledger_begin(ledger, &(invar_ledger_run){.name = name,
                                                             .kind = "train",
                                                             .identity = &identity,
                                                             .n_identity = 1,
                                                             .circumstances = no_provenance}));
    define(ledger, "p");
    assert_ok(invar_ledger_log_event(ledger, &event));
    return ledger;
}

static inline invar_ledger *begin_run(const char *file, const char *name)
{
    return begin_run_as(file, name, (invar_ledger_pair){"seed", "1"});
}

/* Writes a finished run with one metric, value(step). */
static inline void write_curve(const char *file, const char *name, int64_t steps,
                               double (*value)(int64_t step))
{
    invar_ledger *ledger = begin_run(file, name);

    for (int64_t i = 0; i < steps; i++)
        append_value(ledger, i, value(i));
    assert_ok(invar_ledger_finish(ledger, 0, "done"));
    invar_ledger_close(ledger);
}

static inline double special_value(int64_t step)
{
    const uint64_t payload = 0xFFF800000000BEEF;
    double nan_with_payload;

    memcpy(&nan_with_payload, &payload, sizeof payload);
    const double values[] = {0.1,       -0.0,   nan_with_payload,       HUGE_VAL,
                             -HUGE_VAL, 5e-324, 1.7976931348623157e308, 100};
    return values[step % 8];
}

static inline int make_ledgers(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(work_folder));
    write_curve("odd.db", HOSTILE, 8, special_value);
    write_curve("plain.db", "plain", 8, special_value);
    assert_ok(invar_test_ledger_write(
        path_of("runs.db"),
        &(invar_test_ledger){.steps = 40, .crash = 25, .resume = 15, .name = "main"}));
    assert_ok(invar_test_ledger_add(
        path_of("runs.db"),
        &(invar_test_ledger){.steps = 40,
                             .name = "bad",
                             .faults = {{INVAR_TEST_DIVERGES, 27, "layer.1.mlp.out", 0, 0},
                                        {INVAR_TEST_NAN, 33, "layer.0.attn.out", 0, 0},
                                        {INVAR_TEST_SLOW, .step = 20},
                                        {INVAR_TEST_DIRTY, .step = 0}}}));
    assert_ok(invar_test_ledger_add(
        path_of("runs.db"), &(invar_test_ledger){.steps = 30, .name = "killed", .killed = true}));
    return 0;
}

#endif
