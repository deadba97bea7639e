/*
 * append.c - tests of appending steps to a ledger.
 *
 * Steps in the wrong order or state, with invalid names, duplicates or ranges must be rejected and
 * leave every table as it was. Numbers are stored bit for bit, NaN payloads included. Root and
 * chain are compared with the program xxhsum, from the definition.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "tests/unit/ledger/raw_ledger.h"

/* ---- a small run ----------------------------------------------------------------------------- */

enum { POINTS = 4 };

static const int64_t levels[POINTS] = {0, 1, 0, 2};
static invar_digest digests[POINTS];

/* Defines the first `count` of POINTS points, which differ only in name and level. */
static invar_status define_points(invar_ledger *ledger, size_t count)
{
    static const char *const names[POINTS] = {"embed.out", "layer.0.norm", "layer.0.out", "debug"};
    invar_ledger_point points[POINTS];

    for (size_t i = 0; i < count; i++)
        points[i] = (invar_ledger_point){.name = names[i],
                                         .phase = "forward",
                                         .layer = -1,
                                         .op = "linear",
                                         .kind = "act",
                                         .level = levels[i],
                                         .dtype = "bf16",
                                         .shards = 1};
    return invar_ledger_define(ledger, points, count);
}

static invar_status begin_run(invar_ledger *ledger)
{
    return invar_ledger_begin(
        ledger, &(invar_ledger_run){
                    .name = "small", .kind = "train", .circumstances = {.no_auto_facts = true}});
}

/* Creates a ledger, begins its run and defines its points. */
static invar_ledger *new_run(const char *name)
{
    invar_ledger *ledger;

    raw_remove(raw_path(name));
    ledger = raw_writer(raw_path(name));
    assert_ok(begin_run(ledger));
    assert_ok(define_points(ledger, POINTS));
    return ledger;
}

static invar_ledger_step step_of(int64_t step)
{
    for (int i = 0; i < POINTS; i++) {
        int64_t key[2] = {step, i};
        invar_hash_bytes(&digests[i], key, sizeof key);
    }
    return (invar_ledger_step){.step = step, .weights_version = step, .digests = digests};
}

static invar_status append_step(invar_ledger *ledger, int64_t step)
{
    invar_ledger_step made = step_of(step);

    return invar_ledger_append(ledger, &made);
}

/* ---- order ----------------------------------------------------------------------------------- */

static void test_ledger_append__order(void **state)
{
    static const int64_t wrong[] = {0, 1, 3, 7, -1, -2, INT64_MAX, INT64_MIN};
    invar_ledger *ledger = new_run("order.db");
    invar_digest before, after;

    (void)state;
    assert_fails(append_step(ledger, 1), INVAR_E_INVALID, "step 1 came, expected 0");
    assert_ok(append_step(ledger, 0));
    assert_ok(append_step(ledger, 1));
    before = raw_dump(raw_path("order.db"));
    for (size_t i = 0; i < COUNT(wrong); i++)
        assert_fails(append_step(ledger, wrong[i]), INVAR_E_INVALID, "came, expected 2");
    after = raw_dump(raw_path("order.db"));
    raw_assert_digest(&before, &after);
    assert_ok(append_step(ledger, 2));
    invar_ledger_close(ledger);
    raw_assert_clean(raw_path("order.db"));
}

