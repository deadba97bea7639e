/*
 * recipe.c - tests of the strict recipe reader: values, messages, flags, canonical text, floats.
 *
 * Each rejected text has its message with file, line and key. Floats are compared bit for bit with
 * hexadecimal constants, under a locale with a decimal comma too if the machine has one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/recipe/recipe.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/support.h"
#include "tests/unit/base/recipe/canonical.h"

enum { NAME, LAYERS, ESTIMATOR, USE_KL, EPS_CLIP, SEED, THREADS, PROMPT_DATA, LATE, KEY_COUNT };

static const char *const words[] = {"grpo", "gspo", "ppo"};
static const invar_choices estimators = {words, 3};

static const invar_recipe_key keys[KEY_COUNT] = {
    [NAME] = {.section = "model",
              .name = "model-name",
              .type = INVAR_RECIPE_TYPE_STRING,
              .doc = "the model's name"},
    [LAYERS] = {.section = "model",
                .name = "num-layers",
                .type = INVAR_RECIPE_TYPE_INT,
                .default_text = "4",
                .int_min = 1,
                .int_max = 1024,
                .doc = "layers"},
    [ESTIMATOR] = {.section = "grpo",
                   .name = "advantage-estimator",
                   .type = INVAR_RECIPE_TYPE_ENUM,
                   .default_text = "grpo",
                   .choices = &estimators,
                   .doc = "how advantages are computed"},
    [USE_KL] = {.section = "grpo",
                .name = "use-kl-loss",
                .type = INVAR_RECIPE_TYPE_BOOL,
                .default_text = "false",
                .doc = "adds the KL term"},
    [EPS_CLIP] = {.section = "grpo",
                  .name = "eps-clip",
                  .type = INVAR_RECIPE_TYPE_FLOAT,
                  .default_text = "0.2",
                  .float_min = -1e300,
                  .float_max = 1e300,
                  .doc = "clip range"},
    [SEED] = {.section = "engine",
              .name = "seed",
              .type = INVAR_RECIPE_TYPE_INT,
              .default_text = "0",
              .doc = "seed"},
    [THREADS] = {.section = "engine",
                 .name = "threads",
                 .type = INVAR_RECIPE_TYPE_INT,
                 .effect = INVAR_RECIPE_EFFECT_FREE,
                 .default_text = "1",
                 .int_min = 1,
                 .int_max = 1024,
                 .doc = "threads"},
    [PROMPT_DATA] = {.section = "engine",
                     .name = "prompt-data",
                     .type = INVAR_RECIPE_TYPE_STRING,
                     .default_text = "",
                     .doc = "data set"},
    [LATE] = {.section = "engine",
              .name = "late",
              .type = INVAR_RECIPE_TYPE_FLOAT,
              .effect = INVAR_RECIPE_EFFECT_SEMANTIC_IF_SET,
              .default_text = "0.5",
              .float_min = 0,
              .float_max = 1,
              .doc = "came when runs were recorded already"},
};

static const invar_recipe_removed_key removed_keys[] = {{"kl-loss", "use-kl-loss"}};
static const invar_recipe_schema schema = {keys, KEY_COUNT, removed_keys, 1};

static invar_recipe *new_recipe(void)
{
    invar_recipe *recipe;

    assert_ok(invar_recipe_new(&recipe, &schema));
    return recipe;
}

static invar_recipe *parse_recipe(const char *text)
{
    invar_recipe *recipe = new_recipe();

    assert_ok(invar_recipe_parse(recipe, "r.ini", text, strlen(text)));
    return recipe;
}

/* Asserts that the text is rejected with a message that contains `message`. */
static void assert_rejected_bytes(const char *text, size_t bytes, const char *message)
{
    invar_recipe *recipe = new_recipe();

    assert_fails(invar_recipe_parse(recipe, "r.ini", text, bytes), INVAR_E_INVALID, message);
    invar_recipe_free(recipe);
}

static void assert_rejected(const char *text, const char *message)
{
    assert_rejected_bytes(text, strlen(text), message);
}

/* ---- accepted recipes ------------------------------------------------------------------------ */

static void test_base_recipe__defaults_are_typed(void **state)
{
    invar_recipe *recipe = parse_recipe("");

    (void)state;
    assert_int_equal(invar_recipe_int(recipe, LAYERS), 4);
    assert_int_equal(invar_recipe_enum(recipe, ESTIMATOR, &estimators), 0);
    assert_false(invar_recipe_bool(recipe, USE_KL));
    assert_true(invar_recipe_float(recipe, EPS_CLIP) == 0.2);
    assert_string_equal(invar_recipe_string(recipe, PROMPT_DATA), "");
    invar_recipe_free(recipe);
    invar_recipe_free(NULL);
}

