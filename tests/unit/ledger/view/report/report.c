/*
 * report.c - tests of the report: the data that a page holds, and that it holds nothing else.
 *
 * The pages are read as a browser would: up to the end of the data's element, then as JSON. That
 * they look right is tested with a browser (tests/e2e/ledger/report_look.py).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/view/report/report.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/zip/gzip.h"
#include "ledger/internal.h"
#include "ledger/sha256.h"
#include "ledger/view/report/internal.h"
#include "tests/ledger.h"
#include "tests/support.h"

static char work[400] = INVAR_TEST_WORK "/report-XXXXXX";

#define HOSTILE "</script><script>alert(1)</script><!--<script>&amp;\"'"

static const char *path_of(const char *name)
{
    static char path[4][512];
    static int next;
    char *out = path[next++ % 4];

    (void)snprintf(out, sizeof path[0], "%s/%s", work, name);
    return out;
}

/* ---- pages ----------------------------------------------------------------------------------- */

typedef struct page {
    char *text;
    size_t bytes;
    json_t *data;
} page;

static const invar_ledger_pair defaults[] = {{"lr", "1e-06"}, {"dtype", "bf16"}};
static const invar_report_options options = {.defaults = defaults,
                                             .n_defaults = sizeof defaults / sizeof *defaults};

static invar_status write_page(page *out, const invar_report_run *runs, size_t count)
{
    FILE *stream = open_memstream(&out->text, &out->bytes);

    assert_non_null(stream);
    invar_status status = invar_report_write(stream, runs, count, &options);
    assert_int_equal(fclose(stream), 0);
    return status;
}

static page read_page(const invar_report_run *runs, size_t count)
{
    static const char begin[] = "<script type=\"application/json\" id=\"data\">";
    json_error_t error;
    page p;

    assert_ok(write_page(&p, runs, count));
    char *data = strstr(p.text, begin);
    assert_non_null(data);
    data += strlen(begin);
    char *end = strstr(data, "</script"); // what a browser takes for the end
    assert_non_null(end);
    p.data = json_loadb(data, (size_t)(end - data), 0, &error);
    if (!p.data)
        fail_msg("%s at byte %d: %.60s", error.text, error.position, data + error.position);
    return p;
}

static void page_release(page *p)
{
    json_decref(p->data);
    free(p->text);
}

static invar_ledger *open_ledger(const char *name)
{
    invar_ledger *ledger;

    assert_ok(invar_ledger_open(&ledger, path_of(name), NULL));
    return ledger;
}

/* A page of all runs of a ledger, in their order. */
static page page_of(const char *name, size_t count)
{
    invar_report_run runs[8];
    invar_ledger *ledger = open_ledger(name);

    for (size_t i = 0; i < count; i++)
        runs[i] = (invar_report_run){ledger, (int64_t)i + 1, NULL};
    page p = read_page(runs, count);
    invar_ledger_close(ledger);
    return p;
}

static size_t occurrences(const char *text, const char *what)
{
    size_t count = 0;

    for (; (text = strstr(text, what)) != NULL; text++)
        count++;
    return count;
}

/* ---- data ------------------------------------------------------------------------------------ */

/* A member by its path, "runs/0/label"; fails where there is none. */
static json_t *at(const page *p, const char *path)
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

static void assert_text(const page *p, const char *path, const char *expected)
{
    const char *text = json_string_value(at(p, path));

    if (!text)
        fail_msg("%s is no text", path);
    assert_string_equal(text, expected);
}

static void assert_number(const page *p, const char *path, int64_t expected)
{
    json_t *value = at(p, path);

    if (!json_is_integer(value) || json_integer_value(value) != expected)
        fail_msg("%s is %" JSON_INTEGER_FORMAT ", expected %" PRId64, path,
                 json_integer_value(value), expected);
}

static json_t *series_of(const page *p, size_t run, const char *name)
{
    json_t *list = json_object_get(json_array_get(at(p, "runs"), run), "series"), *series;
    size_t i;

    json_array_foreach(list, i, series)
    {
        if (strcmp(json_string_value(json_object_get(series, "name")), name) == 0)
            return series;
    }
    fail_msg("run %zu has no series %s", run, name);
    return NULL;
}

