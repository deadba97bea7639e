/*
 * samples.c - tests of the samples in a report page, whose text comes from models.
 *
 * Valid samples are shown without becoming markup; damaged ones are named and left out. If there
 * are too many, the page must show the lowest and highest rewards and samples of all steps, within
 * its limit of bytes. Control: the same data without the damage is shown.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <unistd.h>

#include "base/zip/gzip.h"
#include "ledger/view/report/internal.h"
#include "tests/unit/ledger/view/report/page.h"

/* Returns the position on the page of sample `idx` of a step; -1 if it is not shown. */
static int64_t sample_position(const page *p, int64_t step, int64_t idx)
{
    json_t *one;
    size_t i;

    json_array_foreach(at(p, "runs/0/samples"), i, one)
    {
        if (number_in(one, "step") == step && number_in(one, "idx") == idx)
            return (int64_t)i;
    }
    return -1;
}

static const char *sample_path(int64_t position, const char *name)
{
    static char path[64];

    (void)snprintf(path, sizeof path, "runs/0/samples/%" PRId64 "/%s", position, name);
    return path;
}

static void test_ledger_report__samples(void **state)
{
    static const char *const markup[] = {"<script", "</script", "<!--", "<b>", "</td"};

    (void)state;
    page p = page_of("runs.db", 1), none = page_of("plain.db", 1);
    const int64_t position = sample_position(&p, 2, 6);
    // Two samples of each of 40 steps.
    assert_int_equal(json_array_size(at(&p, "runs/0/samples")), 80);
    assert_number(&p, "runs/0/kept/samples", 80);
    assert_number(&p, "runs/0/kept/steps", 40);
    assert_number(&p, "runs/0/kept/over", 0);
    assert_number(&none, "runs/0/kept/samples", 0);
    assert_text(&p, sample_path(position, "text"),
                "step 2 sample 6 </script><script>alert(2)</script>\xE2\x80\xAEtxt.exe\n<b>&amp;");
    assert_text(&p, sample_path(position, "response/0"), "<!--");
    // Its NUL is kept.
    assert_int_equal(json_string_length(at(&p, sample_path(position, "label"))), 12);
    assert_text(&p, sample_path(position, "response/3"), "\xC3\xA4");
    assert_number(&p, sample_path(position, "logp/1"), -2500);
    assert_number(&p, sample_path(position, "logp/2"), -8); // -0.0078125, rounded
    assert_true(json_is_null(at(&p, sample_path(position, "logp/3"))));
    assert_number(&p, sample_path(position, "credit/0"), 2500);
    assert_number(&p, sample_path(position, "inserted/0"), 3);
    assert_true(json_is_null(at(&p, sample_path(position, "cut"))));
    assert_int_equal(json_array_size(at(&p, sample_path(position, "parts"))), 2);
    assert_text(&p, sample_path(position, "parts/0/0"), "answer");
    // No text becomes markup: the page has as many tags as one without samples.
    assert_int_equal(json_array_size(at(&none, "runs/0/samples")), 0);
    for (size_t i = 0; i < sizeof markup / sizeof *markup; i++)
        assert_int_equal(occurrences(p.text, markup[i]), occurrences(none.text, markup[i]));
    page_release(&p);
    page_release(&none);
}

/* ---- hostile samples ------------------------------------------------------------------------- */

/* Appends a step with one sample, whose kept text is `data`. */
static void append_kept(invar_ledger *ledger, const void *data, size_t bytes)
{
    const invar_ledger_sample sample = {.rng = "0/1", .finish_reason = "stop"};
    const invar_ledger_kept_sample kept = {0, data, bytes};
    const invar_digest digest = {{1}};

    assert_ok(invar_ledger_append(
        ledger,
        &(invar_ledger_step){
            .digests = &digest, .samples = &sample, .n_samples = 1, .kept = &kept, .n_kept = 1}));
}

static void write_kept(const char *file, const void *data, size_t bytes)
{
    invar_ledger *ledger = begin_run(file, "kept");

    append_kept(ledger, data, bytes);
    invar_ledger_close(ledger);
}

/*
 * Returns the number of samples that the page shows. If `why` is not NULL, the page and the
 * callback must report the ledger's only sample as damaged for this reason.
 */
