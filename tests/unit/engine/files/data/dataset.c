/*
 * dataset.c - tests of data sets: lines, labels, slices, gzip, the hash and the order of prompts.
 *
 * Shuffled orders are compared with shuffle.txt, which an independent program computed
 * (shuffle.py). Equal data in another file must have the same hash. Control: data that differ in
 * one value, order, label or field must have another one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/data/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/unit/engine/files/data/options.h"
#include "tests/unit/engine/files/data/parsed.h"

#define ALPHABET "abcdefghijklmnopqrstuvwxyz0123456789 ,.:=<>|_"
#define SCRATCH INVAR_TEST_WORK "/engine_dataset"

static int open_tokenizer(void **state)
{
    (void)state;
    if (invar_held_folder_make(SCRATCH) != INVAR_OK)
        return -1;
    return invar_tokenizer_alphabet(&tokenizer, ALPHABET) == INVAR_OK ? 0 : -1;
}

static int close_tokenizer(void **state)
{
    (void)state;
    invar_tokenizer_free(tokenizer);
    return invar_held_folder_remove(SCRATCH) == INVAR_OK ? 0 : -1;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void test_dataset__reads_lines(void **state)
{
    invar_dataset_options options = dataset_options("d.jsonl", "");
    invar_dataset *dataset;
    const invar_prompt *p;
    invar_digest hash;
    (void)state;

    options.label_key = "label";
    dataset =
        parse_dataset(&options, "{\"input\": \"ab=\", \"label\": \"x y\", \"more\": [1]}\r\n"
                                "{\"label\": 7, \"input\": \"c\", \"metadata\": {\"b\": 1, \"a\": "
                                "[true, 0.5]}}\n\n \n");
    assert_int_equal(invar_dataset_size(dataset), 2);
    assert_int_equal(invar_dataset_dropped_count(dataset), 0);
    p = invar_dataset_prompt(dataset, 0);
    assert_int_equal(p->line, 0);
    assert_string_equal(p->text, "ab=");
    assert_string_equal(p->label, "x y");
    assert_string_equal(p->metadata, "{}");
    assert_int_equal(p->n_tokens, 3);
    assert_true(p->tokens[0] == 0 && p->tokens[1] == 1 && p->tokens[2] == 40);
    invar_hash_bytes(&hash, p->tokens, 12);
    assert_true(invar_digest_equal(&hash, &p->hash));
    assert_null(p->answer);
    assert_null(p->answer_mask);
    assert_int_equal(p->n_answer, 0);
    p = invar_dataset_prompt(dataset, 1);
    assert_int_equal(p->line, 1);
    assert_string_equal(p->label, "7");
    assert_string_equal(p->metadata, "{\"a\":[true,0.5],\"b\":1}");
    invar_dataset_close(dataset);
    invar_dataset_close(NULL);
}

static void test_dataset__labels_are_text(void **state)
{
    static const char *const cases[][2] = {
        {"\"\"", ""},
        {"\" a \"", " a "},
        {"-12", "-12"},
        {"60.0", "60"},
        {"-0.0", "0"},
        {"0.1", "0.1"},
        {"1e3", "1000"},
        {"1e300", "1e+300"},
        {"2.50", "2.5"},
        {"true", "true"},
        {"false", "false"},
        {"\"\\u00e4\"", "\xC3\xA4"},
        {"1e-5", "1e-05"},
        {"9223372036854775807", "9223372036854775807"},
        {"-9223372036854775809", "-9223372036854775809"},
        {"1000000000000000019884624838657", "1000000000000000019884624838657"},
    };
    invar_dataset_options options = dataset_options("d.jsonl", "");
    (void)state;

    options.label_key = "l";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        invar_dataset *dataset;

        snprintf(text, sizeof text, "{\"n\": 18446744073709551616, \"input\": \"a\", \"l\": %s}",
                 cases[i][0]);
        dataset = parse_dataset(&options, text);
        assert_string_equal(invar_dataset_prompt(dataset, 0)->label, cases[i][1]);
        invar_dataset_close(dataset);
    }
}

static void test_dataset__refuses_bad_lines(void **state)
{
    static const char *const cases[][2] = {
        {"", "d.jsonl: it is empty; add at least one line"},
        {" \n\n", "it is empty"},
        {"{\"input\": \"a\"}\n{\"input\": \"a\"", "d.jsonl:2: "},
        {"{\"input\": \"a\"}\n\n{\"input\": \"a\"}\n", "d.jsonl:2: "},
        {"{\"input\": \"a\"}\n[]\n", "d.jsonl:2: the line is not a JSON object"},
        {"{\"input\": \"a\"}\n{\"inputs\": \"a\"}", "d.jsonl:2: \"input\" is missing"},
        {"{\"input\": 5}", "d.jsonl:1: \"input\" is neither a string nor a list"},
        {"{\"input\": null}", "\"input\" is neither"},
        {"{\"input\": \"\"}", "d.jsonl:1: the prompt is empty"},
        {"{\"input\": [{\"role\": \"user\"}]}", "\"input\" is a list of messages: set "},
        {"{\"input\": \"a\", \"input\": \"b\"}", "d.jsonl:1: "},
        {"{\"input\": \"a\", \"metadata\": 5}", "\"metadata\" is not an object"},
        {"{\"input\": \"A\"}", "d.jsonl:1: byte 0 of the text"},
        {"{\"input\": \"\xFF\"}", "d.jsonl:1: "},
        {"{\"input\": \"a\\u0000b\"}", "d.jsonl:1: "},
        {"\xEF\xBB\xBF{\"input\": \"a\"}", "d.jsonl:1: "},
        {"{\"input\": \"a\", \"x\": 1e999}", "d.jsonl:1: "},
        {"{\"input\": \"a\"} {\"input\": \"b\"}", "d.jsonl:1: "},
    };
    invar_dataset_options options = dataset_options("d.jsonl", "");
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_rejected(&options, cases[i][0], cases[i][1]);
    options.label_key = "l";
    assert_rejected(&options, "{\"input\": \"a\"}", "d.jsonl:1: \"l\" is missing (label-key)");
    assert_rejected(&options, "{\"input\": \"a\", \"l\": null}", "\"l\" is no label");
    assert_rejected(&options, "{\"input\": \"a\", \"l\": [1]}", "\"l\" is no label");
    assert_rejected(&options, "{\"input\": \"a\", \"l\": {}}", "\"l\" is no label");
}

static void test_dataset__drops_long_prompts(void **state)
{
    static const char text[] = "{\"input\": \"abcd\"}\n{\"input\": \"ab\"}\n{\"input\": \"abc\"}\n";
    invar_dataset_options options = dataset_options("d.jsonl", "");
    invar_dataset *dataset;
    (void)state;

    options.max_prompt_tokens = 3;
    dataset = parse_dataset(&options, text);
    assert_int_equal(invar_dataset_size(dataset), 2);
    assert_int_equal(invar_dataset_dropped_count(dataset), 1);
    assert_int_equal(invar_dataset_prompt(dataset, 0)->line, 1);
    assert_int_equal(invar_dataset_prompt(dataset, 1)->line, 2);
    invar_dataset_close(dataset);
    options.max_prompt_tokens = 1;
    assert_rejected(&options, text, "no prompt is left: all 3 are longer");
}

static void test_dataset__sft_without_template(void **state)
{
    static const int32_t expected[] = {23, 24, 45};
    invar_dataset_options options = dataset_options("d.jsonl", "");
    invar_dataset *dataset;
    const invar_prompt *p;
    (void)state;

    options.sft = true;
    assert_rejected(&options, "{\"input\": \"a\"}", "sft_loss needs answers");
    options.label_key = "l";
    options.max_total_tokens = 5;
    dataset = parse_dataset(&options, "{\"input\": \"a=\", \"l\": \"xy\"}\n"
                                      "{\"input\": \"a=\", \"l\": \"xyz\"}\n"
                                      "{\"input\": \"a=\", \"l\": \"\"}\n");
    assert_int_equal(invar_dataset_size(dataset), 2);
    assert_int_equal(invar_dataset_dropped_count(dataset), 1);
    p = invar_dataset_prompt(dataset, 0);
    assert_int_equal(p->n_tokens, 2);
    assert_int_equal(p->n_answer, 3);
    assert_memory_equal(p->answer, expected, sizeof expected);
    assert_memory_equal(p->answer_mask, "\1\1\1", 3);
    assert_int_equal(invar_dataset_prompt(dataset, 1)->n_answer, 1);
    invar_dataset_close(dataset);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void test_dataset__slices(void **state)
{
    static const struct {
        const char *slice, *lines; /* line numbers, as range(5)[...] of Python; NULL if empty */
    } cases[] = {
        {"", "01234"},      {"@[:]", "01234"}, {"@[0:2]", "01"},   {"@[2:]", "234"},
        {"@[:-1]", "0123"}, {"@[-2:]", "34"},  {"@[-9:2]", "01"},  {"@[3:99]", "34"},
        {"@[-3:-1]", "23"}, {"@[4:5]", "4"},   {"@[2:2]", NULL},   {"@[3:1]", NULL},
        {"@[5:]", NULL},    {"@[:0]", NULL},   {"@[-1:-2]", NULL},
    };
    static const char *const invalid[] = {
        "@[1]", "@[1:2:3]", "@[a:b]", "@[1:2x]", "@[-:2]", "@[ 1:2]", "@[1:9999999999999999999]"};
    static const char text[] = "{\"input\": \"a\"}\n{\"input\": \"b\"}\n{\"input\": \"c\"}\n"
                               "{\"input\": \"d\"}\n{\"input\": \"e\"}\n";
    invar_dataset_options options = dataset_options("d.jsonl", "");
    invar_dataset *dataset;
    char path[512];
    (void)state;

    assert_ok(invar_file_write(SCRATCH "/five.jsonl", text, sizeof text - 1));
    options.path = path;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(path, sizeof path, SCRATCH "/five.jsonl%s", cases[i].slice);
        if (!cases[i].lines) {
            assert_fails(invar_dataset_open(&dataset, &options, tokenizer), INVAR_E_INVALID,
                         "the slice takes none of its 5 lines");
            continue;
        }
        assert_ok(invar_dataset_open(&dataset, &options, tokenizer));
        assert_int_equal(invar_dataset_size(dataset), strlen(cases[i].lines));
        for (int64_t j = 0; j < invar_dataset_size(dataset); j++) {
            const invar_prompt *p = invar_dataset_prompt(dataset, j);
            assert_int_equal(p->line, cases[i].lines[j] - '0');
            assert_int_equal(p->text[0], 'a' + p->line);
        }
        invar_dataset_close(dataset);
    }
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        snprintf(path, sizeof path, SCRATCH "/five.jsonl%s", invalid[i]);
        assert_fails(invar_dataset_open(&dataset, &options, tokenizer), INVAR_E_INVALID,
                     "expected a slice of lines");
    }
}