static void test_base_recipe__reads_every_type(void **state)
{
    invar_recipe *recipe =
        parse_recipe("# comment with = and [brackets]\n"
                     "; another\n"
                     "\n"
                     "   \n"
                     "[grpo]\n"
                     "advantage-estimator = ppo\n"
                     "use-kl-loss=true\n"
                     "eps-clip   =   3e-1   \n"
                     "[model]\n"
                     "model-name = Qwen3 # 0.6B; \xC3\xA4 = \xE6\xA8\xA1\xF0\x9F\x98\x80\n"
                     "num-layers = 28\n"
                     "[engine]  \n"
                     "seed = -9223372036854775808"); // no newline at the end

    (void)state;
    assert_int_equal(invar_recipe_enum(recipe, ESTIMATOR, &estimators), 2);
    assert_true(invar_recipe_bool(recipe, USE_KL));
    assert_true(invar_recipe_float(recipe, EPS_CLIP) == 0.3);
    assert_string_equal(invar_recipe_string(recipe, NAME),
                        "Qwen3 # 0.6B; \xC3\xA4 = \xE6\xA8\xA1\xF0\x9F\x98\x80");
    assert_int_equal(invar_recipe_int(recipe, LAYERS), 28);
    assert_true(invar_recipe_int(recipe, SEED) == INT64_MIN);
    assert_ok(invar_recipe_check(recipe));
    invar_recipe_free(recipe);
}

static void test_base_recipe__accepts_crlf(void **state)
{
    invar_recipe *recipe =
        parse_recipe("# c\r\n[model]\r\n\r\nmodel-name = a b\r\nnum-layers = 7\r\n");

    (void)state;
    assert_string_equal(invar_recipe_string(recipe, NAME), "a b");
    assert_int_equal(invar_recipe_int(recipe, LAYERS), 7);
    invar_recipe_free(recipe);
}

static void test_base_recipe__accepts_values_up_to_the_line_limit(void **state)
{
    static char text[INVAR_RECIPE_MAX_LINE + 64];
    const char *head = "[engine]\nprompt-data=";
    size_t used = strlen(head), longest = INVAR_RECIPE_MAX_LINE - strlen("prompt-data=");
    invar_recipe *recipe = new_recipe();

    (void)state;
    memcpy(text, head, used);
    memset(text + used, 'x', longest + 1);
    assert_ok(invar_recipe_parse(recipe, "r.ini", text, used + longest));
    assert_int_equal(strlen(invar_recipe_string(recipe, PROMPT_DATA)), longest);
    invar_recipe_free(recipe);
    assert_rejected_bytes(text, used + longest + 1,
                          "r.ini:2: the line is longer than 65536 bytes: 'prompt-data'");
}

/* ---- rejected recipes, with line and key ----------------------------------------------------- */

