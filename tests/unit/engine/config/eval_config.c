/*
 * eval_config.c - tests of files with evaluation sets (key eval-config).
 *
 * A set inherits the settings of the recipe and overrides them with its own; settings without
 * effect and invalid files are rejected with file and line. Randomly damaged files must be read as
 * their lines say, or rejected with one printable line.
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
#include "tests/unit/engine/config/config_of.h"
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
    assert_ok(invar_config_check(config_of(recipe)));
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
    const invar_config *first_set, *second_set;
    invar_digest first_hash, second_hash;
    invar_hasher hasher;
    invar_eval_config evals;

    (void)state;
    write_file(two_sets, sizeof two_sets - 1);
    assert_ok(invar_eval_config_read(&evals, config_of(recipe)));
    assert_int_equal(evals.count, 2);
    first_set = &evals.sets[0];
    second_set = &evals.sets[1];
    assert_string_equal(first_set->eval_prompt_data, "aime-24 \"data/a b.jsonl\"");
    assert_string_equal(first_set->eval_label_key, "answer");
    assert_int_equal(first_set->n_samples_per_eval_prompt, 16);
    assert_int_equal(second_set->n_samples_per_eval_prompt, 3);
    assert_true(first_set->eval_temperature == 0.0);
    assert_true(second_set->eval_temperature == 0.5);
    assert_string_equal(first_set->eval_rm_type, "");
    assert_string_equal(second_set->eval_reward_key, "acc");
    assert_string_equal(second_set->eval_config, "");
    assert_int_equal(second_set->hidden_size, 64);
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
    assert_ok(invar_config_check(config_of(recipe)));
    write_file(sets, sizeof sets - 1);
    assert_ok(invar_eval_config_read(&evals, config_of(recipe)));
    assert_int_equal(evals.count, 2);
    assert_int_equal(evals.sets[1].task_size, 9);
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
        assert_fails(invar_eval_config_read(&evals, config_of(recipe)), INVAR_E_INVALID,
                     cases[i].error);
        assert_null(evals.sets);
    }
    write_file(with_nul, sizeof with_nul - 1);
    assert_fails(invar_eval_config_read(&evals, config_of(recipe)), INVAR_E_INVALID,
                 ":3: \"temperature = 0.5?junk");
    unlink(path);
    assert_int_equal(invar_eval_config_read(&evals, config_of(recipe)), INVAR_E_NOTFOUND);
    invar_recipe_free(recipe);
}

typedef struct text_span {
    const char *text;
    size_t bytes;
} text_span;

static text_span trim(const char *text, const char *end)
{
    while (text < end && *text == ' ')
        text++;
    while (text < end && (end[-1] == ' ' || end[-1] == '\r'))
        end--;
    return (text_span){text, (size_t)(end - text)};
}

static const struct {
    const char *name;
    invar_key key;
} settings[] = {
    {"n-samples-per-eval-prompt", INVAR_KEY_N_SAMPLES_PER_EVAL_PROMPT},
    {"temperature", INVAR_KEY_EVAL_TEMPERATURE},
    {"top-p", INVAR_KEY_EVAL_TOP_P},
    {"top-k", INVAR_KEY_EVAL_TOP_K},
    {"max-response-len", INVAR_KEY_EVAL_MAX_RESPONSE_LEN},
    {"input-key", INVAR_KEY_EVAL_INPUT_KEY},
    {"label-key", INVAR_KEY_EVAL_LABEL_KEY},
    {"rm-type", INVAR_KEY_EVAL_RM_TYPE},
    {"reward-key", INVAR_KEY_EVAL_REWARD_KEY},
    {"turns", INVAR_KEY_EVAL_TURNS},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

static const char *text_of(invar_recipe_entry *e, invar_recipe *recipe, invar_key key)
{
    invar_recipe_entry_get(e, recipe, key);
    return e->text ? e->text : "";
}

/* Asserts that the settings that a section does not set are those of the run. */
static void assert_inherits(invar_recipe *set, invar_recipe *run, const bool own[SETTINGS])
{
    invar_recipe_entry a, b;

    for (int i = 0; i < SETTINGS; i++)
        if (!own[i])
            assert_string_equal(text_of(&a, set, settings[i].key),
                                text_of(&b, run, settings[i].key));
}

