/*
 * oracle.c - tests of tokenizers and chat templates against tokenizers and transformers.
 *
 * tests/oracle/tokenizer.py wrote the expected results to tests/oracle/tokenizer;
 * INVAR_TOKENIZER_ORACLE names another folder. Token ids must be equal for strings, for every code
 * point in several contexts, and for long mixed text, which both programs generate. Results of the
 * last two are compared by CRC-32. Control: changed ids do not compare equal. By default the
 * functions share the code points: each runs on the first block, on every fourth one of the first
 * two planes, and on every 64th one of the others.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/normalize.h"
#include "engine/text/pretokenize.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "engine/text/unicode.h"
#include "tests/support.h"

enum { BLOCK = 4096, LARGE_CHARS = 20000, LARGE_TEXTS = 8 };

static const char *const names[] = {
    "gpt2",      "llama3",     "qwen2",     "o200k",        "tekken",     "deepseek",
    "smollm2",   "unknown",    "llama2",    "mistral",      "gemma",      "metaspace",
    "lowercase", "gguf_bytes", "gguf_runs", "gguf_strings", "byte_tokens"};
enum { NAMES = sizeof names / sizeof names[0] };

static const char *path_of(const char *name, const char *file)
{
    static char path[INVAR_PATH_SIZE];
    const char *folder = getenv("INVAR_TOKENIZER_ORACLE");

    snprintf(path, sizeof path, "%s/%s%s%s", folder ? folder : INVAR_TEST_DATA "/oracle/tokenizer",
             name, *file ? "/" : "", file);
    return path;
}

typedef struct oracle {
    invar_tokenizer *tokenizer;
    json_t *expected;
} oracle;

static oracle open_oracle(const char *name)
{
    oracle o;

    assert_ok(invar_tokenizer_read(&o.tokenizer, path_of(name, "")));
    assert_ok(invar_json_read(&o.expected, path_of(name, "expect.json"), 1 << 28));
    return o;
}

static void close_oracle(oracle *o)
{
    invar_tokenizer_free(o->tokenizer);
    json_decref(o->expected);
}

/* ---- checksums ------------------------------------------------------------------------------- */

/* CRC-32 as in zlib, half a byte at a time. */
static uint32_t crc32(uint32_t crc, const void *data, size_t bytes)
{
    static const uint32_t table[16] = {0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC,
                                       0x76DC4190, 0x6B6B51F4, 0x4DB26158, 0x5005713C,
                                       0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C,
                                       0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C};
    const unsigned char *at = data;

    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc = table[(crc ^ at[i]) & 15] ^ crc >> 4;
        crc = table[(crc ^ at[i] >> 4) & 15] ^ crc >> 4;
    }
    return ~crc;
}

/* Returns the CRC extended by a list of numbers, its length first. */
static uint32_t add_list(uint32_t crc, const int32_t *numbers, int64_t count)
{
    int32_t length = (int32_t)count;

    crc = crc32(crc, &length, sizeof length);
    return crc32(crc, numbers, (size_t)count * sizeof *numbers);
}

/* A function of text whose results are compared: `list` makes numbers; the caller frees *out. */
typedef struct text_function {
    int64_t (*list)(int32_t **out, const struct text_function *w, const char *text, size_t bytes);
    const invar_tokenizer *tokenizer;
    invar_pattern pattern;
    invar_normal_step step;
} text_function;

static int64_t list_ids(int32_t **out, const text_function *w, const char *text, size_t bytes)
{
    int64_t count;

    assert_ok(invar_tokenizer_encode(out, &count, w->tokenizer, text, bytes));
    return count;
}

static int64_t list_words(int32_t **out, const text_function *w, const char *text, size_t bytes)
{
    const invar_splitter splitter = {.pattern = w->pattern, .behavior = INVAR_BEHAVIOR_ISOLATED};
    size_t begin, end, at = 0;
    int64_t count = 0;

    assert_ok(INVAR_ALLOC(*out, bytes, "words"));
    while (invar_split_next(&begin, &end, &at, &splitter, text, bytes)) {
        assert_true(begin < end && end <= bytes);
        (*out)[count++] = (int32_t)(end - begin);
    }
    return count;
}

static int64_t list_normal(int32_t **out, const text_function *w, const char *text, size_t bytes)
{
    const invar_normalizer normalizer = {{w->step}, 1};
    char *normal;
    size_t count;

    assert_ok(invar_normalize(&normal, &count, &normalizer, text, bytes));
    assert_ok(INVAR_ALLOC(*out, count, "bytes"));
    for (size_t i = 0; i < count; i++)
        (*out)[i] = (unsigned char)(normal ? normal : text)[i];
    invar_free(normal);
    return (int64_t)count;
}