static int64_t number_in(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* The bits that a series has at a step; *found_out: it has any there. */
static uint64_t bits_at(bool *found_out, const json_t *series, int64_t step)
{
    const char *bits = json_string_value(json_object_get(series, "bits"));
    json_t *deltas = json_object_get(series, "at"), *delta;
    int64_t here = 0;
    size_t i;

    json_array_foreach(deltas, i, delta)
    {
        here += json_integer_value(delta);
        if (here == step) {
            char digits[17];
            (void)snprintf(digits, sizeof digits, "%.16s", bits + 16 * i);
            *found_out = true;
            return strtoull(digits, NULL, 16);
        }
    }
    *found_out = false;
    return 0;
}

static void assert_bits_at(const json_t *series, int64_t step, uint64_t expected)
{
    bool found;
    uint64_t bits = bits_at(&found, series, step);

    if (!found || bits != expected)
        fail_msg("step %" PRId64 ": %016" PRIx64 ", expected %016" PRIx64 "%s", step, bits,
                 expected, found ? "" : "; there is none");
}

static uint64_t bits_of(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- ledgers --------------------------------------------------------------------------------- */

static const invar_ledger_circumstances bare = {.bare = true};

static void append(invar_ledger *ledger, int64_t step, double value)
{
    const invar_digest digest = {{1}};
    const invar_ledger_metric metric = {"train/x", value};

    assert_ok(invar_ledger_append(
        ledger, &(invar_ledger_step){
                    .step = step, .digests = &digest, .metrics = &metric, .n_metrics = 1}));
}

static void define(invar_ledger *ledger)
{
    const int64_t shape[] = {1};
    const invar_ledger_point point = {.name = "p",
                                      .phase = "forward",
                                      .layer = -1,
                                      .op = "linear",
                                      .kind = "act",
                                      .dtype = "f32",
                                      .shape = shape,
                                      .dims = 1,
                                      .shards = 1};

    assert_ok(invar_ledger_define(ledger, &point, 1));
}

/* A run that has begun, with one point and one event. */
static invar_ledger *begin_run(const char *file, const char *name)
{
    const invar_ledger_pair identity = {"seed", "1"};
    const invar_ledger_event event = {
        .step = -1, .level = "warning", .kind = "k", .message = HOSTILE, .data = "\"</script>\""};
    invar_ledger *ledger;

    assert_ok(invar_ledger_open(&ledger, path_of(file), &(invar_ledger_options){.create = true}));
    assert_ok(invar_ledger_begin(ledger, &(invar_ledger_run){.name = name,
                                                             .kind = "train",
                                                             .identity = &identity,
                                                             .n_identity = 1,
                                                             .circumstances = bare}));
    define(ledger);
    assert_ok(invar_ledger_note(ledger, &event));
    return ledger;
}

/* One metric; value(step) says what it is. */
static void write_curve(const char *file, const char *name, int64_t steps,
                        double (*value)(int64_t step))
{
    invar_ledger *ledger = begin_run(file, name);

    for (int64_t i = 0; i < steps; i++)
        append(ledger, i, value(i));
    assert_ok(invar_ledger_finish(ledger, 0, "done"));
    invar_ledger_close(ledger);
}

static double odd_value(int64_t step)
{
    const uint64_t payload = 0xFFF800000000BEEF;
    double nan_with_payload;

    memcpy(&nan_with_payload, &payload, sizeof payload);
    const double values[] = {0.1,       -0.0,   nan_with_payload,       HUGE_VAL,
                             -HUGE_VAL, 5e-324, 1.7976931348623157e308, 100};
    return values[step % 8];
}

enum { LONG = 5000, HIGH_AT = 1234, LOW_AT = 2718, NAN_AT = 3141 };

static double long_value(int64_t step)
{
    if (step == HIGH_AT || step == LOW_AT)
        return step == HIGH_AT ? 50 : -50;
    if (step == 0 || step == LONG - 1)
        return 0.5; // no extreme, but the first and the last
    return step == NAN_AT ? (double)NAN : (double)(step * 7919 % 1000) / 1000;
}

static int make_ledgers(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(work));
    write_curve("odd.db", HOSTILE, 8, odd_value);
    write_curve("plain.db", "plain", 8, odd_value);
    write_curve("long.db", "long", LONG, long_value);
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

/* ---- the tests ------------------------------------------------------------------------------- */

static void test_ledger_report__keeps_every_bit(void **state)
{
    page p = page_of("odd.db", 1);
    json_t *series = series_of(&p, 0, "train/x");

    (void)state;
    for (int64_t step = 0; step < 8; step++)
        assert_bits_at(series, step, bits_of(odd_value(step)));
    assert_int_equal(number_in(series, "count"), 8);
    assert_int_equal(number_in(series, "odd"), 3);
    page_release(&p);
}

static void test_ledger_report__hostile_text_stays_text(void **state)
{
    page innocent = page_of("plain.db", 1), hostile = page_of("odd.db", 1);
    static const char *const markup[] = {"<script", "</script", "<!--", "alert"};

    (void)state;
    // a name and a message contain each of them; none gets out of the data
    for (int i = 0; i < 3; i++)
        assert_int_equal(occurrences(hostile.text, markup[i]),
                         occurrences(innocent.text, markup[i]));
    assert_int_equal(occurrences(hostile.text, markup[3]),
                     occurrences(innocent.text, markup[3]) + 2); // the name and the label
    assert_text(&hostile, "runs/0/label", HOSTILE);
    assert_text(&hostile, "runs/0/name", HOSTILE);
    assert_text(&hostile, "runs/0/events/0/message", HOSTILE);
    assert_text(&hostile, "runs/0/events/0/data", "\"</script>\"");
    page_release(&innocent);
    page_release(&hostile);
}

static void test_ledger_report__broken_and_long_labels(void **state)
{
    static char label[6001];
    invar_ledger *ledger = open_ledger("plain.db");
    invar_report_run run = {ledger, 1, "a\xFFz\xC3"};

    (void)state;
    page p = read_page(&run, 1);
    assert_text(&p, "runs/0/label", "a\xEF\xBF\xBDz\xEF\xBF\xBD");
    page_release(&p);
    for (size_t i = 0; i + 1 < sizeof label; i += 2)
        memcpy(label + i, "\xC3\xA4", 2);
    label[0] = 'x'; // the second byte of a character now stands at the limit
    label[1] = 'x';
    run.label = label + 1;
    p = read_page(&run, 1);
    const char *text = json_string_value(at(&p, "runs/0/label"));
    assert_true(strlen(text) <= INVAR_REPORT_TEXT_BYTES + 4);
    assert_true(strlen(text) > INVAR_REPORT_TEXT_BYTES - 4);
    assert_string_equal(text + strlen(text) - 6, "\xC3\xA4 \xE2\x80\xA6");
    page_release(&p);
    invar_ledger_close(ledger);
}

static void test_ledger_report__same_bytes_again(void **state)
{
    page first = page_of("runs.db", 3), second = page_of("runs.db", 3),
         other = page_of("runs.db", 2);

    (void)state;
    assert_int_equal(first.bytes, second.bytes);
    assert_memory_equal(first.text, second.text, first.bytes);
    assert_true(other.bytes != first.bytes);
    page_release(&first);
    page_release(&second);
    page_release(&other);
}

static void test_ledger_report__thinning_keeps_extremes(void **state)
{
    page p = page_of("long.db", 1);
    json_t *series = series_of(&p, 0, "train/x");
    size_t points = json_array_size(json_object_get(series, "at"));

    (void)state;
    assert_int_equal(number_in(series, "count"), LONG);
    assert_int_equal(number_in(series, "odd"), 1);
    assert_true(points <= INVAR_REPORT_POINTS);
    assert_true(points > INVAR_REPORT_POINTS / 2);
    assert_int_equal(strlen(json_string_value(json_object_get(series, "bits"))), 16 * points);
    const int64_t kept[] = {0, HIGH_AT, LOW_AT, NAN_AT, LONG - 1};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        assert_bits_at(series, kept[i], bits_of(long_value(kept[i])));
    for (int64_t step = 0; step < LONG; step++) { // what is there is true
        bool found;
        uint64_t bits = bits_at(&found, series, step);
        assert_true(!found || bits == bits_of(long_value(step)));
    }
    page_release(&p);
}

static void test_ledger_report__where_runs_part(void **state)
{
    page p = page_of("runs.db", 3);
    int64_t different = 0, equal = 0;
    json_t *cell;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(at(&p, "pairs")), 2);
    // other bits of one identity and one program
    assert_text(&p, "pairs/0/verdict", "nondeterministic");
    assert_true(json_is_true(at(&p, "pairs/0/twins")));
    assert_number(&p, "pairs/0/b", 1);
    assert_number(&p, "pairs/0/first", 27);
    assert_text(&p, "pairs/0/point/name", "layer.1.mlp.out");
    assert_true(json_is_true(at(&p, "pairs/0/point/born")));
    assert_number(&p, "pairs/0/point/layer", 1);
    assert_int_equal(json_array_size(at(&p, "pairs/0/strip")), 2);
    assert_number(&p, "pairs/0/strip/0/0", 0);
    assert_number(&p, "pairs/0/strip/0/1", 26);
    assert_text(&p, "pairs/0/strip/0/2", "equal");
    assert_number(&p, "pairs/0/strip/1/1", 39);
    assert_text(&p, "pairs/0/strip/1/2", "different");
    json_array_foreach(at(&p, "pairs/0/heat"), i, cell)
    {
        different += number_in(cell, "different");
        equal += number_in(cell, "equal");
    }
    assert_number(&p, "pairs/0/compared/points_different", different);
    assert_int_equal(different + equal, INVAR_TEST_LEDGER_POINTS);
    assert_true(different > 0 && equal > 0);

    assert_text(&p, "pairs/1/verdict", "identical");
    assert_true(json_is_null(at(&p, "pairs/1/first")));
    assert_text(&p, "pairs/1/strip/0/2", "equal");
    assert_number(&p, "pairs/1/strip/0/1", 29);
    assert_text(&p, "pairs/1/strip/1/2", "a");
    page_release(&p);
}

static void test_ledger_report__whfroma_run_is(void **state)
{
    page p = page_of("runs.db", 3);

    (void)state;
    assert_text(&p, "runs/0/label", "main");
    assert_number(&p, "runs/0/last", 39);
    assert_int_equal(json_array_size(at(&p, "runs/0/segments")), 2);
    assert_number(&p, "runs/0/segments/1/after", 14);
    assert_true(json_is_null(at(&p, "runs/0/segments/0/exit"))); // it was killed
    assert_number(&p, "runs/0/segments/1/exit", 0);
    assert_number(&p, "runs/0/again/steps", 10);
    assert_number(&p, "runs/0/again/differ", 0);
    assert_number(&p, "runs/0/checkpoints/0", 39);
    assert_true(json_is_null(at(&p, "runs/2/segments/0/exit")));
    // runs 1 and 3 are of one identity; 2 parted
    assert_true(json_equal(at(&p, "runs/0/identity"), at(&p, "runs/2/identity")));
    assert_false(json_equal(at(&p, "runs/0/content"), at(&p, "runs/1/content")));
    assert_int_equal(json_array_size(at(&p, "runs/0/nan")), 0);
    assert_number(&p, "runs/1/nan/0/step", 33);
    assert_text(&p, "runs/1/nan/0/point", "layer.0.attn.out");
    assert_int_equal(json_array_size(at(&p, "runs/0/slow")), 0);
    assert_number(&p, "runs/1/slow/0/step", 20);
    assert_text(&p, "runs/1/slow/0/phase", "rollout");
    // one list for each run under scope and key
    assert_int_equal(json_array_size(at(&p, "facts/build/dirty")), 3);
    assert_text(&p, "facts/build/dirty/0/0", "clean");
    assert_text(&p, "facts/build/dirty/1/0", "modified");
    assert_int_equal(json_array_size(at(&p, "facts/build/dirty/0")), 1); // in both segments
    page_release(&p);
}

/* Rank 1 computes twice as long from step 20 on; before that all are alike, and rank 0 is first. */
static void rest(int64_t ms)
{
    const struct timespec span = {.tv_nsec = (long)(ms * 1000000)};

    assert_int_equal(nanosleep(&span, NULL), 0);
}

/* Two processes with a pause between them: the pause is no part of the clock. */
static void test_ledger_report__clock(void **state)
{
    enum { PAUSE = 400 };
    invar_ledger *ledger = begin_run("clock.db", "clock");
    int64_t before = 0, now = 0;

    (void)state;
    for (int64_t step = 0; step < 4; step++) {
        if (step == 2) {
            const invar_ledger_options writer = {.write = true};
            invar_digest chain;
            int64_t last;
            assert_ok(invar_ledger_chain(&last, &chain, ledger));
            invar_ledger_close(ledger);
            rest(PAUSE);
            assert_ok(invar_ledger_open(&ledger, path_of("clock.db"), &writer));
            assert_ok(invar_ledger_resume(ledger, NULL, last, &chain, &bare));
            define(ledger);
        }
        rest(10);
        append(ledger, step, 1.0);
    }
    invar_ledger_close(ledger);
    page p = page_of("clock.db", 1);
    assert_int_equal(json_array_size(at(&p, "runs/0/clock")), 4);
    for (size_t i = 0; i < 4; i++, before = now) {
        json_t *point = json_array_get(at(&p, "runs/0/clock"), i);
        now = json_integer_value(json_array_get(point, 1));
        assert_int_equal(json_integer_value(json_array_get(point, 0)), i);
        assert_true(now >= before + 9);
    }
    int64_t pause = number_in(at(&p, "runs/0/segments/1"), "ms") -
                    number_in(at(&p, "runs/0/segments/0"), "end");
    int64_t all = number_in(at(&p, "runs/0/segments/1"), "end") -
                  number_in(at(&p, "runs/0/segments/0"), "ms");
    assert_true(pause >= PAUSE - 1);
    assert_true(now <= all - pause + 2); // each is rounded to a millisecond
    page_release(&p);
}

static void test_ledger_report__tokens_and_defaults(void **state)
{
    page p = page_of("runs.db", 1);
    int64_t expected = 0;
    invar_ledger *ledger = open_ledger("runs.db");

    (void)state;
    assert_ok(invar_sql_query_int(&expected, ledger->sql,
                                  "SELECT sum(tokens) FROM samples WHERE run = ?1", 1));
    assert_true(expected > 0);
    assert_number(&p, "runs/0/tokens", expected);
    assert_text(&p, "defaults/lr", "1e-06");
    assert_int_equal(json_object_size(at(&p, "defaults")), 2);
    invar_ledger_close(ledger);
    page_release(&p);
}

/* ---- samples --------------------------------------------------------------------------------- */

static void test_ledger_report__samples(void **state)
{
    page p = page_of("runs.db", 1), none = page_of("plain.db", 1);
    static const char *const markup[] = {"<script", "</script", "<!--", "<b>", "</td"};

    (void)state;
    assert_int_equal(json_array_size(at(&p, "runs/0/samples")), 80); // two of each of 40 steps
    assert_number(&p, "runs/0/samples/5/step", 2);
    assert_number(&p, "runs/0/samples/5/idx", 6);
    assert_text(&p, "runs/0/samples/5/text",
                "step 2 sample 6 </script><script>alert(2)</script>\xE2\x80\xAEtxt.exe\n<b>&amp;");
    assert_text(&p, "runs/0/samples/5/response/0", "<!--");
    assert_text(&p, "runs/0/samples/5/response/3", "\xC3\xA4");
    assert_number(&p, "runs/0/samples/5/logp/1", -2500);
    assert_number(&p, "runs/0/samples/5/logp/2", -8); // -0.0078125, rounded
    assert_true(json_is_null(at(&p, "runs/0/samples/5/logp/3")));
    assert_number(&p, "runs/0/samples/5/credit/0", 2500);
    assert_number(&p, "runs/0/samples/5/inserted/0", 3);
    assert_true(json_is_null(at(&p, "runs/0/samples/5/cut")));
    assert_int_equal(json_array_size(at(&p, "runs/0/samples/5/parts")), 2);
    assert_text(&p, "runs/0/samples/5/parts/0/0", "answer");
    // none of it is markup: as many tags as in a page without samples
    assert_int_equal(json_array_size(at(&none, "runs/0/samples")), 0);
    for (size_t i = 0; i < sizeof markup / sizeof *markup; i++)
        assert_int_equal(occurrences(p.text, markup[i]), occurrences(none.text, markup[i]));
    page_release(&p);
    page_release(&none);
}

/* One step with one sample, of which these bytes are kept. */
static void write_kept(const char *file, const void *data, size_t bytes)
{
    const invar_ledger_sample sample = {.rng = "0/1", .finish = "stop"};
    const invar_ledger_kept kept = {0, data, bytes};
    const invar_digest digest = {{1}};
    invar_ledger *ledger = begin_run(file, "kept");

    assert_ok(invar_ledger_append(
        ledger,
        &(invar_ledger_step){
            .digests = &digest, .samples = &sample, .n_samples = 1, .kept = &kept, .n_kept = 1}));
    invar_ledger_close(ledger);
}

static invar_status report_of(const char *file)
{
    invar_report_run run = {.ledger = open_ledger(file), .run = 1};
    page p;
    invar_status status = write_page(&p, &run, 1);

    free(p.text);
    invar_ledger_close(run.ledger);
    return status;
}

/* Text of `form` with so many of "x," in it, packed; the caller owns it (invar_free). */
static char *packed(size_t *bytes_out, const char *form, size_t count)
{
    size_t room = strlen(form) + 2 * count + 1, used = 0;
    char *text = malloc(room), *data;

    assert_non_null(text);
    for (; *form; form++) {
        if (*form != '$') {
            text[used++] = *form;
            continue;
        }
        for (size_t i = 0; i < count; i++) {
            text[used++] = '7';
            text[used++] = i + 1 < count ? ',' : ' ';
        }
    }
    assert_ok(invar_gzip_pack(&data, bytes_out, text, used));
    free(text);
    return data;
}

static void test_ledger_report__hostile_samples(void **state)
{
#define LISTS(drawn)                                                                               \
    "{\"prompt\":\"\",\"response\":[\"a\"],\"logp\":[0],\"advantage\":[0]," drawn "}"
    static const struct {
        const char *form;
        size_t count;
        const char *why; /* NULL: it is a sample */
    } cases[] = {
        {LISTS("\"drawn\":[1]"), 0, NULL},
        {LISTS("\"drawn\":[1],\"more\":[$]"), 100, NULL},
        {LISTS("\"drawn\":[1,1]"), 0, "is no sample"},
        {LISTS("\"drawn\":[true]"), 0, "is no sample"},
        {LISTS("\"drawn\":{}"), 0, "is no sample"},
        {LISTS("\"drown\":[1]"), 0, "is no sample"},
        {LISTS("\"drawn\":[1],\"drawn\":[1]"), 0, "is no JSON"},
        {"[]", 0, "is no sample"},
        {"", 0, "is no JSON"},
        {"{\"prompt\":\"\xFF\"}", 0, "is no JSON"},
        {LISTS("\"drawn\":[1],\"more\":[$]"), INVAR_LEDGER_KEPT_BYTES / 2, "too much"},
    };
    char file[32];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes;
        char *data = packed(&bytes, cases[i].form, cases[i].count);

        (void)snprintf(file, sizeof file, "kept-%zu.db", i);
        write_kept(file, data, bytes);
        if (cases[i].why)
            assert_fails(report_of(file), INVAR_E_CORRUPT, cases[i].why);
        else
            assert_ok(report_of(file));
        invar_free(data);
    }
    write_kept("kept-plain.db", "{}", 2);
    assert_fails(report_of("kept-plain.db"), INVAR_E_CORRUPT, "sample 0 of step 0 is no gzip data");
}

