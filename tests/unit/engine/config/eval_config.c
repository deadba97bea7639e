/*
 * eval_config.c - tests of files with evaluation sets (key eval-config).
 *
 * A set inherits the settings of the recipe and overrides them with its own; settings without
 * effect and invalid files are rejected with file and line. Randomly damaged files must be parsed
 * or rejected with one printable line.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/eval_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/config/config.h"
#include "tests/support.h"
#include "tests/unit/engine/config/valid_recipe.h"

static const char recipe_text[] = INVAR_TEST_GOOD_RECIPE "[eval]\n"
                                                         "eval-temperature = 0.5\n"
                                                         "n-samples-per-eval-prompt = 3\n";

static char path[] = INVAR_TEST_WORK "/evals-XXXXXX";

static invar_recipe *make_recipe(void)
{
    invar_recipe *recipe;

    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    assert_ok(invar_recipe_parse(recipe, "good.ini", recipe_text, sizeof recipe_text - 1));
    assert_ok(invar_recipe_set(recipe, "eval-config", path, "--eval-config"));
    assert_ok(invar_config_check(recipe));
    return recipe;
}

static void write_file(const char *text, size_t bytes)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static const char two_sets[] = "# two sets\r\n"
                               "[aime-24]\n"
                               "path = data/a b.jsonl\n"
                               "label-key = answer\n"
                               "\n"
                               "n-samples-per-eval-prompt = 16\n"
                               "temperature = 0\n"
                               "[max]\n"
                               "path = task:max\n"
                               "rm-type = dapo\n"
                               "reward-key = acc\n";

static void test_eval_config__sets_inherit(void **state)
{
    invar_recipe *recipe = make_recipe();
    const invar_recipe *first_set, *second_set;
    invar_digest first_hash, second_hash;
    invar_hasher hasher;
    invar_eval_config evals;

    (void)state;
    write_file(two_sets, sizeof two_sets - 1);
    assert_ok(invar_eval_config_read(&evals, recipe));
    assert_int_equal(evals.count, 2);
    first_set = evals.recipes[0];
    second_set = evals.recipes[1];
    assert_string_equal(invar_recipe_string(first_set, INVAR_KEY_EVAL_PROMPT_DATA),
                        "aime-24 \"data/a b.jsonl\"");
    assert_string_equal(invar_recipe_string(first_set, INVAR_KEY_EVAL_LABEL_KEY), "answer");
    assert_int_equal(invar_recipe_int(first_set, INVAR_KEY_N_SAMPLES_PER_EVAL_PROMPT), 16);
    assert_int_equal(invar_recipe_int(second_set, INVAR_KEY_N_SAMPLES_PER_EVAL_PROMPT), 3);
    assert_true(invar_recipe_float(first_set, INVAR_KEY_EVAL_TEMPERATURE) == 0.0);
    assert_true(invar_recipe_float(second_set, INVAR_KEY_EVAL_TEMPERATURE) == 0.5);
    assert_string_equal(invar_recipe_string(first_set, INVAR_KEY_EVAL_RM_TYPE), "");
    assert_string_equal(invar_recipe_string(second_set, INVAR_KEY_EVAL_REWARD_KEY), "acc");
    assert_string_equal(invar_recipe_string(second_set, INVAR_KEY_EVAL_CONFIG), "");
    assert_int_equal(invar_recipe_int(second_set, INVAR_KEY_HIDDEN_SIZE), 64);
    invar_hasher_init(&hasher);
    invar_eval_config_hash(&hasher, first_set);
    invar_hasher_final(&first_hash, &hasher);
    invar_hasher_init(&hasher);
    invar_eval_config_hash(&hasher, second_set);
    invar_hasher_final(&second_hash, &hasher);
    assert_false(invar_digest_equal(&first_hash, &second_hash));
    invar_eval_config_release(&evals);
    invar_recipe_free(recipe);
}

/*
 * The key task-size has an effect on built-in tasks only. It is not reported as ignored for a set
 * that comes from a file.
 */
static void test_eval_config__task_size_is_for_tasks(void **state)
{
    static const char sets[] = "[a]\npath = a.jsonl\n[b]\npath = task:max\n";
    char text[sizeof recipe_text], *rollout;
    invar_recipe *recipe;
    invar_eval_config evals;

    (void)state;
    memcpy(text, recipe_text, sizeof text);
    memcpy(strstr(text, "task:max"), "in.jsonl", strlen("in.jsonl"));
    rollout = strstr(text, "[rollout]"); // without [model]: the model comes from files
    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    assert_ok(invar_recipe_parse(recipe, "good.ini", rollout, strlen(rollout)));
    assert_ok(invar_recipe_set(recipe, "label-key", "answer", "--label-key"));
    assert_ok(invar_recipe_set(recipe, "task-size", "9", "--task-size"));
    assert_ok(invar_recipe_set(recipe, "hf-checkpoint", "model", "--hf-checkpoint"));
    assert_ok(invar_recipe_set(recipe, "eval-config", path, "--eval-config"));
    assert_ok(invar_config_check(recipe));
    write_file(sets, sizeof sets - 1);
    assert_ok(invar_eval_config_read(&evals, recipe));
    assert_int_equal(evals.count, 2);
    assert_int_equal(invar_recipe_int(evals.recipes[1], INVAR_KEY_TASK_SIZE), 9);
    invar_eval_config_release(&evals);
    invar_recipe_free(recipe);
}