static void test_ledger_append__state(void **state)
{
    const invar_ledger_checkpoint made = {.step = -1, .path = "c"};
    const invar_ledger_event event = {-1, "info", "note", "text", NULL};
    const invar_ledger_metric result = {"reward", 1};
    const char *path = raw_path("state.db");
    invar_ledger *ledger = raw_writer(path), *reader;
    invar_digest chain;
    int64_t step;

    (void)state;
    assert_fails(append_step(ledger, 0), INVAR_E_STATE, "a step needs a run");
    assert_fails(define_points(ledger, 1), INVAR_E_STATE, "points belong to a run");
    assert_fails(invar_ledger_chain(&step, &chain, ledger), INVAR_E_STATE, "no run has begun");
    assert_fails(invar_ledger_log_event(ledger, &event), INVAR_E_STATE, "there is no run");
    assert_fails(invar_ledger_add_evaluation(ledger, "d", &result, 1), INVAR_E_STATE,
                 "there is no run");
    assert_fails(invar_ledger_checkpoint_intent(ledger, &made), INVAR_E_STATE, "there is no run");
    assert_fails(invar_ledger_finish(ledger, 0, "done"), INVAR_E_STATE, "there is no run");
    assert_ok(begin_run(ledger));
    assert_fails(append_step(ledger, 0), INVAR_E_STATE, "define the points before the first step");
    assert_ok(define_points(ledger, POINTS));
    assert_ok(invar_ledger_chain(&step, &chain, ledger));
    assert_int_equal(step, -1);
    assert_memory_equal(&chain, &(invar_digest){{0}}, sizeof chain);
    assert_ok(append_step(ledger, 0));

    reader = raw_reader(path); // a reader never has a current run
    assert_fails(begin_run(reader), INVAR_E_STATE, "it is open for reading only");
    assert_fails(append_step(reader, 1), INVAR_E_STATE, "");
    assert_fails(invar_ledger_resume(reader, NULL, -1, NULL,
                                     &(invar_ledger_provenance){.no_auto_facts = true}),
                 INVAR_E_STATE, "it is open for reading only");
    invar_ledger_close(reader);

    assert_ok(invar_ledger_finish(ledger, 3, "out of steps"));
    assert_fails(append_step(ledger, 1), INVAR_E_STATE, "the segment is finished; resume the run");
    assert_fails(define_points(ledger, 1), INVAR_E_STATE, "points belong to a run");
    assert_fails(invar_ledger_log_event(ledger, &event), INVAR_E_STATE, "the segment is finished");
    assert_fails(invar_ledger_add_evaluation(ledger, "d", &result, 1), INVAR_E_STATE, "finished");
    assert_fails(invar_ledger_checkpoint_complete(ledger, &made), INVAR_E_STATE, "finished");
    assert_fails(invar_ledger_finish(ledger, 0, "done"), INVAR_E_STATE, "finished");
    invar_ledger_close(ledger);
    assert_int_equal(raw_summary(path, NULL).exit_code, 3);
    assert_true(raw_summary(path, NULL).finished);
    raw_assert_clean(path);
}

/* ---- names ----------------------------------------------------------------------------------- */

// Fields are numbered 0 to FIELD_COUNT - 1; number FIELD_COUNT is the level of an event, one of
// four words.
enum { TRANSFER = 9, PART = 10, FIELD_COUNT = 11 };

/* Appends a step in which the field with this number has the given name. */
static invar_status append_named(invar_ledger *ledger, int64_t step, int field, const char *name)
{
    const invar_ledger_metric metric = {name, 1};
    const invar_ledger_plugin_reply reply = {.plugin = name};
    const invar_ledger_timing timing = {.phase = name};
    const invar_ledger_rank_time work = {.host = field == 7 ? name : "node1",
                                         .phase = field == 8 ? name : "train",
                                         .transfer = field == TRANSFER ? name : ""};
    const invar_ledger_reward_part part = {.name = name};
    const invar_ledger_sample sample = {.rng = field == 4 ? name : "0",
                                        .finish_reason = field == 5 ? name : "stop"};
    const invar_ledger_event event = {.level = field == FIELD_COUNT ? name : "info",
                                      .kind = field == 6 ? name : "note",
                                      .message = ""};
    invar_ledger_step made = step_of(step);

    made.metrics = made.gauges = &metric;
    made.replies = &reply;
    made.timings = &timing;
    made.work = &work;
    made.samples = &sample;
    made.parts = &part;
    made.events = &event;
    made.n_metrics = field == 0;
    made.n_gauges = field == 1;
    made.n_replies = field == 2;
    made.n_timings = field == 3;
    made.n_samples = field == 4 || field == 5 || field == PART;
    made.n_parts = field == PART;
    made.n_events = field == 6 || field == FIELD_COUNT;
    made.n_work = field >= 7 && field <= TRANSFER;
    return invar_ledger_append(ledger, &made);
}

