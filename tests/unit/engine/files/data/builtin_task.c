/*
 * builtin_task.c - tests of the built-in tasks: prompts, answers, alphabets, seeds.
 *
 * Items are compared with shuffle.txt, which an independent program computed (shuffle.py), and each
 * answer is checked by another method than the one of builtin_task.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/data/builtin_task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

static void test_task__matches_the_oracle(void **state)
{
    FILE *file = fopen(INVAR_TEST_DATA "/unit/engine/files/data/shuffle.txt", "r");
    char line[4096], name[16], prompt[16], answer[16];
    unsigned seed, item;
    int n_items = 0;
    (void)state;

    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        invar_builtin_task_item got;
        if (sscanf(line, "task %15s %u %u %15s %15s", name, &seed, &item, prompt, answer) != 5)
            continue;
        assert_ok(invar_builtin_task_make(&got, name, seed, item));
        assert_string_equal(got.prompt, prompt);
        assert_string_equal(got.answer, answer);
        n_items++;
    }
    fclose(file);
    assert_int_equal(n_items, 84);
}

/* Checks an answer against its prompt, by another method than builtin_task.c. */
static void check_answer(const char *name, const invar_builtin_task_item *item)
{
    const size_t n = strlen(item->prompt) - 1;
    int a = item->prompt[0] - '0', b = item->prompt[2] - '0', counts[256] = {0};

    if (strcmp(name, "guess") == 0) { // the prompt does not determine the answer
        assert_string_equal(item->prompt, "?");
        assert_true(strlen(item->answer) == 1 && strchr("1234567", item->answer[0]));
        return;
    }
    assert_int_equal(item->prompt[n], '=');
    if (strcmp(name, "max") == 0 || strcmp(name, "add") == 0) {
        assert_int_equal(strtol(item->answer, NULL, 10), *name == 'a' ? a + b : (a > b ? a : b));
        return;
    }
    assert_true(n >= 2 && n <= 4);
    if (strcmp(name, "last") == 0) {
        assert_true(strlen(item->answer) == 1 && item->answer[0] == item->prompt[n - 1]);
        return;
    }
    assert_int_equal(strlen(item->answer), n);
    for (size_t i = 0; i < n; i++) {
        char c = item->answer[i];
        if (strcmp(name, "copy") == 0)
            assert_int_equal(c, item->prompt[i]);
        else if (strcmp(name, "reverse") == 0)
            assert_int_equal(c, item->prompt[n - 1 - i]);
        else
            assert_true(i == 0 || item->answer[i - 1] <= c);
        counts[(unsigned char)c]++;
        counts[(unsigned char)item->prompt[i]]--;
    }
    for (int i = 0; i < 256; i++)
        assert_int_equal(counts[i], 0);
}

static void test_task__answers_are_right(void **state)
{
    const int64_t count = invar_test_count(2000, 100000);
    int tasks = 0;
    (void)state;

    for (const char *name; (name = invar_builtin_task_name(tasks)); tasks++) {
        const char *alphabet = invar_builtin_task_alphabet(name);
        bool used[128] = {false};

        assert_true(strlen(alphabet) < 32);
        for (int64_t i = 0; i < count; i++) {
            invar_builtin_task_item item;
            assert_ok(invar_builtin_task_make(&item, name, 42, (uint32_t)i));
            check_answer(name, &item);
            for (const char *c = item.prompt; *c; c++)
                used[(unsigned char)*c] = true;
            for (const char *c = item.answer; *c; c++)
                assert_non_null(strchr(alphabet, *c));
        }
        for (const char *c = "0123456789<>"; strcmp(name, "guess") == 0 && *c; c++)
            used[(unsigned char)*c] = true; // characters of later turns: guesses and hints
        for (int c = 0; c < 128; c++)       // all characters of the alphabet, and no others
            assert_true(used[c] == (c > 0 && strchr(alphabet, c)));
    }
    assert_int_equal(tasks, 7);
}

static void test_task__depends_on_seed_and_item(void **state)
{
    invar_builtin_task_item a, b;
    int by_seed = 0, by_item = 0;
    (void)state;

    for (uint32_t i = 0; i < 20; i++) {
        assert_ok(invar_builtin_task_make(&a, "sort", 1, i));
        assert_ok(invar_builtin_task_make(&b, "sort", 2, i));
        by_seed += strcmp(a.prompt, b.prompt) != 0;
        assert_ok(invar_builtin_task_make(&b, "sort", 1, i + 1));
        by_item += strcmp(a.prompt, b.prompt) != 0;
        assert_ok(invar_builtin_task_make(&b, "sort", 1, i));
        assert_string_equal(a.prompt, b.prompt);
    }
    assert_true(by_seed > 15 && by_item > 15);
}

static void test_task__unknown(void **state)
{
    invar_builtin_task_item item;
    (void)state;

    assert_null(invar_builtin_task_alphabet("mux"));
    assert_null(invar_builtin_task_name(-1));
    assert_fails(invar_builtin_task_make(&item, "mux", 0, 0), INVAR_E_NOTFOUND,
                 "no built-in task 'mux'; there are last max add copy reverse sort guess");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_task__matches_the_oracle),
        cmocka_unit_test(test_task__answers_are_right),
        cmocka_unit_test(test_task__depends_on_seed_and_item),
        cmocka_unit_test(test_task__unknown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
