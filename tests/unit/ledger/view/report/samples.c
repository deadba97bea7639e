/*
 * samples.c - tests of the samples in a report: text of models and what was kept of it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/zip/gzip.h"
#include "ledger/view/report/internal.h"
#include "tests/unit/ledger/view/report/page.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_report__samples),
        cmocka_unit_test(test_ledger_report__hostile_samples),
        cmocka_unit_test(test_ledger_report__long_samples),
    };

    return cmocka_run_group_tests(tests, make_ledgers, NULL);
}