static void test_ledger_append__names(void **state)
{
    static const char *const bad[] = {
        NULL,           "",
        "two\nlines",   "a\tb",
        "bell\a",       "del\x7f",
        "\x1b[2J",      "caf\xE9",          /* Latin-1 */
        "\xC0\xAF",     "\xE0\x80\xAF",     /* overlong */
        "\xED\xA0\x80", "\xF4\x90\x80\x80", /* surrogate; above U+10FFFF */
        "\xC2\x85",     "cut\xE2\x82",      /* control character of two bytes; half a character */
    };
    static const char *const good[] = {
        "a", " ", "train/\xE2\x82\xAC", "\xF0\x9F\x8E\xB2", "'; --", "\"", "=1+1", "a b"};
    char longest[257];
    invar_ledger *ledger = new_run("names.db");
    invar_digest before = raw_dump(raw_path("names.db")), after;
    int64_t step = 0;

    (void)state;
    memset(longest, 'n', sizeof longest);
    longest[256] = '\0';
    for (int field = 0; field <= FIELD_COUNT; field++) {
        for (size_t i = 0; i < COUNT(bad); i++) {
            if (field == TRANSFER && bad[i] && !bad[i][0])
                continue; // an empty transfer is valid: the rank computed
            assert_int_equal(append_named(ledger, 0, field, bad[i]), INVAR_E_INVALID);
            assert_null(strpbrk(invar_error_last()->message, "\n\t\a\x7f\x1b\xE9"));
        }
        assert_fails(append_named(ledger, 0, field, longest), INVAR_E_INVALID, "255 bytes");
    }
    assert_fails(append_named(ledger, 0, FIELD_COUNT, "fatal"), INVAR_E_INVALID,
                 "is none of debug, info, warning, error");
    after = raw_dump(raw_path("names.db"));
    raw_assert_digest(&before, &after);
    longest[255] = '\0';
    for (int field = 0; field < FIELD_COUNT; field++) {
        for (size_t i = 0; i < COUNT(good); i++)
            assert_ok(append_named(ledger, step++, field, good[i]));
        assert_ok(append_named(ledger, step++, field, longest));
    }
    invar_ledger_close(ledger);
    raw_assert_clean(raw_path("names.db"));
}

/* ---- duplicates ------------------------------------------------------------------------------ */

static void test_ledger_append__duplicates(void **state)
{
    static const invar_ledger_metric metrics[] = {{"a", 1}, {"b", 2}, {"a", 3}};
    static const invar_ledger_plugin_reply replies[] = {
        {.plugin = "p", .call = 1}, {.plugin = "p"}, {.plugin = "p", .call = 1}};
    static const invar_ledger_timing timings[] = {{"x", 1, 1}, {"y", 1, 1}, {"x", 2, 2}};
    static const invar_ledger_stat stats[] = {{.rank = 1}, {.point = 1}, {.rank = 1, .nans = 3}};
    static const invar_ledger_rank_time work[] = {{.host = "h", .phase = "p", .transfer = ""},
                                                  {.host = "h", .phase = "p", .transfer = "m"},
                                                  {.host = "i", .phase = "p", .transfer = "m"}};
    static const invar_ledger_reward_part parts[] = {{0, "a", 1}, {0, "a", 2}};
    static const invar_ledger_sample sample = {.rng = "0/1", .finish_reason = "stop"};
    const invar_ledger_replica_digests replicas[] = {{1, digests}, {2, digests}, {1, digests}};
    const struct {
        invar_ledger_step step;
        const char *text;
    } cases[] = {
        {{.metrics = metrics, .n_metrics = 3}, "a metric \"a\" is there twice"},
        {{.gauges = metrics, .n_gauges = 3}, "a gauge \"a\" is there twice"},
        {{.replies = replies, .n_replies = 3}, "two replies of \"p\" to call 1"},
        {{.samples = &sample, .n_samples = 1, .parts = parts, .n_parts = 2}, "is not in order"},
        {{.timings = timings, .n_timings = 3}, "timing has that row already"},
        {{.stats = stats, .n_stats = 3}, "stat has that row already"},
        {{.work = work, .n_work = 3}, "work has that row already"},
        {{.replicas = replicas, .n_replicas = 3}, "digest has that row already"},
    };
    invar_ledger *ledger = new_run("twice.db");

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t step = (int64_t)i;
        invar_ledger_step made = cases[i].step, plain = step_of(step);
        char name[32];
        // A new name, so that state left over from the failed step would show in the next one.
        invar_ledger_metric named = {name, 1};
        invar_digest before = raw_dump(raw_path("twice.db")), after;
        invar_status status;
        (void)snprintf(name, sizeof name, "new %zu", i);
        made.step = step;
        made.digests = digests;
        if (made.n_metrics == 0) {
            made.metrics = &named;
            made.n_metrics = 1;
        }
        status = invar_ledger_append(ledger, &made);
        assert_int_equal(status, INVAR_E_INVALID);
        invar_assert_message(cases[i].text, __FILE__, __LINE__);
        after = raw_dump(raw_path("twice.db"));
        raw_assert_digest(&before, &after);
        plain.metrics = &named;
        plain.n_metrics = 1;
        assert_ok(invar_ledger_append(ledger, &plain));
    }
    invar_ledger_close(ledger);
    raw_assert_clean(raw_path("twice.db"));
}

