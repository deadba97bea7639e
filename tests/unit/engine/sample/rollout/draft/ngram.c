/*
 * ngram.c - tests of n-gram drafts with samples and expected drafts written by hand.
 *
 * Tokens are written as digits. Controls expect an empty draft: no match, another group, or a match
 * shorter than the window.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/sample/rollout/draft/ngram.h"
#include "tests/support.h"

enum { MAX_DRAFT = 8, CAPACITY = 64 };

/* A sample of a group; each digit is a token, and '|' ends the prompt. */
typedef struct sample_text {
    int64_t group;
    const char *digits;
} sample_text;

typedef struct ngram_fixture {
    invar_rl_sample samples[4];
    int32_t tokens[4][CAPACITY];
    int64_t count;
    invar_ngram_proposer *ngram;
} ngram_fixture;

static void append_digits(invar_rl_sample *s, const char *digits)
{
    for (; *digits; digits++)
        if (*digits == '|')
            s->prompt_tokens = s->n_tokens;
        else
            s->tokens[s->n_tokens++] = *digits - '0';
}

static void init_fixture(ngram_fixture *s, const sample_text *texts, int64_t count, int64_t min_n,
                         int64_t max_n)
{
    memset(s, 0, sizeof *s);
    s->count = count;
    for (int64_t i = 0; i < count; i++) {
        s->samples[i].group = texts[i].group;
        s->samples[i].tokens = s->tokens[i];
        append_digits(&s->samples[i], texts[i].digits);
    }
    assert_ok(invar_ngram_proposer_new(&s->ngram, s->samples, count,
                                       &(invar_ngram_proposer_window){min_n, max_n}));
}

static void release_fixture(ngram_fixture *s)
{
    for (int64_t i = 0; i < s->count; i++)
        invar_ngram_proposer_leave(s->ngram);
}

/* Compares the draft after a sample with the expected digits. */
static void assert_draft(ngram_fixture *s, int64_t sample, int64_t max_tokens, const char *expected)
{
    invar_rl_sample *own = &s->samples[sample];
    invar_draft_request g = {.sample = own,
                             .ngrams = s->ngram,
                             .max_tokens = max_tokens,
                             .tokens = own->tokens + own->n_tokens};
    char draft[MAX_DRAFT + 1] = "";

    assert_ok(invar_ngram_proposer_propose(NULL, &g, 1));
    for (int64_t i = 0; i < g.count && i < MAX_DRAFT; i++)
        draft[i] = (char)('0' + g.tokens[i]);
    assert_string_equal(draft, expected);
}

static void test_ngram__drafts_what_followed_before(void **state)
{
    const sample_text texts[] = {{0, "1234512|34"}};
    ngram_fixture s;

    (void)state;
    init_fixture(&s, texts, 1, 2, 8);
    assert_draft(&s, 0, 3, "512");
    assert_draft(&s, 0, 1, "5");
    assert_draft(&s, 0, 0, "");
    append_digits(&s.samples[0], "9"); // 9 has never followed 4
    assert_draft(&s, 0, 3, "");
    append_digits(&s.samples[0], "12");
    assert_draft(&s, 0, 4, "3491"); // the newest of two positions with matches of equal length
    release_fixture(&s);
}

static void test_ngram__prefers_the_longest_match(void **state)
{
    const sample_text texts[] = {{0, "7124|812580|12"}, {1, "7124|812580|712"}};
    ngram_fixture s;

    (void)state;
    init_fixture(&s, texts, 2, 2, 8);
    assert_draft(&s, 0, 2, "58");
    assert_draft(&s, 1, 2, "48"); // a longer match than at the newer position
    release_fixture(&s);
    init_fixture(&s, texts, 2, 2, 2); // matches of at most two tokens
    assert_draft(&s, 1, 2, "58");
    release_fixture(&s);
}

/* A draft may continue a period of its own sample beyond its end, but not of another sample. */
static void test_ngram__continues_a_period(void **state)
{
    const sample_text texts[] = {{3, "12|1212"}, {4, "77|456"}, {4, "77|45"}};
    ngram_fixture s;

    (void)state;
    init_fixture(&s, texts, 3, 2, 8);
    assert_draft(&s, 0, 8, "12121212");
    assert_draft(&s, 1, 8, "");
    assert_draft(&s, 2, 8, "6");
    release_fixture(&s);
}

static void test_ngram__searches_only_the_group(void **state)
{
    const sample_text texts[] = {{0, "1|2345"}, {0, "1|23"}, {1, "1|23"}, {1, "1|9"}};
    ngram_fixture s;

    (void)state;
    init_fixture(&s, texts, 4, 2, 8);
    assert_draft(&s, 0, 4, "");
    assert_draft(&s, 1, 4, "45");
    assert_draft(&s, 2, 4, "");
    assert_draft(&s, 3, 4, "");
    append_digits(&s.samples[3], "23");
    assert_draft(&s, 3, 4, ""); // the other sample of the group has no token after "23"
    append_digits(&s.samples[2], "8");
    assert_draft(&s, 2, 4, "");
    assert_draft(&s, 3, 4, "8");
    release_fixture(&s);
}

static void test_ngram__shorter_than_the_window(void **state)
{
    const sample_text texts[] = {{0, "1|"}, {1, "1|1"}};
    ngram_fixture s;

    (void)state;
    init_fixture(&s, texts, 2, 5, 8);
    assert_draft(&s, 0, 4, "");
    assert_draft(&s, 1, 4, "");
    append_digits(&s.samples[1], "11111");
    assert_draft(&s, 1, 4, "1111");
    release_fixture(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ngram__drafts_what_followed_before),
        cmocka_unit_test(test_ngram__prefers_the_longest_match),
        cmocka_unit_test(test_ngram__continues_a_period),
        cmocka_unit_test(test_ngram__searches_only_the_group),
        cmocka_unit_test(test_ngram__shorter_than_the_window),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