/* Compressed files are detected by their contents and give the same hash. */
static void test_dataset__gzip_is_the_same_data(void **state)
{
    // two gzip members: {"input": "a"} and {"input": "b"}, each with a newline
    static const char packed[] =
        "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xab\x56\xca\xcc\x2b\x28\x2d\x51\xb2\x52"
        "\x50\x4a\x54\xaa\xe5\x02\x00\xbe\x28\x83\xe1\x0f\x00\x00\x00\x1f\x8b\x08\x00\x00"
        "\x00\x00\x00\x02\xff\xab\x56\xca\xcc\x2b\x28\x2d\x51\xb2\x52\x50\x4a\x52\xaa\xe5"
        "\x02\x00\x50\x87\x36\xf3\x0f\x00\x00\x00";
    invar_dataset_options options = dataset_options("d.jsonl", "");
    invar_dataset *dataset = parse_dataset(&options, "{\"input\": \"a\"}\n{\"input\": \"b\"}\n");
    invar_digest plain, expanded;
    (void)state;

    invar_dataset_hash(&plain, dataset);
    invar_dataset_close(dataset);
    assert_ok(invar_file_write(SCRATCH "/packed.jsonl", packed, sizeof packed - 1));
    options.path = SCRATCH "/packed.jsonl";
    assert_ok(invar_dataset_open(&dataset, &options, tokenizer));
    invar_dataset_hash(&expanded, dataset);
    assert_true(invar_digest_equal(&plain, &expanded));
    invar_dataset_close(dataset);
    options.path = SCRATCH "/packed.jsonl@[1:]";
    assert_ok(invar_dataset_open(&dataset, &options, tokenizer));
    assert_int_equal(invar_dataset_size(dataset), 1);
    assert_string_equal(invar_dataset_prompt(dataset, 0)->text, "b");
    invar_dataset_close(dataset);
    assert_ok(invar_file_write(SCRATCH "/packed.jsonl", packed, sizeof packed - 2));
    options.path = SCRATCH "/packed.jsonl";
    assert_fails(invar_dataset_open(&dataset, &options, tokenizer), INVAR_E_INVALID,
                 "packed.jsonl: the gzip data is damaged: it ends too early");
    assert_null(dataset);
}