/* Returns the CRC extended by the numbers of a text, and adds their number to *count. */
static uint32_t add_text(uint32_t crc, int64_t *count, const text_function *w, const char *text,
                         size_t bytes)
{
    int32_t *numbers;
    int64_t n = w->list(&numbers, w, text, bytes);

    crc = add_list(crc, numbers, n);
    *count += n;
    invar_free(numbers);
    return crc;
}

static int64_t number(const json_t *object, const char *key)
{
    assert_true(json_is_integer(json_object_get(object, key)));
    return json_integer_value(json_object_get(object, key));
}

/* ---- strings --------------------------------------------------------------------------------- */

static bool same_ids(const json_t *list, const int32_t *ids, int64_t count)
{
    bool same = (int64_t)json_array_size(list) == count;

    for (int64_t i = 0; same && i < count; i++)
        same = json_integer_value(json_array_get(list, (size_t)i)) == ids[i];
    return same;
}

static void test_oracle_encode__ids_of_strings(void **state)
{
    (void)state;
    for (int k = 0; k < NAMES; k++) {
        oracle o = open_oracle(names[k]);
        json_t *list = json_object_get(o.expected, "strings"), *item;
        size_t i;
        assert_true(json_array_size(list) > 250);
        json_array_foreach(list, i, item)
        {
            const json_t *text = json_object_get(item, "text"), *ids = json_object_get(item, "ids");
            int32_t *got;
            int64_t count;
            assert_ok(invar_tokenizer_encode(&got, &count, o.tokenizer, json_string_value(text),
                                             json_string_length(text)));
            if (!same_ids(ids, got, count))
                fail_msg("%s: string %zu, \"%s\"", names[k], i, json_string_value(text));
            if (count > 0) { // control: a changed id is detected
                got[count - 1]++;
                assert_false(same_ids(ids, got, count));
            }
            invar_free(got);
        }
        close_oracle(&o);
    }
}

/* ---- every code point ------------------------------------------------------------------------ */

/* Writes `form` with the character for each "%". Returns the number of bytes. */
static size_t write_form(char *out, const char *form, const char *character, size_t bytes)
{
    size_t used = 0;

    for (; *form; form++) {
        memcpy(out + used, *form == '%' ? character : form, *form == '%' ? bytes : 1);
        used += *form == '%' ? bytes : 1;
    }
    return used;
}

/* Like places() in tokenizer.py: the code point in several contexts. */
static size_t write_contexts(char *out, uint32_t point)
{
    char character[4];
    size_t bytes = invar_unicode_write(character, point);

    return write_form(out,
                      "% a%b %%'%1%1\n%\n%\xCC\x81"
                      "e%\xCC\xA3 q\xCD\x85% %",
                      character, bytes);
}

static void check_block(const text_function *w, const char *name, size_t block,
                        const json_t *expected)
{
    int64_t count = 0;
    uint32_t crc = 0;
    char text[128];

    for (uint32_t i = 0; i < BLOCK; i++) {
        uint32_t point = (uint32_t)block * BLOCK + i;
        if (point < 0xD800 || point >= 0xE000)
            crc = add_text(crc, &count, w, text, write_contexts(text, point));
    }
    if (json_integer_value(json_array_get(expected, 0)) != count ||
        json_integer_value(json_array_get(expected, 1)) != crc)
        fail_msg("%s: code points from U+%04zX on", name, block * BLOCK);
}

/*
 * Compares blocks of code points with their checksums, which begin at list[first]. By default the
 * blocks depend on `number`, the index of the function in its table.
 */
static void check_blocks(const text_function *w, const char *name, const json_t *list, size_t first,
                         size_t number)
{
    const size_t blocks = json_array_size(list) - first;

    assert_true(json_array_size(list) > first && blocks <= 0x110000 / BLOCK);
    // by default four functions together have the basic plane and the next one
    for (size_t block = 0; block < blocks; block++)
        if (invar_test_full() || block == 0 ||
            (block < 0x20 ? (block + number) % 4 == 0 : (block + 16 * number) % 64 == 0))
            check_block(w, name, block, json_array_get(list, first + block));
}

static void test_oracle_encode__ids_of_every_code_point(void **state)
{
    (void)state;
    for (int k = 0; k < NAMES; k++) {
        oracle o = open_oracle(names[k]);
        text_function w = {.list = list_ids, .tokenizer = o.tokenizer};
        check_blocks(&w, names[k], json_object_get(o.expected, "sweep"), 0, (size_t)k);
        close_oracle(&o);
    }
}