/* Of a long response its beginning and its end. */
static void test_ledger_report__long_samples(void **state)
{
    size_t bytes;
    char *data = packed(&bytes,
                        "{\"prompt\":\"p\",\"response\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\"],"
                        "\"logp\":[1,2,3,4,5,6],\"advantage\":[0,0,0,0,0,0],"
                        "\"drawn\":[1,0,0,1,1,0]}",
                        0);
    json_t *object = json_object();
    const char *why;

    (void)state;
    assert_ok(invar_report_add_kept(object, &why, data, bytes, 4));
    assert_null(why);
    json_t *expected = json_loads("{\"text\":\"p\",\"response\":[\"a\",\"b\",\"e\",\"f\"],"
                                  "\"logp\":[1000,2000,5000,6000],\"credit\":[0,0,0,0],"
                                  "\"inserted\":[1,3],\"cut\":[2,2]}",
                                  0, NULL);
    assert_non_null(expected);
    assert_true(json_equal(object, expected));
    json_decref(expected);
    json_decref(object);
    invar_free(data);
}

static void test_ledger_report__ranks(void **state)
{
    const invar_test_ledger spec = {.steps = 40,
                                    .faults = {{INVAR_TEST_STRAGGLER, 20, .other = 1}}};
    page p;

    (void)state;
    assert_ok(invar_test_ledger_write(path_of("ranks.db"), &spec));
    p = page_of("ranks.db", 1);
    assert_int_equal(json_array_size(at(&p, "runs/0/ranks")), 3);
    assert_number(&p, "runs/0/ranks/0/rank", 1);
    assert_text(&p, "runs/0/ranks/0/host", "node1");
    assert_text(&p, "runs/0/ranks/0/verdict", "straggler");
    assert_text(&p, "runs/0/ranks/1/verdict", "");
    assert_true(json_real_value(at(&p, "runs/0/ranks/0/computing_s")) == 48);
    assert_true(json_real_value(at(&p, "runs/0/ranks/1/waiting_s")) == 24);
    assert_int_equal(json_array_size(at(&p, "runs/0/slowest")), 40); // a stretch is a step
    for (int i = 0; i < 40; i++) {
        char path[40];
        (void)snprintf(path, sizeof path, "runs/0/slowest/%d/rank", i);
        assert_number(&p, path, i < 20 ? 0 : 1);
    }
    page_release(&p);
    assert_ok(invar_test_ledger_write(path_of("many.db"), &(invar_test_ledger){.steps = 1000}));
    p = page_of("many.db", 1);
    assert_int_equal(json_array_size(at(&p, "runs/0/slowest")), 400);
    assert_number(&p, "runs/0/slowest/399/to", 999);
    assert_text(&p, "runs/0/ranks/0/verdict", "");
    page_release(&p);
}