/* Lines outside the slice are not parsed; line numbers in messages count from the file's first. */
static void test_dataset__reads_the_slice_only(void **state)
{
    static const char text[] = "rubbish\n{\"input\": \"b\"}\n{\"in\n";
    invar_dataset_options options = dataset_options("d.jsonl", "");
    invar_dataset *dataset;
    (void)state;

    assert_ok(invar_file_write(SCRATCH "/part.jsonl", text, sizeof text - 1));
    options.path = SCRATCH "/part.jsonl@[1:2]";
    assert_ok(invar_dataset_open(&dataset, &options, tokenizer));
    invar_dataset_close(dataset);
    options.path = SCRATCH "/part.jsonl@[1:]";
    assert_fails(invar_dataset_open(&dataset, &options, tokenizer), INVAR_E_INVALID,
                 "part.jsonl:3: ");
}

static void test_dataset__opens_files_and_tasks(void **state)
{
    invar_dataset_options options = dataset_options("d.jsonl", "");
    invar_tokenizer *digits;
    invar_dataset *dataset;
    invar_builtin_task_item item;
    (void)state;

    options.path = SCRATCH "/none.jsonl";
    assert_fails(invar_dataset_open(&dataset, &options, tokenizer), INVAR_E_NOTFOUND, "none.jsonl");
    assert_null(dataset);
    options.path = "task:max";
    assert_fails(invar_dataset_open(&dataset, &options, tokenizer), INVAR_E_INVALID, "task-size 0");
    options.task_size = 10;
    options.seed = 5;
    options.sft = true;
    assert_ok(invar_tokenizer_alphabet(&digits, invar_builtin_task_alphabet("max")));
    assert_ok(invar_dataset_open(&dataset, &options, digits));
    assert_int_equal(invar_dataset_size(dataset), 10);
    for (int64_t i = 0; i < 10; i++) {
        const invar_prompt *p = invar_dataset_prompt(dataset, i);
        assert_ok(invar_builtin_task_make(&item, "max", 5, (uint32_t)i));
        assert_string_equal(p->text, item.prompt);
        assert_string_equal(p->label, item.answer);
        assert_int_equal(p->line, i);
        assert_int_equal(p->n_tokens, 4);
        assert_int_equal(p->n_answer, 2);
        assert_int_equal(p->answer[0], item.answer[0] - '0');
        assert_int_equal(p->answer[1], 12);
    }
    invar_dataset_close(dataset);
    options.path = "task:mox";
    assert_fails(invar_dataset_open(&dataset, &options, digits), INVAR_E_NOTFOUND,
                 "there are last max");
    invar_tokenizer_free(digits);
}