static void test_base_recipe__rejects_bad_lines(void **state)
{
    static const char *const cases[][2] = {
        {"[model]\n num-layers = 3\n", "r.ini:2: the line is indented"},
        {"[model]\n\tnum-layers = 3\n", "r.ini:2: the line is indented"},
        {"[model]\n # late comment\n", "r.ini:2: the line is indented"},
        {" [model]\n", "r.ini:1: the line is indented"},
        {"num-layers = 3\n", "r.ini:1: a key needs a [section] before it: 'num-layers'"},
        {"[model]\nnum-layers\n", "r.ini:2: neither [section] nor key = value"},
        {"[model]\n= 3\n", "r.ini:2: no key before the ="},
        {"[model]\nnum layers = 3\n", "r.ini:2: a key is made of letters"},
        {"[model]\nnum\001layers = 3\n", "a key is made of letters"},
        {"[model]\nnum\xC3\xA4 = 3\n", "a key is made of letters"},
        {"[model\n", "r.ini:1: a section is [name], with nothing after it: '[model'"},
        {"[model] # x\n", "r.ini:1: a section is [name]"},
        {"[model]]\n", "r.ini:1: a section's name is made of letters"},
        {"[]\n", "r.ini:1: a section's name is made of letters"},
        {"[ model ]\n", "r.ini:1: a section's name is made of letters"},
        {"[\n", "r.ini:1: a section is [name]"},
        {"]\n", "r.ini:1: neither [section] nor key = value"},
        {"[model]\nnum-layers = 3\n\n[model]\n", "r.ini:4: section [model] is already in line 1"},
        {"[model]\nnum-layers = 3\nnum-layers = 3\n",
         "r.ini:3: key 'num-layers' is already in line 2"},
        {"\xEF\xBB\xBF[model]\n", "r.ini:1: the file begins with a byte order mark"},
        {"# tab\there\n", "r.ini:1: the comment has a control character"},
        {"# bad \xFF\n", "r.ini:1: the comment has a control character or is not UTF-8"},
        {"[model]\rmodel-name = x\r", "r.ini:1: a section is [name]"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_rejected(cases[i][0], cases[i][1]);
}

/* A password may have been pasted into a recipe, so a message quotes at most a key. */
static void test_base_recipe__quotes_no_secret(void **state)
{
    static const char *const lines[] = {
        "s3cret",          "  api-key = s3cret",       "\tapi-key: s3cret=",
        "api-key: s3cret", "api key = s3cret",         "export KEY=s3cret",
        "= s3cret",        "[model] api-key = s3cret", "# s3cret\x01",
        "[model]: s3cret", "api-key: c3cret s3cret=",  "'api-key' = s3cret"};
    char text[128];

    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        invar_recipe *recipe = new_recipe();
        const int bytes = snprintf(text, sizeof text, "[model]\n%s\n", lines[i]);

        assert_fails(invar_recipe_parse(recipe, "r.ini", text, (size_t)bytes), INVAR_E_INVALID,
                     "r.ini:2: ");
        assert_null(strstr(invar_error_last()->message, "s3cret"));
        invar_recipe_free(recipe);
    }
}

static void test_base_recipe__suggests_the_nearest_name(void **state)
{
    static const char *const cases[][2] = {
        {"[modle]\n", "r.ini:1: unknown section [modle] (did you mean 'model'?)"},
        {"[zzzzzzzz]\n", "r.ini:1: unknown section [zzzzzzzz]"},
        {"[model]\nnum_layer = 3\n",
         "r.ini:2: unknown key 'num_layer' (did you mean 'num-layers'?)"},
        {"[grpo]\nuse-kl = true\n", "unknown key 'use-kl'"},
        {"[grpo]\n\nkl-loss = true\n", "r.ini:3: unknown key 'kl-loss' (gone: use use-kl-loss)"},
        {"[grpo]\nuse_kl_loss = true\n", "did you mean 'use-kl-loss'?"},
        {"[grpo]\nseed = 1\n", "r.ini:2: key 'seed' belongs to [engine], not to [grpo]"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_rejected(cases[i][0], cases[i][1]);
    assert_rejected("[zzzzzzzz]\n", "unknown section");
    assert_null(strstr(invar_error_last()->message, "did you mean"));
}

static void test_base_recipe__rejects_bad_values(void **state)
{
    static const char *const cases[][2] = {
        {"[grpo]\nuse-kl-loss = True\n",
         "r.ini:2: use-kl-loss: expected true or false, found 'True'"},
        {"[grpo]\nuse-kl-loss = 1\n", "expected true or false"},
        {"[grpo]\nuse-kl-loss =\n", "expected true or false, found ''"},
        {"[grpo]\nadvantage-estimator = reinforce\n",
         "r.ini:2: advantage-estimator: expected one of grpo|gspo|ppo, found 'reinforce'"},
        {"[grpo]\nadvantage-estimator = grp\n", "expected one of grpo|gspo|ppo"},
        {"[grpo]\nadvantage-estimator = grpo|gspo\n", "expected one of grpo|gspo|ppo"},
        {"[grpo]\nadvantage-estimator =\n", "expected one of grpo|gspo|ppo"},
        {"[model]\nnum-layers = 0\n",
         "r.ini:2: num-layers: expected an integer from 1 to 1024, found '0'"},
        {"[model]\nnum-layers = 1025\n", "expected an integer from 1 to 1024"},
        {"[model]\nnum-layers =\n", "expected a decimal integer, found ''"},
        {"[model]\nnum-layers = 0x10\n", "expected a decimal integer, found '0x10'"},
        {"[model]\nnum-layers = 3.0\n", "expected a decimal integer"},
        {"[model]\nnum-layers = 1e2\n", "expected a decimal integer"},
        {"[model]\nnum-layers = 3 # three\n",
         "expected a decimal integer, found '3 # three'; a comment needs a line of its own"},
        {"[grpo]\neps-clip = 0.2 ; usual\n",
         "expected a decimal number, found '0.2 ; usual'; a comment needs a line of its own"},
        {"[model]\nnum-layers = -\n", "expected a decimal integer"},
        {"[model]\nnum-layers = +-3\n", "expected a decimal integer"},
        {"[model]\nnum-layers = 3\xC2\xA0\n", "expected a decimal integer"},
        {"[engine]\nseed = 9223372036854775808\n",
         "expected an integer from -9223372036854775808 to 9223372036854775807"},
        {"[engine]\nseed = -9223372036854775809\n", "expected an integer from"},
        {"[engine]\nseed = 99999999999999999999999999999999\n", "expected an integer from"},
        {"[grpo]\neps-clip = nan\n", "r.ini:2: eps-clip: expected a decimal number, found 'nan'"},
        {"[grpo]\neps-clip = inf\n", "expected a decimal number"},
        {"[grpo]\neps-clip = -Infinity\n", "expected a decimal number"},
        {"[grpo]\neps-clip = 0x1p-3\n", "expected a decimal number"},
        {"[grpo]\neps-clip = 0,2\n", "expected a decimal number"},
        {"[grpo]\neps-clip = .\n", "expected a decimal number"},
        {"[grpo]\neps-clip = e5\n", "expected a decimal number"},
        {"[grpo]\neps-clip = 1e\n", "expected a decimal number"},
        {"[grpo]\neps-clip = 1e+\n", "expected a decimal number"},
        {"[grpo]\neps-clip = 1.2.3\n", "expected a decimal number"},
        {"[grpo]\neps-clip = 1 2\n", "expected a decimal number"},
        {"[grpo]\neps-clip =\n", "expected a decimal number"},
        {"[grpo]\neps-clip = 1e999\n", "r.ini:2: eps-clip: the number is too large for a double"},
        {"[grpo]\neps-clip = -1e999\n", "too large"},
        {"[grpo]\neps-clip = 1e-999\n", "r.ini:2: eps-clip: the number is too small for a double"},
        {"[grpo]\neps-clip = 2e300\n", "expected a number from -1e+300 to 1e+300, found 2e+300"},
        {"[model]\nmodel-name = a\tb\n", "r.ini:2: model-name: the value has byte 0x09"},
        {"[model]\nmodel-name = a\t# b\n",
         "has byte 0x09, a control character or not UTF-8; a comment needs a line of its own"},
        {"[model]\nmodel-name = a\x1B[31m\n", "r.ini:2: model-name: the value has byte 0x1b"},
        {"[model]\nmodel-name = a\x7F\n", "byte 0x7f"},
        {"[model]\nmodel-name = a\rb\n", "byte 0x0d"},
        {"[model]\nmodel-name = a\r", "byte 0x0d"},                // CR alone ends no line
        {"[model]\nmodel-name = \xC3\n", "byte 0xc3"},             // truncated
        {"[model]\nmodel-name = \xC3 x\n", "byte 0xc3"},           // not continued
        {"[model]\nmodel-name = \x80\n", "byte 0x80"},             // a continuation alone
        {"[model]\nmodel-name = \xC0\xAF\n", "byte 0xc0"},         // overlong
        {"[model]\nmodel-name = \xE0\x80\xAF\n", "byte 0xe0"},     // overlong
        {"[model]\nmodel-name = \xED\xA0\x80\n", "byte 0xed"},     // a surrogate
        {"[model]\nmodel-name = \xF4\x90\x80\x80\n", "byte 0xf4"}, // beyond U+10FFFF
        {"[model]\nmodel-name = \xFF\n", "byte 0xff"},
        {"[model]\nmodel-name = \xC2\x85\n", "byte 0xc2"}, // a control character of Unicode
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_rejected(cases[i][0], cases[i][1]);
}

static void test_base_recipe__rejects_nul_bytes(void **state)
{
    static const char value[] = "[model]\nmodel-name = a\0b\n", line[] = "[model]\n\0\n";

    (void)state;
    assert_rejected_bytes(value, sizeof value - 1, "r.ini:2: model-name: the value has byte 0x00");
    assert_rejected_bytes(line, sizeof line - 1, "r.ini:2: neither [section] nor key = value");
}

static void test_base_recipe__rejects_names_beyond_the_limit(void **state)
{
    char text[200] = "[model]\n", section[200] = "[";

    (void)state;
    memset(text + 8, 'k', INVAR_RECIPE_MAX_NAME);
    memcpy(text + 8 + INVAR_RECIPE_MAX_NAME, " = 1\n", 6);
    assert_rejected(text, "r.ini:2: unknown key 'kkk");
    text[8 + INVAR_RECIPE_MAX_NAME] = 'k';
    assert_rejected(text, "r.ini:2: a key is made of letters, digits, - and _, at most 63: 'kkk");
    memset(section + 1, 's', INVAR_RECIPE_MAX_NAME + 1);
    memcpy(section + 2 + INVAR_RECIPE_MAX_NAME, "]\n", 3);
    assert_rejected(section, "r.ini:1: a section's name");
}

static void test_base_recipe__messages_are_one_clean_line(void **state)
{
    static const char text[] =
        "[model]\nnum-layers = \xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4"
        "\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4"
        "\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4"
        "\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\n";
    invar_recipe *recipe = new_recipe();
    char path[2000];

    (void)state;
    assert_rejected(text, "\xC3\xA4\xC3\xA4...'"); // cut between characters
    assert_rejected("[mo\x1B]\n", "'[mo?]'");
    memset(path, 'p', sizeof path);
    memcpy(path + sizeof path - 16, "/qui\nckstart.ini", 16);
    path[sizeof path - 1] = '\0';
    assert_fails(invar_recipe_parse(recipe, path, "x", 1), INVAR_E_INVALID, "/qui?ckstart.in:1: ");
    assert_memory_equal(invar_error_last()->message, "...ppp", 6);
    assert_true(strlen(invar_error_last()->message) < INVAR_ERROR_MESSAGE_SIZE - 1);
    invar_recipe_free(recipe);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void write_file(char *path, size_t bytes, const char *head)
{
    int fd = mkstemp(path);
    FILE *stream = fdopen(fd, "wb");

    assert_non_null(stream);
    fputs(head, stream);
    for (size_t i = strlen(head); i < bytes; i++)
        fputc('\n', stream);
    assert_int_equal(fclose(stream), 0);
}

static void test_base_recipe__reads_a_file_up_to_the_limit(void **state)
{
    char fits[] = INVAR_TEST_WORK "/recipe-XXXXXX", large[] = INVAR_TEST_WORK "/recipe-XXXXXX";
    invar_recipe *recipe = new_recipe();

    (void)state;
    write_file(fits, INVAR_RECIPE_MAX_BYTES, "[model]\nmodel-name = from a file\n");
    assert_ok(invar_recipe_read(recipe, fits));
    assert_string_equal(invar_recipe_string(recipe, NAME), "from a file");
    invar_recipe_free(recipe);
    recipe = new_recipe();
    write_file(large, INVAR_RECIPE_MAX_BYTES + 1, "[model]\n");
    assert_fails(invar_recipe_read(recipe, large), INVAR_E_INVALID,
                 ":1: the file is larger than 1048576 bytes");
    invar_recipe_free(recipe);
    assert_int_equal(unlink(fits) | unlink(large), 0);
}

static void test_base_recipe__rejects_what_is_not_a_file(void **state)
{
    invar_recipe *recipe = new_recipe();

    (void)state;
    assert_fails(invar_recipe_read(recipe, INVAR_TEST_WORK "/missing.ini"), INVAR_E_IO,
                 "missing.ini: cannot be opened: ");
    assert_int_equal(invar_error_last()->native, ENOENT);
    assert_fails(invar_recipe_read(recipe, INVAR_TEST_WORK), INVAR_E_IO, ": cannot be read: ");
    assert_int_equal(invar_error_last()->native, EISDIR);
    assert_fails(invar_recipe_read(recipe, "/dev/zero"), INVAR_E_INVALID,
                 "/dev/zero:1: the file is larger");
    invar_recipe_free(recipe);
}

/* ---- flags ----------------------------------------------------------------------------------- */

static void test_base_recipe__flags_override_the_file(void **state)
{
    invar_recipe *recipe = parse_recipe("[model]\nmodel-name = a\nnum-layers = 7\n");
    invar_recipe_entry entry;

    (void)state;
    assert_ok(invar_recipe_set(recipe, "num-layers", "9", "--num-layers"));
    assert_ok(invar_recipe_set(recipe, "prompt-data", "", "--prompt-data"));
    assert_int_equal(invar_recipe_int(recipe, LAYERS), 9);
    invar_recipe_entry_get(&entry, recipe, LAYERS);
    assert_int_equal(entry.source, INVAR_RECIPE_SOURCE_FLAG);
    assert_string_equal(entry.origin, "--num-layers");
    assert_string_equal(entry.text, "9");
    invar_recipe_free(recipe);
}

static void test_base_recipe__reset_discards_flags(void **state)
{
    invar_recipe *recipe;
    invar_recipe_entry entry;

    (void)state;
    assert_ok(invar_recipe_new(&recipe, &schema));
    for (int i = 0; i < 2; i++) {
        assert_ok(invar_recipe_set(recipe, "num-layers", "9", "--num-layers"));
        assert_ok(invar_recipe_set(recipe, "model-name", "a", "--model-name"));
        assert_ok(invar_recipe_reset(recipe));
        invar_recipe_entry_get(&entry, recipe, LAYERS);
        assert_int_equal(entry.source, INVAR_RECIPE_SOURCE_DEFAULT);
        assert_string_equal(entry.text, entry.key->default_text);
    }
    // a key without a default has no value again
    assert_fails(invar_recipe_check(recipe), INVAR_E_INVALID, "'model-name'");
    invar_recipe_free(recipe);
}

static void test_base_recipe__rejects_bad_flags_and_keeps_the_value(void **state)
{
    invar_recipe *recipe = parse_recipe("[model]\nmodel-name = a\nnum-layers = 7\n");
    static char text[INVAR_RECIPE_MAX_LINE + 2];

    (void)state;
    assert_fails(invar_recipe_set(recipe, "num-layers", "many", "--num-layers"), INVAR_E_INVALID,
                 "--num-layers: expected a decimal integer, found 'many'");
    assert_int_equal(invar_recipe_int(recipe, LAYERS), 7);
    assert_fails(invar_recipe_set(recipe, "num-layer", "8", "--num-layer"), INVAR_E_INVALID,
                 "--num-layer: unknown key 'num-layer' (did you mean 'num-layers'?)");
    assert_fails(invar_recipe_set(recipe, "kl-loss", "8", "--kl-loss"), INVAR_E_INVALID,
                 "unknown key 'kl-loss' (gone: use use-kl-loss)");
    assert_fails(invar_recipe_set(recipe, "", "8", "--"), INVAR_E_INVALID, "--: unknown key ''");
    assert_fails(invar_recipe_set(recipe, "a b", "8", "--a b"), INVAR_E_INVALID,
                 "unknown key 'a b'");
    assert_fails(invar_recipe_set(recipe, "model-name", "a\nb", "--model-name"), INVAR_E_INVALID,
                 "--model-name: the value has byte 0x0a");
    assert_fails(invar_recipe_set(recipe, "model-name", " a", "--model-name"), INVAR_E_INVALID,
                 "begins or ends with a space");
    assert_fails(invar_recipe_set(recipe, "model-name", "a ", "--model-name"), INVAR_E_INVALID,
                 "begins or ends with a space");
    memset(text, 'x', sizeof text - 1);
    assert_fails(invar_recipe_set(recipe, "model-name", text, "--model-name"), INVAR_E_INVALID,
                 "--model-name: the value is longer than 65536 bytes");
    assert_fails(invar_recipe_set(recipe, text, "1", text), INVAR_E_INVALID, "xxx...");
    assert_string_equal(invar_recipe_string(recipe, NAME), "a");
    assert_ok(invar_recipe_set(recipe, "num-layers", "8", "--num-layers"));
    assert_fails(invar_recipe_set(recipe, "num-layers", "8", "-L"), INVAR_E_INVALID,
                 "-L: the key 'num-layers' is already set by --num-layers");
    invar_recipe_free(recipe);
}

static void test_base_recipe__file_comes_once_and_first(void **state)
{
    invar_recipe *recipe = parse_recipe("");

    (void)state;
    assert_fails(invar_recipe_parse(recipe, "r.ini", "", 0), INVAR_E_STATE,
                 "once, before all flags");
    invar_recipe_free(recipe);
    recipe = new_recipe();
    assert_ok(invar_recipe_set(recipe, "seed", "1", "--seed"));
    assert_fails(invar_recipe_parse(recipe, "r.ini", "", 0), INVAR_E_STATE,
                 "once, before all flags");
    invar_recipe_free(recipe);
}

static void test_base_recipe__check_names_the_missing_key(void **state)
{
    invar_recipe *recipe = parse_recipe("[model]\n");

    (void)state;
    assert_fails(invar_recipe_check(recipe), INVAR_E_INVALID,
                 "r.ini: key 'model-name' in [model] is missing (the model's name)");
    assert_ok(invar_recipe_set(recipe, "model-name", "a", "--model-name"));
    assert_ok(invar_recipe_check(recipe));
    invar_recipe_free(recipe);
}

/* ---- listing and identity -------------------------------------------------------------------- */

static void test_base_recipe__lists_values_with_origin(void **state)
{
    invar_recipe *recipe =
        parse_recipe("[model]\n\nnum-layers = +007\n[grpo]\neps-clip = 2.50e0\n");
    invar_recipe_entry entry;

    (void)state;
    invar_recipe_entry_get(&entry, recipe, NAME);
    assert_int_equal(entry.source, INVAR_RECIPE_SOURCE_NONE);
    assert_string_equal(entry.origin, "");
    assert_null(entry.text);
    invar_recipe_entry_get(&entry, recipe, LAYERS);
    assert_int_equal(entry.source, INVAR_RECIPE_SOURCE_FILE);
    assert_string_equal(entry.origin, "r.ini:3");
    assert_string_equal(entry.text, "7");
    assert_ptr_equal(entry.key, &keys[LAYERS]);
    invar_recipe_entry_get(&entry, recipe, EPS_CLIP);
    assert_string_equal(entry.origin, "r.ini:5");
    assert_string_equal(entry.text, "2.5");
    invar_recipe_entry_get(&entry, recipe, THREADS);
    assert_int_equal(entry.source, INVAR_RECIPE_SOURCE_DEFAULT);
    assert_string_equal(entry.origin, "default");
    assert_string_equal(entry.text, "1");
    assert_int_equal(invar_recipe_find(&schema, "threads"), THREADS);
    assert_int_equal(invar_recipe_find(&schema, "thread"), -1);
    invar_recipe_free(recipe);
}

static void get_canonical(char *out, size_t size, const char *text)
{
    invar_recipe *recipe = parse_recipe(text);

    test_canonical_recipe(out, size, recipe, &schema);
    invar_recipe_free(recipe);
}

static void test_base_recipe__canonical_text_depends_on_meaning_only(void **state)
{
    char first[1024], second[1024];

    (void)state;
    get_canonical(first, sizeof first,
                  "[model]\nmodel-name = a = # b\n[grpo]\neps-clip = 0.10\nuse-kl-loss = true\n");
    assert_string_equal(first, "[model]\nmodel-name = a = # b\nnum-layers = 4\n"
                               "[grpo]\nadvantage-estimator = grpo\nuse-kl-loss = true\n"
                               "eps-clip = 0.1\n"
                               "[engine]\nseed = 0\nprompt-data = \n");
    // another order and spelling, an explicit default and a free key
    get_canonical(second, sizeof second,
                  "; x\r\n[engine]\r\nthreads = 8\r\nseed = +0\r\n[grpo]\r\nuse-kl-loss=true\r\n"
                  "eps-clip = 1e-1\r\n[model]\r\nnum-layers=04\r\nmodel-name=a = # b\r\n");
    assert_string_equal(second, first);
    get_canonical(second, sizeof second, first); // the canonical text is a recipe
    assert_string_equal(second, first);
    get_canonical(second, sizeof second, "[model]\nmodel-name = a = # c\n");
    assert_string_not_equal(second, first);
}

static void test_base_recipe__later_key_is_canonical_if_not_default(void **state)
{
    char without[1024], with[1024];

    (void)state;
    get_canonical(without, sizeof without, "[model]\nmodel-name = a\n");
    assert_null(strstr(without, "late"));
    get_canonical(with, sizeof with, "[model]\nmodel-name = a\n[engine]\nlate = 5e-1\n");
    assert_string_equal(with, without); // explicit default, in another spelling
    get_canonical(with, sizeof with, "[model]\nmodel-name = a\n[engine]\nlate = 0.25\n");
    assert_int_equal(strncmp(with, without, strlen(without)), 0);
    assert_string_equal(with + strlen(without), "late = 0.25\n");
}

static void test_base_recipe__canonical_text_may_be_empty(void **state)
{
    static const invar_recipe_key key = {.section = "s",
                                         .name = "k",
                                         .type = INVAR_RECIPE_TYPE_BOOL,
                                         .effect = INVAR_RECIPE_EFFECT_FREE,
                                         .default_text = "true",
                                         .doc = "d"};
    static const invar_recipe_schema free_only = {.keys = &key, .count = 1};
    invar_recipe *recipe;
    char text[16];

    (void)state;
    assert_ok(invar_recipe_new(&recipe, &free_only));
    assert_int_equal(test_canonical_recipe(text, sizeof text, recipe, &free_only), 0);
    assert_string_equal(text, "");
    invar_recipe_free(recipe);
}

/* ---- floats ---------------------------------------------------------------------------------- */

static void assert_float(const char *text, double expected, const char *canonical)
{
    invar_recipe *recipe = new_recipe();
    invar_recipe_entry entry;
    double got;

    assert_ok(invar_recipe_set(recipe, "eps-clip", text, "--eps-clip"));
    got = invar_recipe_float(recipe, EPS_CLIP);
    if (memcmp(&got, &expected, sizeof got) != 0)
        fail_msg("%s: got %a, expected %a", text, got, expected);
    invar_recipe_entry_get(&entry, recipe, EPS_CLIP);
    assert_string_equal(entry.text, canonical);
    invar_recipe_free(recipe);
}

static void check_floats(void)
{
    assert_float("0", 0.0, "0");
    assert_float("-0.0e5", -0.0, "-0");
    assert_float("+1", 1.0, "1");
    assert_float(".5", 0.5, "0.5");
    assert_float("5.", 5.0, "5");
    assert_float("1E-6", 1e-6, "1e-06");
    assert_float("0.1", 0x1.999999999999ap-4, "0.1");
    assert_float("0.30000000000000004", 0x1.3333333333334p-2, "0.30000000000000004");
    assert_float("9007199254740993", 0x1p53, "9007199254740992"); // halfway: to even
    assert_float("9007199254740993.00000000000000000000001", 0x1.0000000000001p53,
                 "9007199254740994"); // just above halfway
    assert_float("2.2250738585072011e-308", 0x0.fffffffffffffp-1022, "2.225073858507201e-308");
    assert_float("4.9e-324", 0x1p-1074, "5e-324");
    assert_float("123456.789", 123456.789, "123456.789");
}

static void test_base_recipe__floats_are_exact(void **state)
{
    (void)state;
    check_floats();
}

/*
 * Floats do not depend on the locale. The test uses a locale with a decimal comma and is skipped if
 * none is installed; LOCPATH allows one without root: localedef -i de_DE -f UTF-8
 * $LOCPATH/de_DE.UTF-8.
 */
static void test_base_recipe__floats_ignore_the_locale(void **state)
{
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "ru_RU.UTF-8"};
    locale_t before = uselocale((locale_t)0), comma = (locale_t)0;
    char text[8];

    (void)state;
    for (size_t i = 0; i < 3 && !comma; i++)
        comma = newlocale(LC_ALL_MASK, names[i], (locale_t)0);
    if (!comma)
        skip();
    uselocale(comma);
    snprintf(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0,5"); // the locale is in effect
    check_floats();
    uselocale(before);
    freelocale(comma);
}

static void test_base_recipe__floats_round_trip(void **state)
{
    int64_t count = invar_test_count(2000, 200000);
    char text[40];

    (void)state;
    for (int64_t i = 0; i < count; i++) {
        uint64_t n = (uint64_t)i, bits = (uint64_t)invar_test_random(1, 2 * n) << 32 |
                                         invar_test_random(1, 2 * n + 1);
        invar_recipe *recipe;
        invar_recipe_entry entry;
        double number;

        memcpy(&number, &bits, sizeof number);
        if (!isfinite(number) || fabs(number) > 1e300)
            continue;
        recipe = new_recipe();
        snprintf(text, sizeof text, "%.17g", number);
        assert_ok(invar_recipe_set(recipe, "eps-clip", text, "--eps-clip"));
        assert_true(invar_recipe_float(recipe, EPS_CLIP) == number);
        invar_recipe_entry_get(&entry, recipe, EPS_CLIP);
        assert_true(strtod(entry.text, NULL) == number);
        invar_recipe_free(recipe);
    }
}

/* ---- programming errors ---------------------------------------------------------------------- */

static void get_wrong_type(const invar_recipe *recipe)
{
    (void)invar_recipe_int(recipe, USE_KL);
}

static void get_missing_value(const invar_recipe *recipe)
{
    (void)invar_recipe_string(recipe, NAME);
}

static void get_beyond_the_schema(const invar_recipe *recipe)
{
    (void)invar_recipe_int(recipe, KEY_COUNT);
}

static void test_base_recipe__wrong_access_aborts(void **state)
{
    void (*const cases[])(const invar_recipe *) = {get_wrong_type, get_missing_value,
                                                   get_beyond_the_schema};
    invar_recipe *recipe = parse_recipe("");

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int result;
        pid_t child = fork();

        assert_true(child >= 0);
        if (child == 0) {
            close(STDERR_FILENO);
            cases[i](recipe);
            _exit(0);
        }
        assert_int_equal(waitpid(child, &result, 0), child);
        assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT);
    }
    invar_recipe_free(recipe);
}

/* ---- schemas --------------------------------------------------------------------------------- */

static void test_base_recipe__rejects_a_wrong_schema(void **state)
{
    static const invar_recipe_key good = {.section = "s",
                                          .name = "a",
                                          .type = INVAR_RECIPE_TYPE_INT,
                                          .default_text = "1",
                                          .doc = "d"};
    static const struct {
        invar_recipe_key second;
        const char *message;
    } cases[] = {
        {{.section = "s", .name = "a", .default_text = "true", .doc = "d"}, "two keys 'a'"},
        {{.section = "s", .name = "b c", .default_text = "true", .doc = "d"},
         "is not a valid name"},
        {{.section = "", .name = "b", .default_text = "true", .doc = "d"}, "is not a valid name"},
        {{.section = "s", .name = "b", .default_text = "yes", .doc = "d"},
         "recipe schema: b: expected true or false"},
        {{.section = "s", .name = "b", .default_text = "true"}, "'b' lacks its doc"},
        {{.section = "s", .name = "b", .effect = INVAR_RECIPE_EFFECT_SEMANTIC_IF_SET, .doc = "d"},
         "'b' came later and has no default"},
        {{.section = "s",
          .name = "b",
          .type = INVAR_RECIPE_TYPE_ENUM,
          .default_text = "x",
          .doc = "d"},
         "'b' lacks its doc or its choices"},
        {{.section = "s",
          .name = "b",
          .type = INVAR_RECIPE_TYPE_INT,
          .default_text = "9",
          .int_min = 1,
          .int_max = 3,
          .doc = "d"},
         "recipe schema: b: expected an integer from 1 to 3"},
    };
    invar_recipe_key table[3] = {good, good, good};
    invar_recipe *recipe;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        table[1] = cases[i].second;
        assert_fails(invar_recipe_new(&recipe, &(invar_recipe_schema){.keys = table, .count = 2}),
                     INVAR_E_INVALID, cases[i].message);
        assert_null(recipe);
    }
    table[1].section = "other";
    table[1].name = "b";
    table[1].type = INVAR_RECIPE_TYPE_STRING;
    table[1].default_text = "";
    table[1].doc = "d";
    table[2].name = "c";
    assert_fails(invar_recipe_new(&recipe, &(invar_recipe_schema){.keys = table, .count = 3}),
                 INVAR_E_INVALID, "'c' stands apart from [s]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_recipe__defaults_are_typed),
        cmocka_unit_test(test_base_recipe__reads_every_type),
        cmocka_unit_test(test_base_recipe__accepts_crlf),
        cmocka_unit_test(test_base_recipe__accepts_values_up_to_the_line_limit),
        cmocka_unit_test(test_base_recipe__rejects_bad_lines),
        cmocka_unit_test(test_base_recipe__quotes_no_secret),
        cmocka_unit_test(test_base_recipe__suggests_the_nearest_name),
        cmocka_unit_test(test_base_recipe__rejects_bad_values),
        cmocka_unit_test(test_base_recipe__rejects_nul_bytes),
        cmocka_unit_test(test_base_recipe__rejects_names_beyond_the_limit),
        cmocka_unit_test(test_base_recipe__messages_are_one_clean_line),
        cmocka_unit_test(test_base_recipe__reads_a_file_up_to_the_limit),
        cmocka_unit_test(test_base_recipe__rejects_what_is_not_a_file),
        cmocka_unit_test(test_base_recipe__flags_override_the_file),
        cmocka_unit_test(test_base_recipe__reset_discards_flags),
        cmocka_unit_test(test_base_recipe__rejects_bad_flags_and_keeps_the_value),
        cmocka_unit_test(test_base_recipe__file_comes_once_and_first),
        cmocka_unit_test(test_base_recipe__check_names_the_missing_key),
        cmocka_unit_test(test_base_recipe__lists_values_with_origin),
        cmocka_unit_test(test_base_recipe__canonical_text_depends_on_meaning_only),
        cmocka_unit_test(test_base_recipe__later_key_is_canonical_if_not_default),
        cmocka_unit_test(test_base_recipe__canonical_text_may_be_empty),
        cmocka_unit_test(test_base_recipe__floats_are_exact),
        cmocka_unit_test(test_base_recipe__floats_ignore_the_locale),
        cmocka_unit_test(test_base_recipe__floats_round_trip),
        cmocka_unit_test(test_base_recipe__wrong_access_aborts),
        cmocka_unit_test(test_base_recipe__rejects_a_wrong_schema),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