/* Of one rank nothing is shown. */
static void test_ledger_report__one_rank(void **state)
{
    page p = page_of("odd.db", 1);

    (void)state;
    assert_int_equal(json_array_size(at(&p, "runs/0/ranks")), 0);
    assert_int_equal(json_array_size(at(&p, "runs/0/slowest")), 0);
    page_release(&p);
}

static void test_ledger_report__all_kinds_of_series(void **state)
{
    page p = page_of("runs.db", 1);
    static const struct {
        const char *name, *kind;
        int64_t count;
    } expected[] = {{"rollout/raw_reward", "metric", 40},
                    {"eval/gsm8k/reward", "evaluation", 4},
                    {"time/rollout", "time", 40}};

    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        json_t *series = series_of(&p, 0, expected[i].name);
        assert_string_equal(json_string_value(json_object_get(series, "kind")), expected[i].kind);
        assert_int_equal(number_in(series, "count"), expected[i].count);
        assert_int_equal(json_array_size(json_object_get(series, "at")), expected[i].count);
    }
    page_release(&p);
}

/* Steps 2 and 3 are executed twice, the second time with other metrics. */
static void test_ledger_report__newest_segment_counts(void **state)
{
    invar_ledger *ledger = begin_run("twice.db", "twice");
    invar_digest chain;
    int64_t step;

    (void)state;
    append(ledger, 0, 0);
    append(ledger, 1, 1);
    assert_ok(invar_ledger_chain(&step, &chain, ledger));
    append(ledger, 2, 2);
    append(ledger, 3, 3);
    assert_ok(invar_ledger_resume(ledger, NULL, 1, &chain, &bare));
    define(ledger);
    append(ledger, 2, 102);
    append(ledger, 3, 103);
    append(ledger, 4, 104);
    invar_ledger_close(ledger);
    page p = page_of("twice.db", 1);
    json_t *series = series_of(&p, 0, "train/x");
    assert_int_equal(number_in(series, "count"), 5);
    for (int64_t i = 0; i < 5; i++)
        assert_bits_at(series, i, bits_of((double)(i < 2 ? i : 100 + i)));
    assert_number(&p, "runs/0/again/steps", 2);
    assert_number(&p, "runs/0/again/differ", 2);
    assert_number(&p, "runs/0/again/first", 2);
    page_release(&p);
}