static size_t count_shown(const char *file, const char *why)
{
    invar_report_run run = {.ledger = open_ledger(file), .run = 1};
    page p;

    damage_line[0] = '\0';
    p = read_page(&run, 1);
    json_t *only = json_array_get(json_object_get(p.data, "runs"), 0);
    json_t *damaged = json_object_get(only, "damaged"), *one = json_array_get(damaged, 0);
    size_t samples = json_array_size(json_object_get(only, "samples"));
    assert_int_equal(json_array_size(damaged), why ? 1 : 0);
    if (why) {
        assert_non_null(strstr(json_string_value(json_object_get(one, "why")), why));
        assert_int_equal(json_integer_value(json_object_get(one, "idx")), 0);
        assert_non_null(strstr(damage_line, "sample 0 of step 0 "));
        assert_non_null(strstr(damage_line, why));
    } else {
        assert_string_equal(damage_line, "");
    }
    page_release(&p);
    invar_ledger_close(run.ledger);
    return samples;
}

/*
 * Returns `form` compressed with gzip; '$' in it stands for `count` numbers separated by commas.
 * The caller frees it with invar_free.
 */
static char *pack_sample(size_t *bytes_out, const char *form, size_t count)
{
    size_t capacity = strlen(form) + 2 * count + 1, used = 0;
    char *text = malloc(capacity), *data;

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

/*
 * Samples of an SFT run show neither reward nor advantage, even if the ledger has zeros for them.
 */
static void test_ledger_report__samples_of_answers(void **state)
{
    static const invar_ledger_pair losses[] = {{"loss-type", "sft_loss"},
                                               {"loss-type", "policy_loss"}};
    static const char *const files[] = {"sft.db", "policy.db"};
    size_t bytes;
    char *data =
        pack_sample(&bytes,
                    "{\"prompt\":\"p\",\"prompt_tokens\":[1],\"response\":[\"a\",\"b\"],"
                    "\"tokens\":[1,2],\"logp\":[-1,-2],\"advantage\":[0,0],\"drawn\":[1,1]}",
                    0);

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        invar_ledger *ledger = begin_run_as(files[i], "run", losses[i]);
        append_kept(ledger, data, bytes);
        invar_ledger_close(ledger);
        page p = page_of(files[i], 1);
        assert_int_equal(json_array_size(at(&p, "runs/0/samples/0/credit")), i == 0 ? 0 : 2);
        assert_int_equal(json_is_null(at(&p, "runs/0/samples/0/reward")), i == 0);
        assert_int_equal(json_is_null(at(&p, "runs/0/samples/0/advantage")), i == 0);
        assert_int_equal(json_array_size(at(&p, "runs/0/samples/0/logp")), 2);
        page_release(&p);
    }
    invar_free(data);
}

static void test_ledger_report__hostile_samples(void **state)
{
#define LISTS(drawn)                                                                               \
    "{\"prompt\":\"\",\"prompt_tokens\":[],\"response\":[\"a\"],\"tokens\":[1],"                   \
    "\"logp\":[0],\"advantage\":[0]," drawn "}"
    static const struct {
        const char *form;
        size_t count;
        const char *why; /* reason for the rejection; NULL if the sample is valid */
    } cases[] = {
        {LISTS("\"drawn\":[1]"), 0, NULL},
        {LISTS("\"drawn\":[1],\"more\":[$]"), 100, NULL},
        {LISTS("\"drawn\":[1,1]"), 0, "is no sample"},
        {LISTS("\"drawn\":[true]"), 0, "is no sample"},
        {LISTS("\"drawn\":{}"), 0, "is no sample"},
        {LISTS("\"drown\":[1]"), 0, "is no sample"},
        {LISTS("\"drawn\":[1],\"drawn\":[1]"), 0, "is no JSON"},
        {LISTS("\"drawn\":[1],\"label\":\"\",\"group\":0"), 0, NULL},
        {LISTS("\"drawn\":[1],\"label\":null"), 0, "is no sample"},
        {LISTS("\"drawn\":[1],\"label\":\"\xFF\""), 0, "is no JSON"},
        {LISTS("\"drawn\":[1],\"label\":\"\",\"label_bytes\":1"), 0, NULL},
        {LISTS("\"drawn\":[1],\"label\":\"\",\"label_bytes\":\"1\""), 0, "is no sample"},
        {LISTS("\"drawn\":[1],\"label_bytes\":1"), 0, NULL},
        {LISTS("\"drawn\":[1],\"group\":\"0\""), 0, "is no sample"},
        {"[]", 0, "is no sample"},
        {"", 0, "is no JSON"},
        {"{\"prompt\":\"\xFF\"}", 0, "is no JSON"},
        {LISTS("\"drawn\":[1],\"more\":[$]"), INVAR_LEDGER_KEPT_SAMPLE_BYTES / 2, "too much"},
    };
    char file[32];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes;
        char *data = pack_sample(&bytes, cases[i].form, cases[i].count);

        (void)snprintf(file, sizeof file, "kept-%zu.db", i);
        write_kept(file, data, bytes);
        assert_int_equal(count_shown(file, cases[i].why), cases[i].why ? 0 : 1);
        invar_free(data);
    }
    write_kept("kept-plain.db", "{}", 2);
    assert_int_equal(count_shown("kept-plain.db", "is no gzip data"), 0);
}

