/*
 * redact.c - tests of masked secrets in all report pages, and of redacted pages for sharing.
 *
 * A table of texts with secrets has the expected masked text; masking a masked text must change
 * nothing. Control: texts that resemble secrets stay as they are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/ledger/view/report/page.h"

#include "ledger/view/report/internal.h"

/* ---- masks ----------------------------------------------------------------------------------- */

static const struct {
    const char *text, *masked; /* masked is NULL if the text stays as it is */
} texts[] = {
    {"env WANDB_API_KEY=SECRETKEY123 cat", "env WANDB_API_KEY=*** cat"},
    {"HF_TOKEN='a b c' x", "HF_TOKEN='***' x"},
    {"HF_TOKEN=\"a b", "HF_TOKEN=\"***"},
    {"TOKEN=1 DB_PASS=22,A_SECRET=333;B=4", "TOKEN=*** DB_PASS=***,A_SECRET=***;B=4"},
    {"api-key=abc&x=1", "api-key=***&x=1"},
    {"run --password hunter2 --api_key=k", "run --password *** --api_key=***"},
    {"token=abc", "token=***"},
    {"python3 judge.py --key=abc --n 2", "python3 judge.py --key=*** --n 2"},
    {"judge --key abc --api-key  abc", "judge --key *** --api-key  ***"},
    {"judge --token=abc --token abc", "judge --token=*** --token ***"},
    {"judge --password 'a b' --passwd=abc", "judge --password '***' --passwd=***"},
    {"judge --judge-key=abc --github-token abc", "judge --judge-key=*** --github-token ***"},
    {"judge --auth abc --db-pwd=1 -pass abc", "judge --auth *** --db-pwd=*** -pass ***"},
    {"judge -token=abc -key \"a b\"", "judge -token=*** -key \"***\""},
    {"judge --key --token abc", "judge --key --token ***"},
    {"-H 'Authorization: Bearer abc.def'", "-H 'Authorization: Bearer ***'"},
    {"https://me:pw@host/x@y", "https://***@host/x@y"},
    {"git clone https://ghp_1@host.org", "git clone https://***@host.org"},
    {"a://b:c@d e://f@g", "a://***@d e://***@g"},
    {"PGPASSWORD=x psql", "PGPASSWORD=*** psql"},
    {"MYSQL_PWD=x userPassword=y", "MYSQL_PWD=*** userPassword=***"},
    {"http://judge/score?key=abc&x=1", "http://judge/score?key=***&x=1"},
    {"http://judge/?a=1&sig=abc&access-key=d", "http://judge/?a=1&sig=***&access-key=***"},
    {"token: abc-1", "token: ***"},
    {"password:abc", "password:***"},
    {"password:12345678 HF_TOKEN: 5", "password:*** HF_TOKEN: ***"},
    {"{\"token\": 5, \"password\": 12345, \"a\": 1}",
     "{\"token\": 5, \"password\": ***, \"a\": 1}"},
    {"{\"token\": \"a b\", \"api_key\":\"c\"}", "{\"token\": \"***\", \"api_key\":\"***\"}"},
    {"{'PGPASSWORD': 'x'}", "{'PGPASSWORD': '***'}"},
    {"Authorization=abc", "Authorization=***"},
    {"Authorization: Basic abc= x", "Authorization: Basic *** x"},
    {"authorization='Basic abc'", "authorization='Basic ***'"},
    {"X-Api-Key: abc Proxy-Authorization: abc", "X-Api-Key: *** Proxy-Authorization: ***"},
    {"curl -H 'authorization: bearer abc'", "curl -H 'authorization: bearer ***'"},
    {"psql me:hunter2@db:5432", "psql me:***@db:5432"},
    {"scp a.b:c-d!@host:x", "scp a.b:***@host:x"},
    {"psql me:pa/ss@db me:pa@ss@db:5432/x", "psql me:***@db me:***@db:5432/x"},
    {"https://me:pa/ss@host/x http://me:pa@s/s@host", "https://***@host/x http://***@s/s@host"},
    {"me:pw@host@ me:pw@tag@sha256:0123", "me:***@host@ me:***@tag@sha256:0123"},
    {"q=Authorization%3DBasic%20abc&x=1", "q=Authorization%3D***&x=1"},
    {"?u=a%3fkey%3dabc a%26PGPASSWORD%3Ax Bearer%20abc", "?u=a%3fkey%3d*** a%26PGPASSWORD%3A*** "
                                                         "Bearer%20***"},
    {"Incorrect API key provided: sk-proj-abc123DEF456. You",
     "Incorrect API key provided: ***. You"},
    {"judge -k sk-abcdef1234567890 --n 2", "judge -k *** --n 2"},
    {"judge sk-ant-api03-aB3dE5gH7j", "judge ***"},
    {"'hf_abcdefghijKLMNOPQRSTuvwxyz012345'", "'***'"},
    {"--pat ghp_0123456789abcdef gho_0123456789abcdef", "--pat *** ***"},
    {"--pat abc --slack-webhook http://a/b --webhook-url=http://c",
     "--pat *** --slack-webhook *** --webhook-url=***"},
    {"github_pat_11ABCDEFG_xyz glpat-abcdefghij_KLMNO", "*** ***"},
    {"(AKIAIOSFODNN7EXAMPLE)", "(***)"},
    {"xoxa-123456789012 xoxb-123456789012-abc xoxp-123456789012", "*** *** ***"},
    {"x:eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP-mB92K;", "x:***;"},
    {"post https://hooks.slack.com/services/T00/B00/XyZ now",
     "post https://hooks.slack.com/services/*** now"},
    {"{\"key\":\"0123456789abcdef\", \"secret\": \"x\"}", "{\"key\":\"***\", \"secret\": \"***\"}"},
    {"{\"key\": \"abc123DEF\"}", "{\"key\": \"***\"}"},
    // Control: texts that resemble a secret.
    {"sk- sk-learn task-0123456789abcdef runs/sk-2026-11-18-experiment sk-llama-7b-chat", NULL},
    {"hf_ hf_checkpoint hf_model_of_the_run_7b ghp_ gho_x AKIA xoxb- glpat-1 eyJ eyJ.a", NULL},
    {"hooks.slack.com/services/ eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.", NULL},
    {"{\"key\": \"max-tokens-per-gpu\"} {\"key\": 5} \"key\":\"", NULL},
    {"tokens: 12 token: 12 max-tokens-per-gpu=512 max-tokens-per-gpu: 512x", NULL},
    {"key: value input-key: question \"key\": \"x\"", NULL},
    {"image:tag@sha256:0123 git@host:me/repo@v1 12:30 a:b c@d", NULL},
    {"the token of step 3: x; passwords are masked", NULL},
    {"Authorization: ", NULL},
    {"token:", NULL},
    {"a:b@", NULL},
    {"a:@b", NULL},
    {"input-key=question --label-key answer stop-token=5", NULL},
    {"--input-key question --eval-label-key=answer --reward-key total --eos-token </s>", NULL},
    {"judge --keyboard us --tokens 5 --monkey=x - key", NULL},
    {"tokens=5 monkey=3 keyboard=4 MONKEY=1 BYPASS=2", NULL},
    {"https://host/a@b http://host:8080/a@b a:/b@c", NULL},
    {"100%3D 5% %4 key%3D5 input-key%3Dx %", NULL},
    {"mail me@host", NULL},
    {"WANDB_API_KEY= x", NULL},
    {"Bearer", NULL},
    {"://@", NULL},
    {"", NULL},
};