/* ---- identity -------------------------------------------------------------------------------- */

static void hash_text(invar_digest *out, bool sft, const char *text)
{
    invar_dataset_options options = dataset_options("d.jsonl", "");
    invar_dataset *dataset;

    options.label_key = "l";
    options.sft = sft;
    dataset = parse_dataset(&options, text);
    invar_dataset_hash(out, dataset);
    invar_dataset_close(dataset);
}

static void test_dataset__hash(void **state)
{
    static const char *const others[] = {
        "{\"input\": \"b\", \"l\": 1}\n{\"input\": \"c\", \"l\": 2}",
        "{\"input\": \"a\", \"l\": 2}\n{\"input\": \"c\", \"l\": 2}",
        "{\"input\": \"c\", \"l\": 2}\n{\"input\": \"a\", \"l\": 1}",
        "{\"input\": \"a\", \"l\": 1}",
        "{\"input\": \"a\", \"l\": 1, \"metadata\": {\"x\": 1}}\n{\"input\": \"c\", \"l\": 2}",
        "{\"input\": \"a1\", \"l\": \"\"}\n{\"input\": \"c\", \"l\": 2}",
    };
    invar_digest base, other;
    (void)state;

    hash_text(&base, false, "{\"input\": \"a\", \"l\": 1}\n{\"input\": \"c\", \"l\": 2}");
    hash_text(&other, false,
              "{\"l\": \"1\", \"input\": \"a\"}\n{\"l\":2,\"input\":\"c\",\"y\":0}\n");
    assert_true(invar_digest_equal(&base, &other));
    hash_text(&other, true, "{\"input\": \"a\", \"l\": 1}\n{\"input\": \"c\", \"l\": 2}");
    assert_false(invar_digest_equal(&base, &other));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        hash_text(&other, false, others[i]);
        assert_false(invar_digest_equal(&base, &other));
    }
}