/* A long response is shown by its beginning and end; a truncated label ends with an ellipsis. */
static void test_ledger_report__long_samples(void **state)
{
    size_t bytes;
    char *data =
        pack_sample(&bytes,
                    "{\"prompt\":\"p\",\"prompt_tokens\":[1],\"tokens\":[1,2,3,4,5,6],"
                    "\"label\":\"l\xC3\xA4\",\"label_bytes\":9,\"response\":[\"a\",\"b\",\"c\","
                    "\"d\",\"e\",\"f\"],"
                    "\"logp\":[1,2,3,4,5,6],\"advantage\":[0,0,0,0,0,0],"
                    "\"drawn\":[1,0,0,1,1,0]}",
                    0);
    json_t *object = json_object();
    size_t expanded;
    const char *why;

    (void)state;
    assert_ok(invar_report_add_kept(object, &why, &expanded, data, bytes, 4));
    assert_null(why);
    json_t *expected = json_loads(
        "{\"text\":\"p\",\"label\":\"l \xE2\x80\xA6\",\"response\":[\"a\",\"b\",\"e\",\"f\"],"
        "\"logp\":[1000,2000,5000,6000],\"credit\":[0,0,0,0],"
        "\"inserted\":[1,3],\"cut\":[2,2]}",
        0, NULL);
    assert_non_null(expected);
    assert_true(json_equal(object, expected));
    json_decref(expected);
    json_decref(object);
    invar_free(data);
}

/* ---- selected samples ------------------------------------------------------------------------ */

#define SMALL_SAMPLE                                                                               \
    "{\"prompt\":\"$\",\"prompt_tokens\":[],\"response\":[],\"tokens\":[],\"logp\":[],"            \
    "\"advantage\":[],\"drawn\":[]}"

enum { MAX_EACH = 700 };

static double reward_of(int64_t step, int64_t idx)
{
    return (double)((step * 7919 + idx * 104729) % 100003);
}

/* Writes a run of `steps` steps with `each` kept samples per step, all with the text `data`. */
static void write_many(const char *file, int64_t steps, int64_t each, const char *data,
                       size_t bytes)
{
    static invar_ledger_sample samples[MAX_EACH];
    static invar_ledger_kept_sample kept[MAX_EACH];
    const invar_digest digest = {{1}};
    invar_ledger *ledger = begin_run(file, "many");

    for (int64_t step = 0; step < steps; step++) {
        for (int64_t i = 0; i < each; i++) {
            samples[i] = (invar_ledger_sample){
                .rng = "0/1", .finish_reason = "stop", .reward = reward_of(step, i)};
            kept[i] = (invar_ledger_kept_sample){i, data, bytes};
        }
        assert_ok(invar_ledger_append(ledger, &(invar_ledger_step){.step = step,
                                                                   .digests = &digest,
                                                                   .samples = samples,
                                                                   .n_samples = (size_t)each,
                                                                   .kept = kept,
                                                                   .n_kept = (size_t)each}));
    }
    invar_ledger_close(ledger);
}