/* Rejects ranks, points, samples and counts out of range. */
static void test_ledger_append__ranges(void **state)
{
    static const invar_ledger_stat stats[] = {{.point = -1}, {.point = POINTS}, {.rank = -1}};
    static const invar_ledger_op_time ops[] = {{-1, "p", "o", 1, 1, 1}, {0, "p", "o", 0, 1, 1},
                                               {0, "p", "o", 1, -1, 1}, {0, "p", "o", 1, 1, -1},
                                               {0, "", "o", 1, 1, 1},   {0, "p", "", 1, 1, 1}};
    static const invar_ledger_multi_turn multi_turn[] = {
        {-1, 1, 0}, {1, 1, 0}, {0, 0, 0}, {0, 1, -1}};
    static const invar_ledger_kept_sample kept[][2] = {
        {{-1, "x", 1}, {0}},
        {{1, "x", 1}, {0}},
        {{0, "x", 0}, {0}},
        {{0, "x", INVAR_LEDGER_KEPT_SAMPLE_BYTES + 1}, {0}},
        {{0, "x", 1}, {0, "x", 1}}};
    static const invar_ledger_sample alone = {.rng = "0/1", .finish_reason = "stop"};
    invar_ledger *ledger = new_run("ranges.db");
    invar_ledger_step made = step_of(0);

    (void)state;
    for (int64_t rank = -1; rank <= 0; rank++) {
        made.replicas = &(invar_ledger_replica_digests){rank, digests};
        made.n_replicas = 1;
        assert_fails(invar_ledger_append(ledger, &made), INVAR_E_INVALID, "1 and above");
    }
    made.n_replicas = 0;
    for (size_t i = 0; i < COUNT(stats); i++) {
        made.stats = &stats[i];
        made.n_stats = 1;
        assert_fails(invar_ledger_append(ledger, &made), INVAR_E_INVALID, "there are 4 points");
    }
    made.n_stats = 0;
    made.work = &(invar_ledger_rank_time){.rank = -1, .host = "h", .phase = "p", .transfer = ""};
    made.n_work = 1;
    assert_fails(invar_ledger_append(ledger, &made), INVAR_E_INVALID, "numbered from 0");
    made.n_work = 0;
    for (int64_t sample = -1; sample <= 0; sample++) {
        made.parts = &(invar_ledger_reward_part){sample, "format", 0.5};
        made.n_parts = 1;
        assert_fails(invar_ledger_append(ledger, &made), INVAR_E_INVALID, "the step has 0 samples");
    }
    made.n_parts = 0;
    for (size_t i = 0; i < COUNT(multi_turn); i++) {
        made.samples = &alone;
        made.n_samples = 1;
        made.multi_turn = &multi_turn[i];
        made.n_multi_turn = 1;
        assert_fails(invar_ledger_append(ledger, &made), INVAR_E_INVALID, "the step has 1 samples");
    }
    made.n_samples = made.n_multi_turn = 0;
    for (size_t i = 0; i < COUNT(ops); i++) {
        made.ops = &ops[i];
        made.n_ops = 1;
        assert_fails(invar_ledger_append(ledger, &made), INVAR_E_INVALID, "op");
    }
    made.n_ops = 0;
    made.n_samples = 1;
    for (size_t i = 0; i < COUNT(kept); i++) {
        made.kept = kept[i];
        made.n_kept = 2 - (kept[i][1].data == NULL);
        assert_fails(invar_ledger_append(ledger, &made), INVAR_E_INVALID, "the step has 1 samples");
    }
    made.n_samples = made.n_kept = 0;
    assert_ok(invar_ledger_append(ledger, &made));
    invar_ledger_close(ledger);
}