/* ---- long mixed text ------------------------------------------------------------------------- */

static const char *const spaces[] = {" ",    "  ",      "   ",      "\t",           "\n",
                                     "\n\n", "\r\n",    "\xC2\xA0", "\xE3\x80\x80", "\xE2\x80\xA8",
                                     "\x0B", "\xC2\x85"};

static const char *const pieces[] = {"'s",
                                     "'S",
                                     "'\xC5\xBF",
                                     "'re",
                                     "'LL",
                                     "'Ve",
                                     "'d",
                                     "'M",
                                     " '",
                                     "<|im_start|>",
                                     "<|im_end|>",
                                     "<|endoftext|>",
                                     " <|strip|>  ",
                                     "<|im_",
                                     "\xF0\x9F\x98\x80",
                                     "e\xCC\x81\xCC\xA3",
                                     "THE",
                                     "\xC4\xB0",
                                     "1234567",
                                     " the",
                                     "\xE2\x84\xAB",
                                     "don't"};

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static uint32_t point_of(unsigned kind, uint64_t value)
{
    static const char punctuation[] = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
    uint32_t any;

    switch (kind) {
    case 6: return ' ';
    case 7: return '0' + (uint32_t)(value % 10);
    case 8: return (uint32_t)punctuation[value % (sizeof punctuation - 1)];
    case 10: return 0x80 + (uint32_t)(value % 0x2F80);
    case 11: return 0x300 + (uint32_t)(value % 0x70);
    case 12: return 0x4E00 + (uint32_t)(value % 0x5200);
    case 13: any = (uint32_t)(value % 0x110000); return any < 0xD800 || any >= 0xE000 ? any : 0x41;
    case 14: return 0xAC00 + (uint32_t)(value % 11172);
    default: return 'a' + (uint32_t)(value % 26);
    }
}

/* Like mixed() in tokenizer.py: pseudo-random text. The caller frees *out. */
static size_t make_mixed_text(char **out, uint64_t seed, int chars)
{
    uint64_t x = seed * 2654435761u % (1ull << 32) + 1;
    size_t used = 0;

    assert_ok(INVAR_ALLOC_SIZED(*out, (size_t)chars, 16, "text"));
    for (int i = 0; i < chars; i++) {
        unsigned kind;
        const char *piece;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        kind = (unsigned)(x % 16);
        if (kind == 9 || kind == 15) {
            piece = kind == 9 ? spaces[(x >> 8) % COUNT(spaces)] : pieces[(x >> 8) % COUNT(pieces)];
            memcpy(*out + used, piece, strlen(piece));
            used += strlen(piece);
        } else {
            used += invar_unicode_write(*out + used, point_of(kind, x >> 8));
        }
    }
    return used;
}

static void test_oracle_encode__ids_of_long_mixed_text(void **state)
{
    (void)state;
    for (int k = 0; k < NAMES; k++) {
        oracle o = open_oracle(names[k]);
        json_t *list = json_object_get(o.expected, "large"), *item;
        text_function w = {.list = list_ids, .tokenizer = o.tokenizer};
        size_t i;
        assert_true(json_array_size(list) > 0);
        json_array_foreach(list, i, item)
        {
            int64_t count = 0;
            char *text;
            if (!invar_test_full() && (i + (size_t)k) % 4 != 0)
                continue;
            size_t bytes = make_mixed_text(&text, (uint64_t)number(item, "seed"), LARGE_CHARS);
            assert_int_equal(crc32(0, text, bytes), number(item, "text"));
            assert_int_equal(add_text(0, &count, &w, text, bytes), number(item, "ids"));
            assert_int_equal(count, number(item, "count"));
            invar_free(text);
        }
        close_oracle(&o);
    }
}

/* A million letters are one word for most tokenizers; quadratic time would take minutes. */
static void test_oracle_encode__a_megabyte_takes_no_square_time(void **state)
{
    static char text[1 << 20];

    (void)state;
    memset(text, 'a', sizeof text);
    for (int k = 0; k < NAMES; k += (int)invar_test_count(4, 1)) { // by default one of each kind
        oracle o = open_oracle(names[k]);
        clock_t begin = clock();
        int64_t count;
        int32_t *ids;
        assert_ok(invar_tokenizer_encode(&ids, &count, o.tokenizer, text, sizeof text));
        assert_true(clock() - begin < 20 * CLOCKS_PER_SEC);
        assert_true(count > 0);
        invar_free(ids);
        close_oracle(&o);
    }
}

/* ---- words and normalized text --------------------------------------------------------------- */

/*
 * Words are compared as well because ids do not reveal every word boundary: without a merge across
 * it, two words have the ids of one.
 */
