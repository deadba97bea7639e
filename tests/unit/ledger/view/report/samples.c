/*
 * samples.c - tests of the samples in a report: text of models and what was kept of it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <unistd.h>

#include "base/zip/gzip.h"
#include "ledger/view/report/internal.h"
#include "tests/unit/ledger/view/report/page.h"

/* Where on the page the sample of this step with this index is; -1: it is not. */
static int64_t place_of(const page *p, int64_t step, int64_t idx)
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

static const char *member(int64_t place, const char *name)
{
    static char path[64];

    (void)snprintf(path, sizeof path, "runs/0/samples/%" PRId64 "/%s", place, name);
    return path;
}

static void test_ledger_report__samples(void **state)
{
    static const char *const markup[] = {"<script", "</script", "<!--", "<b>", "</td"};

    (void)state;
    page p = page_of("runs.db", 1), none = page_of("plain.db", 1);
    const int64_t place = place_of(&p, 2, 6);
    assert_int_equal(json_array_size(at(&p, "runs/0/samples")), 80); // two of each of 40 steps
    assert_number(&p, "runs/0/kept/samples", 80);
    assert_number(&p, "runs/0/kept/steps", 40);
    assert_number(&p, "runs/0/kept/over", 0);
    assert_number(&none, "runs/0/kept/samples", 0);
    assert_text(&p, member(place, "text"),
                "step 2 sample 6 </script><script>alert(2)</script>\xE2\x80\xAEtxt.exe\n<b>&amp;");
    assert_text(&p, member(place, "response/0"), "<!--");
    assert_int_equal(json_string_length(at(&p, member(place, "label"))), 12); // with its NUL
    assert_text(&p, member(place, "response/3"), "\xC3\xA4");
    assert_number(&p, member(place, "logp/1"), -2500);
    assert_number(&p, member(place, "logp/2"), -8); // -0.0078125, rounded
    assert_true(json_is_null(at(&p, member(place, "logp/3"))));
    assert_number(&p, member(place, "credit/0"), 2500);
    assert_number(&p, member(place, "inserted/0"), 3);
    assert_true(json_is_null(at(&p, member(place, "cut"))));
    assert_int_equal(json_array_size(at(&p, member(place, "parts"))), 2);
    assert_text(&p, member(place, "parts/0/0"), "answer");
    // none of it is markup: as many tags as in a page without samples
    assert_int_equal(json_array_size(at(&none, "runs/0/samples")), 0);
    for (size_t i = 0; i < sizeof markup / sizeof *markup; i++)
        assert_int_equal(occurrences(p.text, markup[i]), occurrences(none.text, markup[i]));
    page_release(&p);
    page_release(&none);
}

/* ---- hostile ones ---------------------------------------------------------------------------- */

/* One step with one sample, of which these bytes are kept. */
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

/* Samples that the page of the ledger shows. `why`: the one that it has is damaged, so the page and
   a line name it; NULL: it is not. */