/* ---- values ---------------------------------------------------------------------------------- */

static void test_ledger_append__bits(void **state)
{
    static const struct {
        uint64_t bits;
        const char *value; /* SQL condition on the column with the readable value */
    } cases[] = {
        {UINT64_C(0x0000000000000000), "value = 0.0"},
        {UINT64_C(0x8000000000000000), "value = 0.0"}, // -0
        {UINT64_C(0x3FF0000000000000), "value = 1.0"},
        {UINT64_C(0x3FB999999999999A), "value = 0.1"},
        {UINT64_C(0x0000000000000001), "value = 4.9406564584124654e-324"}, // smallest subnormal
        {UINT64_C(0x800FFFFFFFFFFFFF), "value < 0 AND value > -2.3e-308"}, // subnormal
        {UINT64_C(0x7FEFFFFFFFFFFFFF), "value > 1.7e308"},
        {UINT64_C(0x7FF0000000000000), "value = 9e999"},
        {UINT64_C(0xFFF0000000000000), "value = -9e999"},
        {UINT64_C(0x7FF8000000000000), "value IS NULL"},
        {UINT64_C(0xFFF8000000000000), "value IS NULL"},
        {UINT64_C(0x7FF8DEADBEEF0001), "value IS NULL"}, // NaN with a payload
        {UINT64_C(0x7FF0000000000001), "value IS NULL"}, // signaling NaN
        {UINT64_C(0x4340000000000001), "value = 9007199254740994"},
    };
    invar_ledger_metric metrics[COUNT(cases)];
    char names[COUNT(cases)][8], text[200];
    const char *path = raw_path("bits.db");
    invar_ledger *ledger = new_run("bits.db");
    invar_ledger_step made = step_of(0);
    invar_ledger_sample sample = {.rng = "0", .finish_reason = "stop"};
    invar_ledger_stat stat = {0};

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        (void)snprintf(names[i], sizeof names[i], "m%zu", i);
        metrics[i].name = names[i];
        memcpy(&metrics[i].value, &cases[i].bits, sizeof(double));
    }
    made.metrics = made.gauges = metrics;
    made.n_metrics = made.n_gauges = COUNT(cases);
    sample.reward = metrics[11].value;
    sample.advantage = metrics[1].value;
    sample.logp_diff_max = metrics[8].value;
    stat.absmax = metrics[7].value;
    stat.l2 = metrics[12].value;
    made.samples = &sample;
    made.stats = &stat;
    made.n_samples = made.n_stats = 1;
    assert_ok(invar_ledger_append(ledger, &made));
    assert_ok(invar_ledger_add_evaluation(ledger, "d", metrics, COUNT(cases)));
    invar_ledger_close(ledger);
    for (size_t i = 0; i < COUNT(cases); i++) {
        static const char *const tables[] = {"metric", "gauge", "evaluation"};
        for (size_t k = 0; k < COUNT(tables); k++) {
            (void)snprintf(text, sizeof text,
                           "SELECT count(*) FROM %s JOIN series USING(series) WHERE name = 'm%zu' "
                           "AND value_bits = %" PRId64 " AND %s",
                           tables[k], i, (int64_t)cases[i].bits, cases[i].value);
            if (raw_int(path, text) != 1)
                fail_msg("%s", text);
        }
    }
    assert_int_equal(raw_int(path, "SELECT reward_bits FROM sample"), (int64_t)cases[11].bits);
    assert_int_equal(raw_int(path, "SELECT advantage_bits FROM sample"), (int64_t)cases[1].bits);
    assert_int_equal(raw_int(path, "SELECT diff_bits FROM sample"), (int64_t)cases[8].bits);
    assert_int_equal(raw_int(path, "SELECT absmax_bits FROM stat"), (int64_t)cases[7].bits);
    assert_int_equal(raw_int(path, "SELECT l2_bits FROM stat"), (int64_t)cases[12].bits);
    raw_assert_clean(path);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void test_ledger_append__many_metrics(void **state)
{
    enum { MAX_METRICS = 4096 };
    invar_ledger_metric *metrics = malloc((MAX_METRICS + 1) * sizeof *metrics);
    char(*names)[16] = malloc((MAX_METRICS + 1) * sizeof *names);
    const char *path = raw_path("many.db");
    invar_ledger *ledger = new_run("many.db");
    invar_ledger_step made = step_of(0);

    (void)state;
    assert_true(metrics && names);
    for (int i = 0; i <= MAX_METRICS; i++) {
        (void)snprintf(names[i], sizeof names[i], "m/%d", i);
        metrics[i] = (invar_ledger_metric){names[i], i};
    }
    made.metrics = metrics;
    made.n_metrics = MAX_METRICS + 1;
    assert_fails(invar_ledger_append(ledger, &made), INVAR_E_INVALID, "4096 are allowed");
    made.n_metrics = MAX_METRICS;
    assert_ok(invar_ledger_append(ledger, &made));
    assert_ok(append_step(ledger, 1)); // a step without metrics
    invar_ledger_close(ledger);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM metric WHERE step = 0"), MAX_METRICS);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM metric WHERE step = 1"), 0);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM metric m JOIN series n USING(series) "
                                   "WHERE n.name = 'm/' || CAST(m.value AS INTEGER)"),
                     MAX_METRICS);
    raw_assert_clean(path);
    free(metrics);
    free(names);
}

