/*
 * ngram.c - guesses by look-up, in samples written by hand.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/sample/rollout/draft/ngram.h"
#include "tests/support.h"

enum { MOST = 8, ROOM = 64 };

/* A sample of a group; digits are its tokens, a '|' ends its prompt. */
typedef struct text {
    int64_t group;
    const char *digits;
} text;

typedef struct scene {
    invar_rl_sample samples[4];
    int32_t tokens[4][ROOM];
    int64_t count;
    invar_ngram_proposer *ngram;
} scene;

static void append(invar_rl_sample *s, const char *digits)
{
    for (; *digits; digits++)
        if (*digits == '|')
            s->prompt_tokens = s->n_tokens;
        else
            s->tokens[s->n_tokens++] = *digits - '0';
}

static void scene_init(scene *s, const text *texts, int64_t count, int64_t least, int64_t most)
{
    memset(s, 0, sizeof *s);
    s->count = count;
    for (int64_t i = 0; i < count; i++) {
        s->samples[i].group = texts[i].group;
        s->samples[i].tokens = s->tokens[i];
        append(&s->samples[i], texts[i].digits);
    }
    assert_ok(invar_ngram_proposer_new(&s->ngram, s->samples, count,
                                       &(invar_ngram_proposer_window){least, most}));
}

static void scene_release(scene *s)
{
    for (int64_t i = 0; i < s->count; i++)
        invar_ngram_proposer_leave(s->ngram);
}

/* What is guessed behind a sample, as digits. */
static void assert_guess(scene *s, int64_t sample, int64_t most, const char *expected)
{
    invar_rl_sample *own = &s->samples[sample];
    invar_draft_request g = {.sample = own,
                             .ngrams = s->ngram,
                             .max_tokens = most,
                             .tokens = own->tokens + own->n_tokens};
    char got[MOST + 1] = "";

    assert_ok(invar_ngram_proposer_propose(NULL, &g, 1));
    for (int64_t i = 0; i < g.count && i < MOST; i++)
        got[i] = (char)('0' + g.tokens[i]);
    assert_string_equal(got, expected);
}

static void test_ngram__what_followed_before(void **state)
{
    const text texts[] = {{0, "1234512|34"}};
    scene s;

    (void)state;
    scene_init(&s, texts, 1, 2, 8);
    assert_guess(&s, 0, 3, "512");
    assert_guess(&s, 0, 1, "5");
    assert_guess(&s, 0, 0, "");
    append(&s.samples[0], "9"); // never before behind 4
    assert_guess(&s, 0, 3, "");
    append(&s.samples[0], "12");
    assert_guess(&s, 0, 4, "3491"); // the newest of two places that agree equally far
    scene_release(&s);
}

static void test_ngram__the_place_that_agrees_furthest_back(void **state)
{
    const text texts[] = {{0, "7124|812580|12"}, {1, "7124|812580|712"}};
    scene s;

    (void)state;
    scene_init(&s, texts, 2, 2, 8);
    assert_guess(&s, 0, 2, "58");
    assert_guess(&s, 1, 2, "48"); // further back than the newer one
    scene_release(&s);
    scene_init(&s, texts, 2, 2, 2); // no further than two tokens
    assert_guess(&s, 1, 2, "58");
    scene_release(&s);
}

/* A period goes on beyond what there is; that of another sample ends. */
static void test_ngram__a_period_goes_on(void **state)
{
    const text texts[] = {{3, "12|1212"}, {4, "77|456"}, {4, "77|45"}};
    scene s;

    (void)state;
    scene_init(&s, texts, 3, 2, 8);
    assert_guess(&s, 0, 8, "12121212");
    assert_guess(&s, 1, 8, "");
    assert_guess(&s, 2, 8, "6");
    scene_release(&s);
}

static void test_ngram__looks_in_the_group_alone(void **state)
{
    const text texts[] = {{0, "1|2345"}, {0, "1|23"}, {1, "1|23"}, {1, "1|9"}};
    scene s;

    (void)state;
    scene_init(&s, texts, 4, 2, 8);
    assert_guess(&s, 0, 4, "");
    assert_guess(&s, 1, 4, "45");
    assert_guess(&s, 2, 4, "");
    assert_guess(&s, 3, 4, "");
    append(&s.samples[3], "23");
    assert_guess(&s, 3, 4, ""); // the other one has nothing behind it
    append(&s.samples[2], "8");
    assert_guess(&s, 2, 4, "");
    assert_guess(&s, 3, 4, "8");
    scene_release(&s);
}

static void test_ngram__shorter_than_the_window(void **state)
{
    const text texts[] = {{0, "1|"}, {1, "1|1"}};
    scene s;

    (void)state;
    scene_init(&s, texts, 2, 5, 8);
    assert_guess(&s, 0, 4, "");
    assert_guess(&s, 1, 4, "");
    append(&s.samples[1], "11111");
    assert_guess(&s, 1, 4, "1111");
    scene_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ngram__what_followed_before),
        cmocka_unit_test(test_ngram__the_place_that_agrees_furthest_back),
        cmocka_unit_test(test_ngram__a_period_goes_on),
        cmocka_unit_test(test_ngram__looks_in_the_group_alone),
        cmocka_unit_test(test_ngram__shorter_than_the_window),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
