/*
 * report.c - tests of the data in a report page, and of the page around it.
 *
 * Data is compared with the faults planted in the ledgers and with queries of them. Hostile text
 * must not become markup: a page with it has as many tags as one without. The hashes of the content
 * security policy are computed again. Allocations fail one at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <time.h>

#include "ledger/internal.h"
#include "ledger/sha256.h"
#include "tests/unit/ledger/view/report/page.h"

/* ---- the tests ------------------------------------------------------------------------------- */

static void test_ledger_report__hostile_text_stays_text(void **state)
{
    page innocent = page_of("plain.db", 1), hostile = page_of("odd.db", 1);
    static const char *const markup[] = {"<script", "</script", "<!--", "alert"};

    (void)state;
    // Name and message contain the markup; it must not appear outside of the data.
    for (int i = 0; i < 3; i++)
        assert_int_equal(occurrences(hostile.text, markup[i]),
                         occurrences(innocent.text, markup[i]));
    // Once in the name and once in the label.
    assert_int_equal(occurrences(hostile.text, markup[3]),
                     occurrences(innocent.text, markup[3]) + 2);
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
    label[0] = 'x'; // shifts the text so that the limit cuts a two-byte character
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

static void test_ledger_report__where_runs_part(void **state)
{
    page p = page_of("runs.db", 3);
    int64_t different = 0, equal = 0;
    json_t *cell;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(at(&p, "pairs")), 2);
    // Other bits, although identity and program are the same.
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

static void test_ledger_report__what_a_run_is(void **state)
{
    page p = page_of("runs.db", 3);

    (void)state;
    assert_text(&p, "runs/0/label", "main");
    assert_number(&p, "runs/0/last", 39);
    assert_int_equal(json_array_size(at(&p, "runs/0/segments")), 2);
    assert_number(&p, "runs/0/segments/1/after", 14);
    assert_true(json_is_null(at(&p, "runs/0/segments/0/exit"))); // the segment was killed
    assert_number(&p, "runs/0/segments/1/exit", 0);
    assert_number(&p, "runs/0/again/steps", 10);
    assert_number(&p, "runs/0/again/differ", 0);
    assert_number(&p, "runs/0/checkpoints/0", 39);
    assert_true(json_is_null(at(&p, "runs/2/segments/0/exit")));
    // Runs 1 and 3 have one identity; run 2 diverged.
    assert_true(json_equal(at(&p, "runs/0/identity"), at(&p, "runs/2/identity")));
    assert_false(json_equal(at(&p, "runs/0/content"), at(&p, "runs/1/content")));
    assert_int_equal(json_array_size(at(&p, "runs/0/nan")), 0);
    assert_number(&p, "runs/1/nan/0/step", 33);
    assert_text(&p, "runs/1/nan/0/point", "layer.0.attn.out");
    assert_int_equal(json_array_size(at(&p, "runs/0/slow")), 0);
    assert_number(&p, "runs/1/slow/0/step", 20);
    assert_text(&p, "runs/1/slow/0/phase", "rollout");
    // A fact has one list of values per run.
    assert_int_equal(json_array_size(at(&p, "facts/build/dirty")), 3);
    assert_text(&p, "facts/build/dirty/0/0", "clean");
    assert_text(&p, "facts/build/dirty/1/0", "modified");
    // Both segments have this value.
    assert_int_equal(json_array_size(at(&p, "facts/build/dirty/0")), 1);
    page_release(&p);
}

/* A model loaded from a folder is described by its recorded facts, not by keys of the recipe. */
static void test_ledger_report__model_that_was_loaded(void **state)
{
    const invar_ledger_pair identity[] = {{"hidden-size", "64"},
                                          {"model-type", "qwen3"},
                                          {"num-layers", "0"},
                                          {"weights hash", "ab"}};
    const invar_ledger_fact facts[] = {{"free", "hf-checkpoint", "/models/x"},
                                       {"model", "family", "llama"},
                                       {"model", "layers", "30"},
                                       {"model", "parameters", "134515008"}};
    static const struct {
        size_t facts;
        const char *family; /* NULL if it is not recorded */
    } runs[] = {{0, "qwen3"}, {1, NULL}, {4, "llama"}};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char file[16];
        invar_ledger *ledger;

        (void)snprintf(file, sizeof file, "model%zu.db", i);
        assert_ok(
            invar_ledger_open(&ledger, path_of(file), &(invar_ledger_options){.create = true}));
        assert_ok(invar_ledger_begin(
            ledger, &(invar_ledger_run){.name = "run",
                                        .kind = "train",
                                        .identity = identity,
                                        .n_identity = 4,
                                        .circumstances = {.no_auto_facts = true,
                                                          .facts = facts,
                                                          .n_facts = runs[i].facts}}));
        invar_ledger_close(ledger);
        page p = page_of(file, 1);
        if (runs[i].family)
            assert_text(&p, "runs/0/model/family", runs[i].family);
        else
            assert_true(json_is_null(at(&p, "runs/0/model/family")));
        assert_text(&p, "runs/0/model/weights", "ab");
        page_release(&p);
    }
    page p = page_of("model2.db", 1);
    assert_number(&p, "runs/0/model/layers", 30);
    assert_number(&p, "runs/0/model/parameters", 134515008);
    assert_true(json_is_null(at(&p, "runs/0/model/hidden_size")));
    page_release(&p);
}