/* ---- order ----------------------------------------------------------------------------------- */

static void test_dataset__shuffle_matches_the_oracle(void **state)
{
    FILE *file = fopen(INVAR_TEST_DATA "/unit/engine/files/data/shuffle.txt", "r");
    static char line[16384];
    int32_t order[512];
    int seen = 0;
    (void)state;

    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        char *rest = line + sizeof "shuffle";
        long long seed, epoch, count;

        if (strncmp(line, "shuffle ", 8) != 0)
            continue;
        seed = strtoll(rest, &rest, 10);
        epoch = strtoll(rest, &rest, 10);
        count = strtoll(rest, &rest, 10);
        assert_true(count <= 512);
        invar_dataset_shuffle(order, count, (uint32_t)seed, epoch);
        for (int64_t i = 0; i < count; i++)
            assert_int_equal(order[i], strtoll(rest, &rest, 10));
        seen++;
    }
    fclose(file);
    assert_int_equal(seen, 7);
}

static void test_dataset__shuffle_is_a_permutation(void **state)
{
    const int64_t max_count = invar_test_count(300, 3000);
    static int32_t order[3000], other[3000];
    static bool present[3000];
    (void)state;

    for (int64_t count = 1; count < max_count; count += 1 + count / 7) {
        memset(present, 0, sizeof present);
        invar_dataset_shuffle(order, count, 42, 3);
        for (int64_t i = 0; i < count; i++) {
            assert_true(order[i] >= 0 && order[i] < count && !present[order[i]]);
            present[order[i]] = true;
        }
        invar_dataset_shuffle(other, count, 42, 4);
        assert_true(count < 8 || invar_bits_differ(order, other, (size_t)count * sizeof *order));
        invar_dataset_shuffle(other, count, 43, 3);
        assert_true(count < 8 || invar_bits_differ(order, other, (size_t)count * sizeof *order));
    }
}