static void check_mask(const char *text, const char *expected)
{
    size_t bytes;
    char *masked;

    assert_ok(invar_report_mask(&masked, &bytes, text, strlen(text)));
    if (!expected) {
        assert_null(masked);
        return;
    }
    assert_non_null(masked);
    assert_int_equal(bytes, strlen(expected));
    assert_memory_equal(masked, expected, bytes);
    invar_free(masked);
}

/* Asserts that masking a masked text changes nothing. */
static void check_masked_twice(const char *text)
{
    size_t bytes;
    char *masked;

    assert_ok(invar_report_mask(&masked, &bytes, text, strlen(text)));
    assert_true(!masked || (bytes == strlen(text) && memcmp(masked, text, bytes) == 0));
    invar_free(masked);
}

static void test_ledger_report__masks_secrets(void **state)
{
    char text[200], expected[200];

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        check_mask(texts[i].text, texts[i].masked);
        if (!texts[i].masked)
            continue;
        // Secrets are found inside a text.
        (void)snprintf(text, sizeof text, "x y %s", texts[i].text);
        (void)snprintf(expected, sizeof expected, "x y %s", texts[i].masked);
        check_mask(text, expected);
        check_masked_twice(texts[i].masked);
    }
}

/*
 * Masks every prefix of every text, in a block of exactly its size so that sanitizers see overruns.
 */
static void test_ledger_report__masks_any_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t bytes = 0; bytes <= strlen(texts[i].text); bytes++) {
            char *exact = malloc(bytes + 1), *masked;
            size_t left;
            assert_non_null(exact);
            memcpy(exact + 1, texts[i].text, bytes);
            assert_ok(invar_report_mask(&masked, &left, exact + 1, bytes));
            assert_true(!masked || left <= 3 * (bytes + 1));
            invar_free(masked);
            free(exact);
        }
}

/* ---- pages ----------------------------------------------------------------------------------- */