static void sleep_ms(int64_t ms)
{
    const struct timespec span = {.tv_nsec = (long)(ms * 1000000)};

    assert_int_equal(nanosleep(&span, NULL), 0);
}

/* A pause between two segments is not part of the run's clock. */
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
            sleep_ms(PAUSE);
            assert_ok(invar_ledger_open(&ledger, path_of("clock.db"), &writer));
            assert_ok(invar_ledger_resume(ledger, NULL, last, &chain, &no_provenance));
            define(ledger, "p");
        }
        sleep_ms(10);
        append_value(ledger, step, 1.0);
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
    assert_true(now <= all - pause + 2); // each time is rounded to a millisecond
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

/*
 * Rank 1 computes twice as long from step 20 on; ranks are equal until then, and rank 0 is listed.
 */
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
    assert_int_equal(json_array_size(at(&p, "runs/0/slowest")), 40); // each range is one step
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

/* A run with one rank shows no table of ranks. */
static void test_ledger_report__one_rank(void **state)
{
    page p = page_of("odd.db", 1);

    (void)state;
    assert_int_equal(json_array_size(at(&p, "runs/0/ranks")), 0);
    assert_int_equal(json_array_size(at(&p, "runs/0/slowest")), 0);
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
    for (int i = 0; i < 43; i++) { // base64 digits of 6 bits
        int bit = 6 * i;
        unsigned pair = (unsigned)hash[bit / 8] << 8 | (unsigned)hash[bit / 8 + 1];
        expected[used++] = digits[pair >> (10 - bit % 8) & 63];
    }
    (void)snprintf(expected + used, sizeof expected - used, "='");
    assert_int_equal(occurrences(p->text, expected), 1);
}

static void test_ledger_report__policy_names_what_may_run(void **state)
{
    page p = page_of("plain.db", 1);

    (void)state;
    assert_int_equal(occurrences(p.text, "default-src 'none'"), 1);
    assert_int_equal(occurrences(p.text, "unsafe"), 0);
    assert_int_equal(occurrences(p.text, "{{"), 0); // every placeholder is replaced
    int styles = 0;
    for (const char *from = p.text; (from = strstr(from, "<style>")) != NULL; from++, styles++)
        assert_hashed(&p, "<style>", "</style>", from);
    assert_int_equal(styles, 2);
    int scripts = 0;
    for (const char *at = p.text; (at = strstr(at, "<script>")) != NULL; at++, scripts++)
        assert_hashed(&p, "<script>", "</script>", at);
    assert_int_equal(scripts, 7);
    // The page loads nothing: its only address is the XML namespace of SVG.
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

/* Fails allocation `n`; if the page is written all the same, it must be complete. */
static bool fail_once(const invar_report_run *runs, const page *whole, int64_t n)
{
    page p;

    heap.fail_at = n;
    heap.calls = heap.live = 0;
    heap_watch();
    invar_status status = write_page(&p, runs, 2);
    heap_unwatch();
    assert_int_equal(heap.live, 0);
    if (status == INVAR_OK)
        assert_string_equal(p.text, whole->text);
    else if (status != INVAR_E_CORRUPT) // jansson may report a lack of memory as invalid text
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
    for (; n == 1 || heap.calls >= heap.fail_at; n += n < 40 ? 1 : stride)
        failures += fail_once(runs, &whole, n);
    assert_true(failures > n / stride / 2); // most allocations are necessary
    page_release(&whole);
    invar_ledger_close(ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_report__hostile_text_stays_text),
        cmocka_unit_test(test_ledger_report__broken_and_long_labels),
        cmocka_unit_test(test_ledger_report__same_bytes_again),
        cmocka_unit_test(test_ledger_report__where_runs_part),
        cmocka_unit_test(test_ledger_report__what_a_run_is),
        cmocka_unit_test(test_ledger_report__model_that_was_loaded),
        cmocka_unit_test(test_ledger_report__clock),
        cmocka_unit_test(test_ledger_report__tokens_and_defaults),
        cmocka_unit_test(test_ledger_report__ranks),
        cmocka_unit_test(test_ledger_report__one_rank),
        cmocka_unit_test(test_ledger_report__runs_of_several_ledgers),
        cmocka_unit_test(test_ledger_report__policy_names_what_may_run),
        cmocka_unit_test(test_ledger_report__failures),
        cmocka_unit_test(test_ledger_report__survives_failed_allocations),
    };

    return cmocka_run_group_tests(tests, make_ledgers, NULL);
}