#define FORM(name)                                                                                 \
    {                                                                                              \
        .list = list_normal, .step = {.kind = INVAR_NORMAL_FORM, .form = (name) }                  \
    }

static void test_oracle_steps__words_and_normalized_text(void **state)
{
    static const struct {
        const char *name;
        text_function w;
    } steps[] = {{"gpt2", {.list = list_words, .pattern = INVAR_PATTERN_GPT2}},
                 {"llama3", {.list = list_words, .pattern = INVAR_PATTERN_LLAMA3}},
                 {"qwen2", {.list = list_words, .pattern = INVAR_PATTERN_QWEN2}},
                 {"o200k", {.list = list_words, .pattern = INVAR_PATTERN_O200K}},
                 {"tekken", {.list = list_words, .pattern = INVAR_PATTERN_TEKKEN}},
                 {"numbers", {.list = list_words, .pattern = INVAR_PATTERN_NUMBERS}},
                 {"han", {.list = list_words, .pattern = INVAR_PATTERN_HAN}},
                 {"deepseek", {.list = list_words, .pattern = INVAR_PATTERN_DEEPSEEK}},
                 {"digits", {.list = list_words, .pattern = INVAR_PATTERN_DIGIT}},
                 {"punctuation", {.list = list_words, .pattern = INVAR_PATTERN_PUNCTUATION}},
                 {"compose", FORM(INVAR_UNICODE_NFC)},
                 {"nfd", FORM(INVAR_UNICODE_NFD)},
                 {"nfkc", FORM(INVAR_UNICODE_NFKC)},
                 {"nfkd", FORM(INVAR_UNICODE_NFKD)},
                 {"lowercase", {.list = list_normal, .step = {.kind = INVAR_NORMAL_LOWERCASE}}},
                 {"accents", {.list = list_normal, .step = {.kind = INVAR_NORMAL_STRIP_ACCENTS}}}};
    json_t *file;

    (void)state;
    assert_ok(invar_json_read(&file, path_of("steps.json", ""), 1 << 28));
    for (size_t k = 0; k < COUNT(steps); k++) {
        const json_t *list = json_object_get(file, steps[k].name);
        for (size_t i = 0; i < LARGE_TEXTS; i++) {
            int64_t count = 0;
            char *text;
            if (!invar_test_full() && (i + k) % 4 != 0)
                continue;
            size_t bytes = make_mixed_text(&text, (uint64_t)number(file, "seed") + i, LARGE_CHARS);
            assert_int_equal(add_text(0, &count, &steps[k].w, text, bytes),
                             json_integer_value(json_array_get(list, i)));
            invar_free(text);
        }
        check_blocks(&steps[k].w, steps[k].name, list, LARGE_TEXTS, k);
    }
    json_decref(file);
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* The text of the stream after some tokens must be their decoded text, or a prefix of it. */
static void check_shown(const invar_text_stream *stream, const invar_tokenizer *tokenizer,
                        const int32_t *ids, int64_t count, bool skip)
{
    size_t bytes, missing;
    char *text;

    assert_ok(invar_tokenizer_decode(&text, &bytes, tokenizer, ids, count, skip));
    // a byte run at the end may turn out to be invalid, which shortens the decoded text
    assert_true(bytes >= stream->bytes || stream->stable_bytes == 0);
    assert_true(stream->stable_bytes <= stream->bytes);
    missing = bytes > stream->bytes ? bytes - stream->bytes : 0;
    // an incomplete character is not shown; in a byte run it may change the text shown before
    if (stream->stable_bytes == stream->bytes)
        assert_memory_equal(stream->text, text, stream->bytes);
    else
        assert_memory_equal(stream->text, text, stream->stable_bytes);
    assert_true(missing == 0 || stream->joined.n_pending + stream->decoded.n_pending > 0);
    invar_free(text);
}

static void check_decode(const invar_tokenizer *tokenizer, const json_t *item)
{
    const json_t *list = json_object_get(item, "ids"), *text = json_object_get(item, "text");
    bool skip = json_is_true(json_object_get(item, "skip"));
    invar_text_stream stream = {0};
    int32_t ids[64];
    size_t count = json_array_size(list), bytes, stable = 0;
    char *got;

    assert_true(count <= 64 && json_is_string(text));
    for (size_t i = 0; i < count; i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
        assert_ok(invar_text_stream_push(&stream, tokenizer, ids[i], skip));
        check_shown(&stream, tokenizer, ids, (int64_t)i + 1, skip);
        // the stable text never changes and is a prefix of the final text
        assert_true(stream.stable_bytes >= stable && stream.unchanged_bytes >= stable);
        stable = stream.stable_bytes;
        assert_memory_equal(stream.text, json_string_value(text), stable);
    }
    assert_ok(invar_text_stream_flush(&stream, tokenizer));
    assert_string_equal(stream.text, json_string_value(text));
    invar_text_stream_release(&stream);
    assert_ok(invar_tokenizer_decode(&got, &bytes, tokenizer, ids, (int64_t)count, skip));
    assert_int_equal(bytes, json_string_length(text));
    assert_string_equal(got, json_string_value(text));
    invar_free(got);
}

static void test_oracle_decode__texts_of_ids(void **state)
{
    (void)state;
    for (int k = 0; k < NAMES; k++) {
        oracle o = open_oracle(names[k]);
        json_t *list = json_object_get(o.expected, "decodes"), *item;
        size_t i;
        assert_true(json_array_size(list) > 100);
        json_array_foreach(list, i, item) check_decode(o.tokenizer, item);
        close_oracle(&o);
    }
}

/* ---- chat templates -------------------------------------------------------------------------- */

static char *dump(const json_t *value)
{
    char *text = json_is_null(value) ? strdup("") : json_dumps(value, JSON_ENCODE_ANY);

    assert_non_null(text);
    return text;
}

/* Compares one rendering. Cases with the same template and variables share `chat`, its process. */
static void check_rendering(invar_chat_template *chat, const json_t *item, size_t i)
{
    const json_t *expected = json_object_get(item, "text");
    char *messages = dump(json_object_get(item, "messages"));
    char *tools = dump(json_object_get(item, "tools")), *text;
    bool prompt = json_is_true(json_object_get(item, "prompt"));
    size_t bytes;

    if (json_is_null(expected)) {
        assert_fails(invar_chat_template_render(&text, &bytes, chat, messages, tools, prompt),
                     INVAR_E_INVALID, "chat template: ");
    } else {
        assert_ok(invar_chat_template_render(&text, &bytes, chat, messages, tools, prompt));
        if (strcmp(text, json_string_value(expected)) != 0)
            fail_msg("case %zu: \"%s\", expected \"%s\"", i, text, json_string_value(expected));
        assert_int_equal(bytes, json_string_length(expected));
    }
    invar_free(text);
    free(messages);
    free(tools);
}

static void test_oracle_template__texts_of_chats(void **state)
{
    json_t *file, *cases, *item;
    char previous[INVAR_PATH_SIZE] = "";
    invar_chat_template *chat = NULL;
    int n_rendered = 0, n_chats = 0, template = 0; // lists of variables, templates
    bool runs = false;
    size_t i;

    (void)state;
    assert_ok(invar_json_read(&file, path_of("templates.json", ""), 1 << 28));
    cases = json_object_get(file, "cases");
    assert_true(json_array_size(cases) > 100);
    json_array_foreach(cases, i, item)
    {
        json_t *variables = json_copy(json_object_get(file, "tokens"));
        char current[INVAR_PATH_SIZE], *kwargs;
        assert_int_equal(json_object_update(variables, json_object_get(item, "kwargs")), 0);
        kwargs = dump(variables);
        snprintf(current, sizeof current, "%s %s",
                 json_string_value(json_object_get(item, "template")), kwargs);
        if (strcmp(current, previous) != 0) {
            const char *name = json_string_value(json_object_get(item, "template"));
            template += strncmp(current, previous, strlen(name)) != 0;
            // by default one list of variables per template, another one for the next template
            runs = invar_test_full() || n_chats % 3 == template % 3;
            n_chats++;
            invar_chat_template_close(chat);
            chat = NULL;
            if (runs)
                assert_ok(invar_chat_template_open(&chat, "", path_of("templates", name), kwargs));
            memcpy(previous, current, sizeof previous);
        }
        if (runs) {
            check_rendering(chat, item, i);
            n_rendered++;
        }
        free(kwargs);
        json_decref(variables);
    }
    assert_true(n_rendered >= (invar_test_full() ? 100 : 30));
    invar_chat_template_close(chat);
    json_decref(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oracle_encode__ids_of_strings),
        cmocka_unit_test(test_oracle_encode__ids_of_every_code_point),
        cmocka_unit_test(test_oracle_encode__ids_of_long_mixed_text),
        cmocka_unit_test(test_oracle_encode__a_megabyte_takes_no_square_time),
        cmocka_unit_test(test_oracle_steps__words_and_normalized_text),
        cmocka_unit_test(test_oracle_decode__texts_of_ids),
        cmocka_unit_test(test_oracle_template__texts_of_chats),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