static void test_ledger_report__runs_of_several_ledgers(void **state)
{
    invar_ledger *runs = open_ledger("runs.db"), *plain = open_ledger("plain.db");
    const invar_report_run two[] = {{runs, 1, NULL}, {plain, 1, "other"}};
    page p = read_page(two, 2);

    (void)state;
    assert_text(&p, "runs/1/label", "other");
    assert_text(&p, "runs/1/name", "plain");
    assert_text(&p, "pairs/0/verdict", "different");
    assert_number(&p, "pairs/0/first", 0);
    page_release(&p);
    invar_ledger_close(runs);
    invar_ledger_close(plain);
}

/* ---- the page around the data ---------------------------------------------------------------- */

static void assert_hashed(const page *p, const char *open, const char *close, const char *from)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *text = strstr(from, open);
    uint8_t hash[INVAR_SHA256_BYTES + 1] = {0};
    char expected[64] = "'sha256-";
    size_t used = strlen(expected);
    invar_sha256 sha;

    assert_non_null(text);
    text += strlen(open);
    invar_sha256_init(&sha);
    invar_sha256_update(&sha, text, (size_t)(strstr(text, close) - text));
    invar_sha256_final(hash, &sha);
    for (int i = 0; i < 43; i++) { // 6 bits each
        int bit = 6 * i;
        unsigned pair = (unsigned)hash[bit / 8] << 8 | (unsigned)hash[bit / 8 + 1];
        expected[used++] = digits[pair >> (10 - bit % 8) & 63];
    }
    (void)snprintf(expected + used, sizeof expected - used, "='");
    assert_int_equal(occurrences(p->text, expected), 1);
}