static page read_data(const char *name, size_t count, const invar_report_options *with)
{
    invar_ledger *ledger = open_ledger(name);
    invar_report_run runs[2] = {{ledger, 1, "folder/of/mine"}, {ledger, 2, NULL}};
    invar_report_options only = *with;
    page p;
    FILE *stream = open_memstream(&p.text, &p.bytes);

    assert_non_null(stream);
    only.data_only = true;
    assert_ok(invar_report_write(stream, runs, count, &only));
    assert_int_equal(fclose(stream), 0);
    p.data = json_loads(p.text, JSON_ALLOW_NUL, NULL);
    assert_non_null(p.data);
    invar_ledger_close(ledger);
    return p;
}

static void write_private_runs(const char *name)
{
    static const invar_ledger_fact facts[2][6] = {{{"free", "sink", "env A_KEY=SECRET1 cat"},
                                                   {"free", "load", "/home/me/models/qwen"},
                                                   {"free", "plain", "value"},
                                                   {"host", "name", "my-laptop"},
                                                   {"host", "cpu", "some"},
                                                   {"build", "author", "Me <me@home.example>"}},
                                                  {{"free", "sink", "another command"},
                                                   {"free", "load", "/srv/models/qwen"},
                                                   {"free", "plain", "value"},
                                                   {"host", "name", "my-server"},
                                                   {"host", "cpu", "some"},
                                                   {"build", "author", "You <you@home.example>"}}};

    for (int i = 0; i < 2; i++)
        assert_ok(invar_test_ledger_add(
            path_of(name),
            &(invar_test_ledger){.steps = 5,
                                 .facts = facts[i],
                                 .n_facts = 6,
                                 .faults = {{INVAR_TEST_STRAGGLER, .step = 1, .other = 1},
                                            {INVAR_TEST_SPIKE, .step = 4}}}));
}

static void test_ledger_report__shares_less(void **state)
{
    static const char *const hidden[] = {"SECRET1",   "/home/me",  "/srv",         "command",
                                         "my-laptop", "my-server", "home.example", "alert(2)",
                                         "folder/of", "\"node1\""};

    (void)state;
    write_private_runs("private.db");
    page all = read_data("private.db", 2, &(invar_report_options){0}),
         shared = read_data("private.db", 2, &(invar_report_options){.redact = true});
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
        if (i > 0) // hidden[0] is masked on every page
            assert_non_null(strstr(all.text, hidden[i]));
        assert_null(strstr(shared.text, hidden[i]));
    }
    assert_null(strstr(all.text, hidden[0]));
    assert_text(&all, "facts/free/sink/0/0", "env A_KEY=*** cat");
    assert_text(&shared, "without", "share");
    assert_text(&shared, "runs/0/label", "\xE2\x80\xA6/mine");
    assert_text(&shared, "facts/free/plain/0/0", "value");
    assert_text(&shared, "facts/host/cpu/0/0", "some");
    // Different values stay distinguishable.
    assert_text(&shared, "facts/free/sink/0/0", "(left out)");
    assert_text(&shared, "facts/free/sink/1/0", "(left out) (2)");
    assert_text(&shared, "facts/free/load/0/0", "\xE2\x80\xA6/qwen");
    assert_text(&shared, "facts/free/load/1/0", "\xE2\x80\xA6/qwen (2)");
    assert_int_equal(json_array_size(at(&shared, "runs/0/samples")), 0);
    assert_true(json_is_null(at(&shared, "runs/0/events/0/message")));
    // Control: data that is not private is unchanged.
    assert_true(json_equal(at(&shared, "runs/0/series"), at(&all, "runs/0/series")));
    assert_true(json_equal(at(&shared, "pairs"), at(&all, "pairs")));
    page_release(&all);
    page_release(&shared);
}

static void test_ledger_report__without_samples(void **state)
{
    (void)state;
    page p = read_data("runs.db", 1, &(invar_report_options){.no_samples = true});
    assert_text(&p, "without", "samples");
    assert_int_equal(json_array_size(at(&p, "runs/0/samples")), 0);
    assert_number(&p, "runs/0/kept/samples", 80);
    assert_null(strstr(p.text, "alert(2)"));
    page_release(&p);
    p = read_data("runs.db", 1, &(invar_report_options){0});
    assert_true(json_is_null(at(&p, "without")));
    assert_non_null(strstr(p.text, "alert(2)"));
    page_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_report__masks_secrets),
        cmocka_unit_test(test_ledger_report__masks_any_bytes),
        cmocka_unit_test(test_ledger_report__shares_less),
        cmocka_unit_test(test_ledger_report__without_samples),
    };

    return cmocka_run_group_tests(tests, make_ledgers, NULL);
}