/* Counts the samples with a lower and with a higher reward than `reward`. */
static void ranks_of(int64_t *lower, int64_t *higher, double reward, int64_t steps, int64_t each)
{
    *lower = *higher = 0;
    for (int64_t step = 0; step < steps; step++)
        for (int64_t i = 0; i < each; i++) {
            *lower += reward_of(step, i) < reward;
            *higher += reward_of(step, i) > reward;
        }
}

/* Returns the index of the lowest reward of a step, or of the highest. */
static int64_t extreme_index(int64_t step, int64_t each, bool lowest)
{
    int64_t end = 0;

    for (int64_t i = 1; i < each; i++)
        if (lowest == (reward_of(step, i) < reward_of(step, end)))
            end = i;
    return end;
}

/*
 * Asserts that the page has the lowest and highest rewards of the run, and those of single steps
 * from the first to the last.
 */
static void check_choice(int64_t steps, int64_t each)
{
    page p = page_of("many.db", 1);
    size_t n_shown = json_array_size(at(&p, "runs/0/samples"));
    int64_t lower, higher, n_complete = 0;

    assert_number(&p, "runs/0/kept/samples", steps * each);
    assert_number(&p, "runs/0/kept/steps", steps);
    assert_true(n_shown <= 600);
    assert_true(steps * each > 400 ? n_shown > 350 : n_shown == (size_t)(steps * each));
    for (int64_t step = 0; step < steps; step++) {
        bool has_extremes = sample_position(&p, step, extreme_index(step, each, true)) >= 0 &&
                            sample_position(&p, step, extreme_index(step, each, false)) >= 0;
        n_complete += has_extremes;
        if (step == 0 || step == steps - 1)
            assert_true(has_extremes);
        for (int64_t i = 0; i < each; i++) {
            ranks_of(&lower, &higher, reward_of(step, i), steps, each);
            if (lower < 45 || higher < 45) // fewer than 50, since rewards may be equal
                assert_true(sample_position(&p, step, i) >= 0);
        }
    }
    assert_true(n_complete >= (steps < 20 ? steps : 20));
    page_release(&p);
}

static void test_ledger_report__chosen_samples(void **state)
{
    static const int64_t shapes[][2] = {{250, 4}, {3, 256}, {5, 3},  {1, MAX_EACH},
                                        {700, 1}, {30, 30}, {2, 201}};
    size_t bytes;
    char *data = pack_sample(&bytes, SMALL_SAMPLE, 0);

    (void)state;
    for (size_t i = 0; i < (size_t)invar_test_count(3, sizeof shapes / sizeof *shapes); i++) {
        (void)unlink(path_of("many.db"));
        write_many("many.db", shapes[i][0], shapes[i][1], data, bytes);
        check_choice(shapes[i][0], shapes[i][1]);
    }
    invar_free(data);
}

/* A page expands 64 MiB of samples, some of each step, and reports how many it left out. */
static void test_ledger_report__reads_so_many_bytes(void **state)
{
    enum { STEPS = 25, EACH = 4, READ = INVAR_REPORT_EXPANDED_BYTES >> 20 };
    size_t bytes;
    char *data = pack_sample(&bytes, SMALL_SAMPLE, 1 << 19);

    (void)state;
    write_many("large.db", STEPS, EACH, data, bytes);
    page p = page_of("large.db", 1);
    assert_int_equal(json_array_size(at(&p, "runs/0/samples")), READ);
    assert_number(&p, "runs/0/kept/over", STEPS * EACH - READ);
    assert_number(&p, "runs/0/kept/samples", STEPS * EACH);
    for (int64_t step = 0; step < STEPS; step++)
        assert_true(sample_position(&p, step, extreme_index(step, EACH, true)) >= 0);
    page_release(&p);
    invar_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_report__samples),
        cmocka_unit_test(test_ledger_report__samples_of_answers),
        cmocka_unit_test(test_ledger_report__hostile_samples),
        cmocka_unit_test(test_ledger_report__long_samples),
        cmocka_unit_test(test_ledger_report__chosen_samples),
        cmocka_unit_test(test_ledger_report__reads_so_many_bytes),
    };

    return cmocka_run_group_tests(tests, make_ledgers, NULL);
}