static size_t shown_of(const char *file, const char *why)
{
    invar_report_run run = {.ledger = open_ledger(file), .run = 1};
    page p;

    told_damage[0] = '\0';
    p = read_page(&run, 1);
    json_t *only = json_array_get(json_object_get(p.data, "runs"), 0);
    json_t *damaged = json_object_get(only, "damaged"), *one = json_array_get(damaged, 0);
    size_t samples = json_array_size(json_object_get(only, "samples"));
    assert_int_equal(json_array_size(damaged), why ? 1 : 0);
    if (why) {
        assert_non_null(strstr(json_string_value(json_object_get(one, "why")), why));
        assert_int_equal(json_integer_value(json_object_get(one, "idx")), 0);
        assert_non_null(strstr(told_damage, "sample 0 of step 0 "));
        assert_non_null(strstr(told_damage, why));
    } else {
        assert_string_equal(told_damage, "");
    }
    page_release(&p);
    invar_ledger_close(run.ledger);
    return samples;
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

/* A run that learned answers has neither rewards nor advantages, whatever a version recorded. */
static void test_ledger_report__samples_of_answers(void **state)
{
    static const invar_ledger_pair losses[] = {{"loss-type", "sft_loss"},
                                               {"loss-type", "policy_loss"}};
    static const char *const files[] = {"sft.db", "policy.db"};
    size_t bytes;
    char *data = packed(&bytes,
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
        const char *why; /* NULL: it is a sample */
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
        char *data = packed(&bytes, cases[i].form, cases[i].count);

        (void)snprintf(file, sizeof file, "kept-%zu.db", i);
        write_kept(file, data, bytes);
        assert_int_equal(shown_of(file, cases[i].why), cases[i].why ? 0 : 1);
        invar_free(data);
    }
    write_kept("kept-plain.db", "{}", 2);
    assert_int_equal(shown_of("kept-plain.db", "is no gzip data"), 0);
}

/* Of a long response its beginning and its end; a label that was cut before does not look whole. */
static void test_ledger_report__long_samples(void **state)
{
    size_t bytes;
    char *data = packed(&bytes,
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

/* ---- which are chosen ------------------------------------------------------------------------ */

#define SMALL                                                                                      \
    "{\"prompt\":\"$\",\"prompt_tokens\":[],\"response\":[],\"tokens\":[],\"logp\":[],"            \
    "\"advantage\":[],\"drawn\":[]}"

enum { MOST_EACH = 700 };

static double reward_of(int64_t step, int64_t idx)
{
    return (double)((step * 7919 + idx * 104729) % 100003);
}

/* So many steps, of each of which so many samples are kept, each with these bytes. */
static void write_many(const char *file, int64_t steps, int64_t each, const char *data,
                       size_t bytes)
{
    static invar_ledger_sample samples[MOST_EACH];
    static invar_ledger_kept_sample kept[MOST_EACH];
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

/* How many of all have a lower reward, and how many a higher one. */
static void ranks_of(int64_t *lower, int64_t *higher, double reward, int64_t steps, int64_t each)
{
    *lower = *higher = 0;
    for (int64_t step = 0; step < steps; step++)
        for (int64_t i = 0; i < each; i++) {
            *lower += reward_of(step, i) < reward;
            *higher += reward_of(step, i) > reward;
        }
}

/* The index of the lowest reward of a step, or of the highest. */
static int64_t end_of(int64_t step, int64_t each, bool lowest)
{
    int64_t end = 0;

    for (int64_t i = 1; i < each; i++)
        if (lowest == (reward_of(step, i) < reward_of(step, end)))
            end = i;
    return end;
}

/* The lowest and the highest rewards are there; so are the ends of steps from first to last. */
static void check_choice(int64_t steps, int64_t each)
{
    page p = page_of("many.db", 1);
    size_t here = json_array_size(at(&p, "runs/0/samples"));
    int64_t lower, higher, whole = 0;

    assert_number(&p, "runs/0/kept/samples", steps * each);
    assert_number(&p, "runs/0/kept/steps", steps);
    assert_true(here <= 600);
    assert_true(steps * each > 400 ? here > 350 : here == (size_t)(steps * each));
    for (int64_t step = 0; step < steps; step++) {
        bool ends = place_of(&p, step, end_of(step, each, true)) >= 0 &&
                    place_of(&p, step, end_of(step, each, false)) >= 0;
        whole += ends;
        if (step == 0 || step == steps - 1)
            assert_true(ends);
        for (int64_t i = 0; i < each; i++) {
            ranks_of(&lower, &higher, reward_of(step, i), steps, each);
            if (lower < 45 || higher < 45) // a few may be equal
                assert_true(place_of(&p, step, i) >= 0);
        }
    }
    assert_true(whole >= (steps < 20 ? steps : 20));
    page_release(&p);
}

static void test_ledger_report__chosen_samples(void **state)
{
    static const int64_t shapes[][2] = {{250, 4}, {3, 256}, {30, 30}, {1, MOST_EACH},
                                        {700, 1}, {5, 3},   {2, 201}};
    size_t bytes;
    char *data = packed(&bytes, SMALL, 0);

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        (void)unlink(path_of("many.db"));
        write_many("many.db", shapes[i][0], shapes[i][1], data, bytes);
        check_choice(shapes[i][0], shapes[i][1]);
    }
    invar_free(data);
}

/* A hundred of a MiB each: a page reads 64, some of each step, and says so. */
static void test_ledger_report__reads_so_many_bytes(void **state)
{
    enum { STEPS = 25, EACH = 4, READ = INVAR_REPORT_EXPANDED_BYTES >> 20 };
    size_t bytes;
    char *data = packed(&bytes, SMALL, 1 << 19);

    (void)state;
    write_many("large.db", STEPS, EACH, data, bytes);
    page p = page_of("large.db", 1);
    assert_int_equal(json_array_size(at(&p, "runs/0/samples")), READ);
    assert_number(&p, "runs/0/kept/over", STEPS * EACH - READ);
    assert_number(&p, "runs/0/kept/samples", STEPS * EACH);
    for (int64_t step = 0; step < STEPS; step++)
        assert_true(place_of(&p, step, end_of(step, EACH, true)) >= 0);
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