static void test_ledger_report__policy_names_whfrommay_run(void **state)
{
    page p = page_of("plain.db", 1);

    (void)state;
    assert_int_equal(occurrences(p.text, "default-src 'none'"), 1);
    assert_int_equal(occurrences(p.text, "unsafe"), 0);
    assert_int_equal(occurrences(p.text, "{{"), 0); // all is filled in
    int styles = 0;
    for (const char *from = p.text; (from = strstr(from, "<style>")) != NULL; from++, styles++)
        assert_hashed(&p, "<style>", "</style>", from);
    assert_int_equal(styles, 2);
    int scripts = 0;
    for (const char *at = p.text; (at = strstr(at, "<script>")) != NULL; at++, scripts++)
        assert_hashed(&p, "<script>", "</script>", at);
    assert_int_equal(scripts, 6);
    // it loads nothing: no address but the name of SVG's elements
    assert_int_equal(occurrences(p.text, "http"),
                     occurrences(p.text, "http-equiv") +
                         occurrences(p.text, "http://www.w3.org/2000/svg"));
    page_release(&p);
}

static void test_ledger_report__failures(void **state)
{
    invar_ledger *ledger = open_ledger("plain.db");
    invar_report_run run = {ledger, 7, NULL};
    FILE *full = fopen("/dev/full", "w");
    page p;

    (void)state;
    assert_non_null(full);
    assert_fails(write_page(&p, &run, 1), INVAR_E_NOTFOUND, "7");
    assert_int_equal(p.bytes, 0);
    free(p.text);
    assert_fails(write_page(&p, &run, 0), INVAR_E_INVALID, "needs a run");
    free(p.text);
    run.run = 1;
    assert_fails(invar_report_write(full, &run, 1, &options), INVAR_E_IO, "cannot write the page");
    (void)fclose(full);
    invar_ledger_close(ledger);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Our allocations and jansson's, counted together; the n-th fails. */
static struct {
    int64_t n, calls, live;
} heap;

static void *heap_alloc(size_t bytes)
{
    void *block = NULL;

    if (++heap.calls == heap.n || posix_memalign(&block, INVAR_ALIGN, bytes) != 0)
        return NULL;
    memset(block, 0xA5, bytes);
    heap.live++;
    return block;
}

static void heap_free(void *block)
{
    heap.live -= block != NULL;
    free(block);
}

static void *our_alloc(size_t bytes, void *payload)
{
    (void)payload;
    return heap_alloc(bytes);
}

static void our_free(void *block, void *payload)
{
    (void)payload;
    heap_free(block);
}

/* A page in spite of the failure must be the whole page. */
static bool fail_once(const invar_report_run *runs, const page *whole, int64_t n)
{
    const invar_allocator ours = {our_alloc, our_free, NULL};
    page p;

    heap.n = n;
    heap.calls = heap.live = 0;
    invar_allocator_set(&ours);
    json_set_alloc_funcs(heap_alloc, heap_free);
    invar_status status = write_page(&p, runs, 2);
    invar_allocator_set(NULL);
    json_set_alloc_funcs(malloc, free);
    assert_int_equal(heap.live, 0);
    if (status == INVAR_OK)
        assert_string_equal(p.text, whole->text);
    else if (status != INVAR_E_CORRUPT) // jansson cannot always tell lack of memory from bad text
        assert_fails(status, INVAR_E_NOMEM, "memory");
    free(p.text);
    return status != INVAR_OK;
}

static void test_ledger_report__survives_failed_allocations(void **state)
{
    const int64_t stride = invar_test_count(97, 1);
    const invar_test_ledger other = {.steps = 2,
                                     .faults = {{INVAR_TEST_DIVERGES, 1, "layer.1.mlp.out", 0, 0}}};
    int64_t failures = 0;

    (void)state;
    assert_ok(invar_test_ledger_write(path_of("small.db"), &(invar_test_ledger){.steps = 2}));
    assert_ok(invar_test_ledger_add(path_of("small.db"), &other));
    invar_ledger *ledger = open_ledger("small.db");
    const invar_report_run runs[] = {{ledger, 1, "a\xFF"}, {ledger, 2, NULL}};
    page whole = read_page(runs, 2);
    int64_t n = 1;
    for (; n == 1 || heap.calls >= heap.n; n += n < 40 ? 1 : stride)
        failures += fail_once(runs, &whole, n);
    assert_true(failures > n / stride / 2); // few can be done without
    page_release(&whole);
    invar_ledger_close(ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_report__keeps_every_bit),
        cmocka_unit_test(test_ledger_report__hostile_text_stays_text),
        cmocka_unit_test(test_ledger_report__broken_and_long_labels),
        cmocka_unit_test(test_ledger_report__same_bytes_again),
        cmocka_unit_test(test_ledger_report__thinning_keeps_extremes),
        cmocka_unit_test(test_ledger_report__where_runs_part),
        cmocka_unit_test(test_ledger_report__whfroma_run_is),
        cmocka_unit_test(test_ledger_report__clock),
        cmocka_unit_test(test_ledger_report__tokens_and_defaults),
        cmocka_unit_test(test_ledger_report__samples),
        cmocka_unit_test(test_ledger_report__hostile_samples),
        cmocka_unit_test(test_ledger_report__long_samples),
        cmocka_unit_test(test_ledger_report__ranks),
        cmocka_unit_test(test_ledger_report__one_rank),
        cmocka_unit_test(test_ledger_report__all_kinds_of_series),
        cmocka_unit_test(test_ledger_report__newest_segment_counts),
        cmocka_unit_test(test_ledger_report__runs_of_several_ledgers),
        cmocka_unit_test(test_ledger_report__policy_names_whfrommay_run),
        cmocka_unit_test(test_ledger_report__failures),
        cmocka_unit_test(test_ledger_report__survives_failed_allocations),
    };

    return cmocka_run_group_tests(tests, make_ledgers, NULL);
}