static void test_ledger_append__no_points(void **state)
{
    const char *path = raw_path("pointless.db");
    invar_ledger *ledger = raw_writer(path);
    invar_digest nothing, root;

    (void)state;
    assert_ok(begin_run(ledger));
    assert_ok(define_points(ledger, 0));
    assert_ok(invar_ledger_append(ledger, &(invar_ledger_step){.step = 0}));
    assert_ok(invar_ledger_append(ledger, &(invar_ledger_step){.step = 1}));
    invar_ledger_close(ledger);
    nothing = raw_xxhsum("", 0);
    assert_int_equal(raw_blob(&root, sizeof root, path, "SELECT root FROM step WHERE step = 1"),
                     sizeof root);
    raw_assert_digest(&root, &nothing);
    raw_assert_clean(path);
}

/* Events are numbered within their entry; events of a step have the number of the step. */
static void test_ledger_append__events(void **state)
{
    const invar_ledger_event events[] = {{-1, "debug", "k", "first\n\tline", NULL},
                                         {99, "error", "k", "", "{\"a\": 1}"},
                                         {-1, "debug", "k", "first\n\tline", NULL}};
    const char *path = raw_path("events.db");
    invar_ledger *ledger = new_run("events.db");
    invar_ledger_step made = step_of(0);

    (void)state;
    made.events = events;
    made.n_events = COUNT(events);
    assert_ok(invar_ledger_append(ledger, &made));
    assert_ok(invar_ledger_log_event(ledger, &events[0]));
    assert_ok(invar_ledger_log_event(ledger, &events[0])); // equal events are allowed
    assert_fails(invar_ledger_log_event(ledger, &(invar_ledger_event){-1, "info", "k", NULL, NULL}),
                 INVAR_E_INVALID, "message is missing");
    assert_fails(
        invar_ledger_log_event(ledger, &(invar_ledger_event){-1, "info", "k", "\x1b", NULL}),
        INVAR_E_INVALID, "control character");
    assert_fails(invar_ledger_log_event(ledger, &(invar_ledger_event){-1, "info", "k", "", "\xff"}),
                 INVAR_E_INVALID, "UTF-8");
    invar_ledger_close(ledger);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM event"), 5);
    assert_int_equal(raw_int(path, "SELECT count(DISTINCT entry * 100 + i) FROM event"), 5);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM event WHERE step = 0 AND entry = 1"), 3);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM event WHERE step IS NULL AND i = 0"), 2);
    raw_assert_clean(path);
}