/* Every item is equally likely at every position, to four standard deviations. */
static void test_dataset__shuffle_is_fair(void **state)
{
    const int64_t n_epochs = invar_test_count(7000, 700000);
    int64_t counts[7][7] = {{0}};
    int32_t order[7];
    double mean = (double)n_epochs / 7;
    (void)state;

    for (int64_t epoch = 0; epoch < n_epochs; epoch++) {
        invar_dataset_shuffle(order, 7, 9, epoch);
        for (int i = 0; i < 7; i++)
            counts[i][order[i]]++;
    }
    for (int i = 0; i < 49; i++) {
        double deviation = (double)counts[i / 7][i % 7] - mean;
        assert_true(deviation * deviation < 16 * mean * 6 / 7);
    }
}

static void test_dataset__next_wraps(void **state)
{
    static const char text[] = "{\"input\": \"a\"}\n{\"input\": \"b\"}\n{\"input\": \"c\"}\n";
    invar_dataset_options options = dataset_options("d.jsonl", "");
    invar_dataset *dataset = parse_dataset(&options, text);
    invar_data_cursor cursor = {0, 0};
    char seen[10] = "";
    (void)state;

    for (int i = 0; i < 8; i++)
        seen[i] = invar_dataset_next(dataset, &cursor, false, 1)->text[0];
    assert_string_equal(seen, "abcabcab");
    assert_true(cursor.epoch == 2 && cursor.offset == 2);
    invar_dataset_close(dataset);
}

/* A cursor is the complete state: another data set with another history continues the same way. */
static void test_dataset__next_resumes(void **state)
{
    invar_dataset_options options = dataset_options("d.jsonl", "");
    invar_data_cursor cursor = {0, 0}, saved;
    invar_dataset *dataset, *second;
    int32_t order[20];
    (void)state;

    options.path = "task:sort";
    options.task_size = 20;
    assert_ok(invar_dataset_open(&dataset, &options, tokenizer));
    assert_ok(invar_dataset_open(&second, &options, tokenizer));
    for (int i = 0; i < 70; i++) {
        const invar_prompt *p;

        saved = cursor;
        p = invar_dataset_next(dataset, &cursor, true, 7);
        invar_dataset_shuffle(order, 20, 7, i / 20);
        assert_int_equal(p->line, order[i % 20]);
        if (i % 9 == 0) // the other data set starts at the same cursor
            assert_int_equal(invar_dataset_next(second, &saved, true, 7)->line, p->line);
        if (i % 5 == 0) { // the other data set is also used with another cursor and seed
            invar_data_cursor elsewhere = {i, 3};
            invar_dataset_next(second, &elsewhere, true, 8);
        }
    }
    invar_dataset_close(dataset);
    invar_dataset_close(second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dataset__reads_lines),
        cmocka_unit_test(test_dataset__labels_are_text),
        cmocka_unit_test(test_dataset__refuses_bad_lines),
        cmocka_unit_test(test_dataset__drops_long_prompts),
        cmocka_unit_test(test_dataset__sft_without_template),
        cmocka_unit_test(test_dataset__slices),
        cmocka_unit_test(test_dataset__gzip_is_the_same_data),
        cmocka_unit_test(test_dataset__reads_the_slice_only),
        cmocka_unit_test(test_dataset__opens_files_and_tasks),
        cmocka_unit_test(test_dataset__hash),
        cmocka_unit_test(test_dataset__shuffle_matches_the_oracle),
        cmocka_unit_test(test_dataset__shuffle_is_a_permutation),
        cmocka_unit_test(test_dataset__shuffle_is_fair),
        cmocka_unit_test(test_dataset__next_wraps),
        cmocka_unit_test(test_dataset__next_resumes),
    };

    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