/* Asserts that a setting of a set has the value that its line gives; returns its index. */
static int assert_setting(invar_recipe *set, text_span name, text_span value)
{
    invar_recipe_entry e;
    char text[64];

    for (int i = 0; i < SETTINGS; i++) {
        if (strlen(settings[i].name) != name.bytes ||
            memcmp(settings[i].name, name.text, name.bytes) != 0)
            continue;
        (void)snprintf(text, sizeof text, "%.*s", (int)value.bytes, value.text);
        (void)text_of(&e, set, settings[i].key);
        if (e.key->type == INVAR_RECIPE_TYPE_INT)
            assert_int_equal(invar_recipe_int(set, settings[i].key), strtoll(text, NULL, 10));
        else if (e.key->type == INVAR_RECIPE_TYPE_FLOAT)
            assert_true(invar_recipe_float(set, settings[i].key) == strtod(text, NULL));
        else
            assert_string_equal(e.text, text);
        return i;
    }
    fail_msg("a file with the setting \"%.*s\" was accepted", (int)name.bytes, name.text);
    return 0;
}

/* Asserts that the sets of an accepted file are what its lines say. */
static void assert_sets(const invar_eval_config *evals, invar_recipe *run, const char *text,
                        size_t bytes)
{
    const char *file_end = text + bytes;
    const invar_config *set = NULL;
    bool own[SETTINGS] = {false};
    size_t count = 0, paths = 0;
    text_span name = {NULL, 0};
    char data[128];

    for (const char *end; text < file_end; text = end + 1) {
        const char *equals;
        text_span line, key, value;

        end = memchr(text, '\n', (size_t)(file_end - text));
        end = end ? end : file_end;
        line = trim(text, end);
        if (line.bytes == 0 || line.text[0] == '#' || line.text[0] == ';')
            continue;
        if (line.text[0] == '[') {
            if (set)
                assert_inherits(set->recipe, run, own);
            memset(own, 0, sizeof own);
            assert_true(count < evals->count && line.text[line.bytes - 1] == ']');
            set = &evals->sets[count++];
            name = (text_span){line.text + 1, line.bytes - 2};
            continue;
        }
        equals = memchr(line.text, '=', line.bytes);
        assert_non_null(equals);
        assert_non_null(set);
        key = trim(line.text, equals);
        value = trim(equals + 1, line.text + line.bytes);
        if (key.bytes == 4 && memcmp(key.text, "path", 4) == 0) {
            (void)snprintf(data, sizeof data, "%.*s \"%.*s\"", (int)name.bytes, name.text,
                           (int)value.bytes, value.text);
            assert_string_equal(set->eval_prompt_data, data);
            paths++;
        } else {
            own[assert_setting(set->recipe, key, value)] = true;
        }
    }
    assert_non_null(set);
    assert_inherits(set->recipe, run, own);
    assert_int_equal(count, evals->count);
    assert_int_equal(paths, evals->count);
}

/*
 * A file with up to four random bytes is read as its lines say, or rejected with one printable
 * line.
 */
static void test_eval_config__damaged_files(void **state)
{
    int64_t n_files = invar_test_count(2000, 100000), accepted = 0;
    invar_recipe *recipe = make_recipe();
    char text[sizeof two_sets];
    invar_eval_config evals;

    (void)state;
    for (int64_t i = 0; i < n_files; i++) {
        memcpy(text, two_sets, sizeof two_sets);
        for (uint64_t k = 0; k < 1 + (uint64_t)i % 4; k++) {
            uint32_t bits = invar_test_random(23, (uint64_t)i * 4 + k);
            char byte = (char)(bits >> 16);
            if (k % 2 == 0) // a printable byte, which is more often accepted
                byte = (char)(' ' + (bits >> 16) % ('~' - ' ' + 1));
            text[bits % (sizeof two_sets - 1)] = byte;
        }
        write_file(text, sizeof two_sets - 1);
        if (invar_eval_config_read(&evals, config_of(recipe)) == INVAR_OK) {
            assert_sets(&evals, recipe, text, sizeof two_sets - 1);
            accepted++;
        } else {
            assert_string_not_equal(invar_error_last()->message, "");
            for (const char *c = invar_error_last()->message; *c; c++)
                assert_true((unsigned char)*c >= 0x20 && *c != 0x7F);
            invar_error_clear();
        }
        invar_eval_config_release(&evals);
    }
    assert_in_range(accepted, n_files / 20, n_files / 2); // control: some are, but not all
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