/* ---- hashes ---------------------------------------------------------------------------------- */

/* Computes root and chain from their definition with the program xxhsum. */
static void test_ledger_append__root_and_chain(void **state)
{
    const char *path = raw_path("hashes.db");
    invar_ledger *ledger = new_run("hashes.db");
    invar_digest link[2] = {{{0}}}, rooted[POINTS], expected, stored;
    char text[96];

    (void)state;
    for (int64_t step = 0; step < 3; step++) {
        int count = 0;
        assert_ok(append_step(ledger, step));
        for (int i = 0; i < POINTS; i++)
            if (levels[i] == 0)
                rooted[count++] = digests[i];
        assert_int_equal(count, 2);
        link[1] = raw_xxhsum(rooted, (size_t)count * sizeof *rooted);
        (void)snprintf(text, sizeof text, "SELECT root FROM step WHERE step = %d", (int)step);
        (void)raw_blob(&stored, sizeof stored, path, text);
        raw_assert_digest(&stored, &link[1]);
        expected = raw_xxhsum(link, sizeof link);
        (void)snprintf(text, sizeof text, "SELECT chain FROM step WHERE step = %d", (int)step);
        (void)raw_blob(&stored, sizeof stored, path, text);
        raw_assert_digest(&stored, &expected);
        assert_ok(invar_ledger_chain_at(&stored, ledger, 1, step));
        raw_assert_digest(&stored, &expected);
        link[0] = expected;
    }
    invar_ledger_close(ledger);
}

/* Points above level 0 are stored, but change no root. Control: a point of level 0 changes it. */
static void test_ledger_append__finer_points_are_outside_the_root(void **state)
{
    invar_digest chains[3], data[POINTS];
    int64_t last;

    (void)state;
    for (int i = 0; i < 3; i++) {
        invar_ledger *ledger = new_run("finer.db");
        invar_ledger_step made = step_of(0);
        digests[1].bytes[0] ^= i == 1; // level 1
        digests[2].bytes[0] ^= i == 2; // level 0
        assert_ok(invar_ledger_append(ledger, &made));
        assert_ok(invar_ledger_chain(&last, &chains[i], ledger));
        invar_ledger_close(ledger);
        (void)raw_blob(data, sizeof data, raw_path("finer.db"), "SELECT data FROM digest");
        assert_memory_equal(data, digests, sizeof data);
    }
    raw_assert_digest(&chains[0], &chains[1]);
    assert_memory_not_equal(&chains[0], &chains[2], sizeof chains[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_append__order),
        cmocka_unit_test(test_ledger_append__state),
        cmocka_unit_test(test_ledger_append__names),
        cmocka_unit_test(test_ledger_append__duplicates),
        cmocka_unit_test(test_ledger_append__ranges),
        cmocka_unit_test(test_ledger_append__bits),
        cmocka_unit_test(test_ledger_append__many_metrics),
        cmocka_unit_test(test_ledger_append__no_points),
        cmocka_unit_test(test_ledger_append__events),
        cmocka_unit_test(test_ledger_append__root_and_chain),
        cmocka_unit_test(test_ledger_append__finer_points_are_outside_the_root),
    };

    return cmocka_run_group_tests(tests, raw_setup, raw_teardown);
}