static void test_eval_config__refusals(void **state)
{
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "has no set; add a section [NAME]"},
        {"[a]\n", ":1: \"a\" is a set without path = FILE"},
        {"x = 1\n", ":1: \"x = 1\" is neither [NAME] nor a setting"},
        {"[a]\npath\n", ":2: \"path\" is neither [NAME]"},
        {"[a\npath = task:max\n", ":1: \"[a\" is no section"},
        {"[]\npath = task:max\n", "is no section"},
        {"[a]\npath =\n", ":2: \"path\" has no value"},
        {"[a]\npath = task:max\npath = task:max\n", ":3: \"path\" is there twice"},
        {"[a]\npath = task:max\n[a]\npath = task:max\n", ":3: \"a\" is there twice"},
        {"[a]\npath = task:max\ntop-p = 0.5\ntop-p = 1\n", ":4: \"top-p\" is there twice"},
        {"[a]\npath = task:max\neval-interval = 5\n", ":3: \"eval-interval\" is no setting"},
        {"[a]\npath = task:max\ntemperature = warm\n", ":3: expected a decimal number"},
        {"[a]\npath = task:max\ntop-p = 2\n", ":3: "},
        {"[a]\npath = a.jsonl\nrm-type = math\n", "compares with a label"},
        {"[a]\npath = task:max\nrm-type = maths\n", "no reward; expected"},
        {"[a]\npath = task:max\nreward-key = acc\n", "would be ignored"},
        {"[a b]\npath = task:max\n", ":1: \"[a b]\" is no name of a set; a name has letters"},
        {"[a task:max b]\npath = task:max\n", "is no name of a set"},
        {"[\"a\"]\npath = task:max\n", "is no name of a set"},
        {"[a]\npath = task:max\nrm-type = boxed_math_verify\n", "boxed_ is not known"},
        {"[a]\npath = x\"y\n", "has a quote"},
    };
    static const char with_nul[] = "[a]\npath = task:max\ntemperature = 0.5\0junk\n";
    invar_recipe *recipe = make_recipe();
    invar_eval_config evals;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(cases[i].text, strlen(cases[i].text));
        assert_fails(invar_eval_config_read(&evals, recipe), INVAR_E_INVALID, cases[i].error);
        assert_null(evals.recipes);
    }
    write_file(with_nul, sizeof with_nul - 1);
    assert_fails(invar_eval_config_read(&evals, recipe), INVAR_E_INVALID,
                 ":3: \"temperature = 0.5?junk");
    unlink(path);
    assert_int_equal(invar_eval_config_read(&evals, recipe), INVAR_E_NOTFOUND);
    invar_recipe_free(recipe);
}

/* A file with up to four random bytes is read, or rejected with one printable line. */
static void test_eval_config__damaged_files(void **state)
{
    int64_t n_files = invar_test_count(2000, 100000);
    invar_recipe *recipe = make_recipe();
    char text[sizeof two_sets];
    invar_eval_config evals;

    (void)state;
    for (int64_t i = 0; i < n_files; i++) {
        memcpy(text, two_sets, sizeof two_sets);
        for (uint64_t k = 0; k < 1 + (uint64_t)i % 4; k++) {
            uint32_t bits = invar_test_random(23, (uint64_t)i * 4 + k);
            text[bits % (sizeof two_sets - 1)] = (char)(bits >> 16);
        }
        write_file(text, sizeof two_sets - 1);
        if (invar_eval_config_read(&evals, recipe) == INVAR_OK)
            assert_true(evals.count >= 1);
        else
            for (const char *c = invar_error_last()->message; *c; c++)
                assert_true((unsigned char)*c >= 0x20 && *c != 0x7F);
        invar_eval_config_release(&evals);
    }
    invar_recipe_free(recipe);
}

static int setup(void **state)
{
    (void)state;
    close(mkstemp(path));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eval_config__sets_inherit),
        cmocka_unit_test(test_eval_config__task_size_is_for_tasks),
        cmocka_unit_test(test_eval_config__refusals),
        cmocka_unit_test(test_eval_config__damaged_files),
    };

    return cmocka_run_group_tests_name("evals", tests, setup, teardown);
}
