/*
 * tokenizer.c - tests of tokenizers: reading, rejected files, difficult texts, text streams.
 *
 * Expected ids are literals. The comparison with the tokenizers library is in oracle.c. Long texts
 * are timed, because quadratic algorithms pass all other tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/tokenizer/tokenizer.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/text/pretokenize.h"
#include "tests/support.h"
#include "tests/tokenizer_json.h"

#define WORK INVAR_TEST_WORK "/tokenizer"

static invar_status parse_parts(invar_tokenizer **out, tokenizer_json parts, const char *config)
{
    char json[TOKENIZER_JSON_SIZE];
    invar_tokenizer_source source = {"t.json", json, tokenizer_json_write(json, &parts), config,
                                     config ? strlen(config) : 0};

    return invar_tokenizer_parse(out, &source);
}

static invar_tokenizer *make_tokenizer(tokenizer_json parts)
{
    invar_tokenizer *tokenizer;

    assert_ok(parse_parts(&tokenizer, parts, NULL));
    return tokenizer;
}

static void expect_refused(tokenizer_json parts, const char *config, invar_status code,
                           const char *text)
{
    invar_tokenizer *tokenizer;

    assert_fails(parse_parts(&tokenizer, parts, config), code, text);
    assert_null(tokenizer);
}

/* Encodes a text and compares its ids with `expected`, which ends with -1. */
static void expect_ids(const invar_tokenizer *tokenizer, const char *text, const int32_t *expected)
{
    int64_t count, i;
    int32_t *ids;

    assert_ok(invar_tokenizer_encode(&ids, &count, tokenizer, text, strlen(text)));
    for (i = 0; i < count && expected[i] >= 0; i++)
        assert_int_equal(ids[i], expected[i]);
    assert_int_equal(i, count);
    assert_int_equal(expected[i], -1);
    invar_free(ids);
}

#define EXPECT(tokenizer, text, ...)                                                               \
    expect_ids((tokenizer), (text), (const int32_t[]){__VA_ARGS__, -1})

/* ---- reading --------------------------------------------------------------------------------- */

static void test_tokenizer_parse__small(void **state)
{
    invar_tokenizer *t = make_tokenizer((tokenizer_json){
        .merges = "[\"#version: 0.2\",[\"a\",\"b\"],\"ab c\",[\"\xC4\xA0\",\"a\"]]"});

    (void)state;
    assert_int_equal(invar_tokenizer_size(t), 259);
    assert_int_equal(invar_tokenizer_eos(t), -1);
    EXPECT(t, "abc ab", 257, ' ', 256); // the merge "ab" has priority over " a"
    EXPECT(t, "a a", 'a', 258);
    invar_tokenizer_free(t);
}

#define R "\xEF\xBF\xBD"
#define REPLACE(from, to)                                                                          \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" from "\"},\"content\":\"" to "\"}"
#define METASPACE(members) "{\"type\":\"Metaspace\"," members "}"
#define DECODERS(list) "{\"type\":\"Sequence\",\"decoders\":[" list "]}"
#define TEXT_OF_65 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdefg"

static void test_tokenizer_parse__refuses_unknown_parts(void **state)
{
    static const struct {
        const char *normalizer, *pre_tokenizer, *post_processor, *decoder;
        invar_status code;
        const char *message;
    } cases[] = {
        {.normalizer = "{\"type\":\"Precompiled\"}", .message = "normalizer \"Precompiled\""},
        {.normalizer = "{}", .code = INVAR_E_INVALID, .message = "normalizer"},
        {.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\"\"}",
         .message = "normalizer \" {2,}\""},
        {.normalizer = REPLACE("", "x"), .message = "an empty pattern"},
        {.normalizer = REPLACE(TEXT_OF_65, "x"), .message = "more than 64 bytes"},
        {.normalizer = "{\"type\":\"Sequence\"}", .code = INVAR_E_INVALID, .message = "the list"},
        {.pre_tokenizer = "{\"type\":\"Whitespace\"}", .message = "pre_tokenizer \"Whitespace\""},
        {.pre_tokenizer = TOKENIZER_SPLIT("\\\\s", "Isolated", "false"), .message = "\"\\s\""},
        {.pre_tokenizer = TOKENIZER_SPLIT(TOKENIZER_QWEN2, "Kept", "false"), .message = "\"Kept\""},
        {.pre_tokenizer = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\","
                          "\"add_prefix_space\":false},{\"type\":\"Punctuation\"}]}",
         .message = "ByteLevel before others"},
        {.pre_tokenizer = METASPACE("\"replacement\":\"ab\""),
         .code = INVAR_E_INVALID,
         .message = "not one character"},
        {.pre_tokenizer = METASPACE("\"replacement\":\"_\",\"prepend_scheme\":\"last\""),
         .message = "\"last\""},
        {.pre_tokenizer = METASPACE("\"replacement\":\"_\",\"prepend_scheme\":\"first\","
                                    "\"add_prefix_space\":false"),
         .message = "without add_prefix_space"},
        {.normalizer = REPLACE("a", "b"),
         .pre_tokenizer = METASPACE("\"replacement\":\"_\",\"prepend_scheme\":\"first\""),
         .message = "first, after a normalizer"},
        {.post_processor = "{\"type\":\"Unheard\"}", .message = "post_processor \"Unheard\""},
        {.post_processor = "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{}},"
                           "{\"Sequence\":{}}]}",
         .message = "TemplateProcessing"},
        {.decoder = "{\"type\":\"WordPiece\"}", .message = "decoder \"WordPiece\""},
        {.decoder = "{\"type\":\"Strip\",\"content\":\" \",\"start\":0,\"stop\":1}",
         .code = INVAR_E_INVALID,
         .message = "stop"},
        {.decoder = DECODERS("{\"type\":\"Fuse\"}," REPLACE("ab", "b")),
         .message = "one character"},
        {.decoder = DECODERS("{\"type\":\"Fuse\"}," REPLACE(R, "b")), .message = "one character"},
        {.decoder = DECODERS("{\"type\":\"Fuse\"}," REPLACE("a", "b") "," REPLACE("c", "d")),
         .message = "Replace at this"},
        {.decoder = DECODERS("{\"type\":\"Fuse\"},{\"type\":\"ByteLevel\"}," REPLACE("a", "b")),
         .message = "Replace at this"},
        {.decoder = DECODERS("{\"type\":\"ByteLevel\"},{\"type\":\"ByteLevel\"}"),
         .message = "ByteLevel at this"},
        {.decoder = DECODERS("{\"type\":\"ByteFallback\"},{\"type\":\"ByteLevel\"}"),
         .message = "ByteLevel at this"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refused((tokenizer_json){.normalizer = cases[i].normalizer,
                                        .pre_tokenizer = cases[i].pre_tokenizer,
                                        .post_processor = cases[i].post_processor,
                                        .decoder = cases[i].decoder},
                       NULL, cases[i].code ? cases[i].code : INVAR_E_UNSUPPORTED, cases[i].message);
    expect_refused((tokenizer_json){.more = ",\"truncation\":{}"}, NULL, INVAR_E_UNSUPPORTED,
                   "truncation");
    expect_refused((tokenizer_json){.more = ",\"padding\":{}"}, NULL, INVAR_E_UNSUPPORTED,
                   "padding");
}

static void test_tokenizer_parse__refuses_options_of_the_model(void **state)
{
    static const char *const set[] = {",\"dropout\":0.1", ",\"continuing_subword_prefix\":\"##\"",
                                      ",\"end_of_word_suffix\":\"</w>\""};
    static const char off[] = ",\"dropout\":null,\"byte_fallback\":false,\"unk_token\":\"<unk>\","
                              "\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":null";
    static const char other[] = "{\"normalizer\":{\"type\":\"Precompiled\"},\"model\":{\"type\":"
                                "\"Unigram\",\"vocab\":[]}}";
    const invar_tokenizer_source unigram = {"t.json", other, strlen(other), NULL, 0};
    invar_tokenizer *t;

    (void)state;
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++)
        expect_refused((tokenizer_json){.model = set[i]}, NULL, INVAR_E_UNSUPPORTED, "is set");
    // the kind of the model is checked before the normalizer
    assert_fails(invar_tokenizer_parse(&t, &unigram), INVAR_E_UNSUPPORTED,
                 "the model is \"Unigram\"; BPE is read");
    invar_tokenizer_free(make_tokenizer((tokenizer_json){.model = off}));
}

static void test_tokenizer_parse__refuses_damage(void **state)
{
    static const char *const jsons[] = {"", "[]", "{}", "{\"model\":1}", "null"};
    invar_tokenizer *tokenizer;

    (void)state;
    for (size_t i = 0; i < sizeof jsons / sizeof jsons[0]; i++) {
        invar_tokenizer_source source = {"t.json", jsons[i], strlen(jsons[i]), NULL, 0};
        assert_true(invar_tokenizer_parse(&tokenizer, &source) != INVAR_OK);
        assert_null(tokenizer);
    }
    expect_refused((tokenizer_json){.vocab = ",\"ab\":256,\"abc\":256,\"x\":1"}, NULL,
                   INVAR_E_INVALID, "duplicate");
    expect_refused((tokenizer_json){.vocab = ",\"ab\":256,\"abc\":256"}, NULL, INVAR_E_INVALID,
                   "the id 256 of another");
    expect_refused((tokenizer_json){.vocab = ",\"ab\":-1"}, NULL, INVAR_E_INVALID,
                   "the id of \"ab\"");
    expect_refused((tokenizer_json){.vocab = ",\"ab\":99999999999"}, NULL, INVAR_E_INVALID,
                   "the id of");
    expect_refused((tokenizer_json){.vocab = ",\"ab\":1.5"}, NULL, INVAR_E_INVALID, "the id of");
    expect_refused((tokenizer_json){.vocab = ""}, NULL, INVAR_E_INVALID, "merge 0");
    expect_refused((tokenizer_json){.merges = "[\"ab\"]"}, NULL, INVAR_E_INVALID,
                   "is not two tokens");
    expect_refused((tokenizer_json){.merges = "[\"a b c\"]"}, NULL, INVAR_E_INVALID,
                   "is not two tokens");
    expect_refused((tokenizer_json){.merges = "[[\"a\"]]"}, NULL, INVAR_E_INVALID,
                   "is not two tokens");
    expect_refused((tokenizer_json){.merges = "[[\"a\",1]]"}, NULL, INVAR_E_INVALID,
                   "is not two tokens");
    expect_refused((tokenizer_json){.merges = "[7]"}, NULL, INVAR_E_INVALID, "is not two tokens");
    expect_refused((tokenizer_json){.merges = "{}"}, NULL, INVAR_E_INVALID, "no list \"merges\"");
}

static void test_tokenizer_parse__refuses_unsupported_added_tokens(void **state)
{
    static const char normalized[] = "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                                     "\"normalized\":true,\"special\":false";
    char added[1024];

    (void)state;
    expect_refused((tokenizer_json){.added = "[" TOKENIZER_ADDED(300, "<s>", TOKENIZER_FLAGS) "]"},
                   NULL, INVAR_E_UNSUPPORTED,
                   "\"<s>\" has id 300, where the tokenizers library gives it 259");
    expect_refused((tokenizer_json){.added = "[" TOKENIZER_ADDED(259, "ab", TOKENIZER_FLAGS) "]"},
                   NULL, INVAR_E_UNSUPPORTED, "gives it 256");
    expect_refused((tokenizer_json){.added = "[" TOKENIZER_ADDED(259, "", TOKENIZER_FLAGS) "]"},
                   NULL, INVAR_E_INVALID, "0 bytes");
    expect_refused((tokenizer_json){.added = "[" TOKENIZER_ADDED(256, "ab", TOKENIZER_FLAGS) "," //
                                    TOKENIZER_ADDED(256, "ab", TOKENIZER_FLAGS) "]"},
                   NULL, INVAR_E_INVALID, "twice");
    expect_refused((tokenizer_json){.added = "[{\"id\":259,\"content\":\"<s>\"}]"}, NULL,
                   INVAR_E_INVALID, "single_word");
    expect_refused((tokenizer_json){.added = "[{\"id\":259}]"}, NULL, INVAR_E_INVALID, "content");
    expect_refused((tokenizer_json){.added = "[1]"}, NULL, INVAR_E_INVALID, "content");
    // two added tokens that are equal after normalization
    snprintf(added, sizeof added,
             "[{\"id\":259,\"content\":\"s\\u0323\",%s},{\"id\":260,\"content\":\"\\u1e63\",%s}]",
             normalized, normalized);
    expect_refused((tokenizer_json){.added = added, .normalizer = "{\"type\":\"NFC\"}"}, NULL,
                   INVAR_E_INVALID, "exists twice");
    invar_tokenizer_free(make_tokenizer((tokenizer_json){.added = added}));
    snprintf(added, sizeof added, "[{\"id\":259,\"content\":\" \",%s}]", normalized);
    expect_refused((tokenizer_json){.added = added,
                                    .normalizer = "{\"type\":\"Strip\",\"strip_left\":true,"
                                                  "\"strip_right\":true}"},
                   NULL, INVAR_E_INVALID, "0 bytes");
}

/* ---- eos and config -------------------------------------------------------------------------- */

static void test_tokenizer_parse__reads_eos(void **state)
{
    static const char added[] = "[" TOKENIZER_ADDED(259, "<eos>", TOKENIZER_FLAGS) "]";
    static const char *const configs[] = {
        "{\"eos_token\":\"<eos>\"}", "{\"eos_token\":{\"content\":\"<eos>\",\"special\":true}}",
        "{\"eos_token\":\"<eos>\",\"added_tokens_decoder\":{\"259\":{\"content\":\"<eos>\"}}}"};
    const tokenizer_json parts = {.added = added};
    invar_digest with, without;
    invar_tokenizer *t;

    (void)state;
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        assert_ok(parse_parts(&t, parts, configs[i]));
        assert_int_equal(invar_tokenizer_eos(t), 259);
        assert_true(invar_tokenizer_special(t, 259));
        invar_tokenizer_hash(&with, t);
        invar_tokenizer_free(t);
    }
    assert_ok(parse_parts(&t, parts, "{\"eos_token\":null}"));
    assert_int_equal(invar_tokenizer_eos(t), -1);
    invar_tokenizer_hash(&without, t);
    assert_false(invar_digest_equal(&with, &without));
    invar_tokenizer_free(t);
    expect_refused(parts, "{\"eos_token\":\"<none>\"}", INVAR_E_INVALID, "\"<none>\"");
    expect_refused(parts, "{\"eos_token\":7}", INVAR_E_INVALID, "eos_token");
    expect_refused(parts, "[]", INVAR_E_INVALID, "tokenizer_config.json");
    expect_refused(parts, "{", INVAR_E_INVALID, "tokenizer_config.json");
    expect_refused(parts, "{\"added_tokens_decoder\":{\"260\":{\"content\":\"<eos>\"}}}",
                   INVAR_E_UNSUPPORTED, "\"<eos>\"");
    expect_refused(parts, "{\"added_tokens_decoder\":{\"259\":{\"content\":\"<new>\"}}}",
                   INVAR_E_UNSUPPORTED, "\"<new>\"");
    expect_refused(parts, "{\"added_tokens_decoder\":{\"x\":{\"content\":\"<eos>\"}}}",
                   INVAR_E_UNSUPPORTED, "\"<eos>\"");
}

static void test_tokenizer_parse__config_overrides_added_tokens(void **state)
{
    const tokenizer_json parts = {.added = "[" TOKENIZER_ADDED(259, "<eos>", TOKENIZER_FLAGS) "]"};
    static const char same[] = "{\"add_bos_token\":true,\"model_max_length\":512,"
                               "\"added_tokens_decoder\":{\"259\":{\"content\":\"<eos>\"," //
        TOKENIZER_FLAGS "}}}";
    static const char other[] = "{\"added_tokens_decoder\":{\"259\":{\"content\":\"<eos>\","
                                "\"lstrip\":true,\"special\":false}}}";
    invar_digest without, with;
    invar_tokenizer *t;

    (void)state;
    t = make_tokenizer(parts);
    EXPECT(t, "b  <eos>", 'b', ' ', ' ', 259);
    invar_tokenizer_hash(&without, t);
    invar_tokenizer_free(t);
    assert_ok(parse_parts(&t, parts, same));
    invar_tokenizer_hash(&with, t);
    assert_true(invar_digest_equal(&with, &without));
    invar_tokenizer_free(t);
    assert_ok(parse_parts(&t, parts, other));
    EXPECT(t, "b  <eos>", 'b', 259);
    assert_false(invar_tokenizer_special(t, 259));
    invar_tokenizer_hash(&with, t);
    assert_false(
        invar_digest_equal(&with, &without)); // settings that change tokens change the digest
    invar_tokenizer_free(t);
    expect_refused(parts,
                   "{\"added_tokens_decoder\":{\"259\":{\"content\":\"<eos>\",\"lstrip\":1}}}",
                   INVAR_E_INVALID, "lstrip");
}

static void test_tokenizer_read__names_the_file(void **state)
{
    char json[TOKENIZER_JSON_SIZE], folder[INVAR_PATH_SIZE], path[INVAR_PATH_SIZE];
    tokenizer_json parts = {0};
    invar_tokenizer *t;

    (void)state;
    snprintf(folder, sizeof folder, WORK "-%d", (int)getpid());
    assert_fails(invar_tokenizer_read(&t, folder), INVAR_E_NOTFOUND,
                 "tokenizer.json: it does not exist, and no other file");
    assert_ok(invar_held_folder_make(folder));
    assert_ok(invar_path_join(path, sizeof path, folder, "tokenizer.json"));
    assert_ok(invar_file_write(path, "{", 1));
    assert_fails(invar_tokenizer_read(&t, folder), INVAR_E_INVALID, "tokenizer.json");
    assert_ok(invar_file_write(path, json, tokenizer_json_write(json, &parts)));
    assert_ok(invar_tokenizer_read(&t, folder));
    assert_int_equal(invar_tokenizer_eos(t), -1);
    invar_tokenizer_free(t);
    assert_ok(invar_path_join(path, sizeof path, folder, "special_tokens_map.json"));
    assert_ok(invar_file_write(path, "{\"eos_token\": \"a\"}", 18));
    assert_ok(invar_tokenizer_read(&t, folder));
    assert_true(invar_tokenizer_eos(t) >= 0);
    invar_tokenizer_free(t);
    assert_ok(invar_held_folder_remove(folder));
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void test_tokenizer_encode__ignore_merges_takes_whole_words(void **state)
{
    // "xyz" is a token that no merge makes
    tokenizer_json parts = {.vocab = ",\"ab\":256,\"abc\":257,\"\xC4\xA0"
                                     "a\":258,\"xyz\":259"};
    invar_tokenizer *t = make_tokenizer(parts);

    (void)state;
    EXPECT(t, "xyz", 'x', 'y', 'z');
    invar_tokenizer_free(t);
    parts.model = ",\"ignore_merges\":true";
    t = make_tokenizer(parts);
    EXPECT(t, "xyz", 259);
    EXPECT(t, "xyza", 'x', 'y', 'z', 'a');
    invar_tokenizer_free(t);
}

/* A vocabulary without most bytes and options of its model; ids are those of tokenizers 0.23. */
static void test_tokenizer_encode__bytes_without_a_token(void **state)
{
    enum { A, B, UNK, Z, C4, A0, AB = 7 };
    static const struct {
        const char *text, *members;
        int32_t ids[6];
    } cases[] = {
        {"azb", "", {AB, -1}}, // a dropped character does not separate its neighbors
        {"zz", "", {-1}},
        {"azzb", ",\"unk_token\":null,\"fuse_unk\":true", {AB, -1}},
        {"azzb", ",\"unk_token\":\"<unk>\"", {A, UNK, UNK, B, -1}},
        {"azzb", ",\"unk_token\":\"<unk>\",\"fuse_unk\":true", {A, UNK, B, -1}},
        {"azzb", ",\"byte_fallback\":true", {A, Z, Z, B, -1}},
        // the character for a space has two bytes, which are its fallback
        {"xz b", ",\"byte_fallback\":true", {Z, C4, A0, B, -1}},
        {"xz b", ",\"byte_fallback\":true,\"unk_token\":\"<unk>\"", {Z, C4, A0, UNK, B, -1}},
        {"xzxb", ",\"byte_fallback\":true,\"unk_token\":\"<unk>\"", {Z, UNK, UNK, B, -1}},
        {"xzxb",
         ",\"byte_fallback\":true,\"unk_token\":\"<unk>\",\"fuse_unk\":true",
         {Z, UNK, B, -1}},
        {"ab", ",\"unk_token\":\"<none>\"", {AB, -1}},
        {"azb", ",\"unk_token\":\"<none>\"", {-2}}, // -2: an error is expected
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char json[1024];
        int bytes = snprintf(
            json, sizeof json,
            "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
            "\"use_regex\":false},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"merges\":"
            "[\"a b\"],\"vocab\":{\"a\":0,\"b\":1,\"<unk>\":2,\"<0x7A>\":3,\"<0xC4>\":4,"
            "\"<0xA0>\":5,\"<0x79>\":6,\"ab\":7}%s}}",
            cases[i].members);
        invar_tokenizer_source source = {"t.json", json, (size_t)bytes, NULL, 0};
        invar_tokenizer *t;
        int64_t count;
        int32_t *ids;
        assert_ok(invar_tokenizer_parse(&t, &source));
        if (cases[i].ids[0] == -2)
            assert_fails(invar_tokenizer_encode(&ids, &count, t, cases[i].text, 3), INVAR_E_INVALID,
                         "not in the tokenizer's vocabulary");
        else
            expect_ids(t, cases[i].text, cases[i].ids);
        invar_tokenizer_free(t);
    }
}

static void test_text_stream__shows_the_joined_text_without_byte_runs(void **state)
{
    static const struct {
        int32_t id;
        const char *text;
        size_t stable, skipping,
            unchanged; // `skipping`: stable bytes if special tokens are skipped
    } steps[] = {{'a', "a", 0, 1, 0},
                 {0xC3, "a", 0, 1, 1}, // an incomplete character is not shown
                 {0xA9, "a\xC3\xA9", 0, 3, 1},
                 {' ', "a\xC3\xA9 ", 0, 4, 3},
                 {259, "a\xC3\x83\xC2\xA9\xC4\xA0< >", 10, 4, 0},
                 {' ', "a\xC3\x83\xC2\xA9\xC4\xA0< >\xC4\xA0", 12, 5, 10}};
    // token 259 has a space after Replace, which is not a byte character
    invar_tokenizer *t = make_tokenizer((tokenizer_json){
        .added = "[" TOKENIZER_ADDED(259, "<\xE2\x96\x81>", TOKENIZER_FLAGS) "]",
        .decoder = DECODERS("{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}," //
                            REPLACE("\xE2\x96\x81", " ") ",{\"type\":\"ByteLevel\"}")});

    (void)state;
    for (int skip = 0; skip < 2; skip++) {
        invar_text_stream stream = {0};
        for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
            assert_ok(invar_text_stream_push(&stream, t, steps[i].id, skip));
            assert_int_equal(stream.stable_bytes, skip ? steps[i].skipping : steps[i].stable);
            if (skip)
                continue;
            assert_string_equal(stream.text, steps[i].text);
            assert_int_equal(stream.bytes, strlen(steps[i].text));
            assert_int_equal(stream.unchanged_bytes, steps[i].unchanged);
        }
        assert_ok(invar_text_stream_flush(&stream, t));
        assert_string_equal(stream.text, skip ? "a\xC3\xA9  " : steps[5].text);
        assert_int_equal(stream.stable_bytes, stream.bytes);
        invar_text_stream_release(&stream);
    }
    invar_tokenizer_free(t);
}

static void test_text_stream__invalid_byte_runs_change(void **state)
{
    // 256 and 257 are the bytes of U+00E9, 258 is a space, 259 is never valid; "_" decodes to a
    // space
    invar_tokenizer *t = make_tokenizer((tokenizer_json){
        .vocab = ",\"<0xC3>\":256,\"<0xA9>\":257,\"<0x20>\":258,\"<0xFF>\":259",
        .merges = "[]",
        .decoder = DECODERS(
            REPLACE("_", " ") ",{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
                              "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}")});
    static const struct {
        int32_t id;
        const char *text;
        size_t stable, unchanged;
    } steps[] = {{'_', "", 0, 0},
                 {'_', " ", 1, 0},
                 {256, " ", 1, 1}, // an incomplete character is not shown
                 {257, " \xC3\xA9", 1, 1},
                 {258, " \xC3\xA9 ", 1, 3},
                 {259, " " R R R R, 13, 1},
                 {257, " " R R R R R, 16, 13},
                 {'a', " " R R R R R "a", 17, 16},
                 {257, " " R R R R R "a" R, 20, 17}};
    invar_text_stream stream = {0};

    (void)state;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        assert_ok(invar_text_stream_push(&stream, t, steps[i].id, false));
        assert_string_equal(stream.text, steps[i].text);
        assert_int_equal(stream.bytes, strlen(steps[i].text));
        assert_int_equal(stream.stable_bytes, steps[i].stable);
        assert_int_equal(stream.unchanged_bytes, steps[i].unchanged);
    }
    invar_text_stream_release(&stream);
    // a run at the start, whose space was stripped, shows the space as U+FFFD when it is invalid
    assert_ok(invar_text_stream_push(&stream, t, 258, false));
    assert_string_equal(stream.text, "");
    assert_ok(invar_text_stream_push(&stream, t, 256, false));
    assert_ok(invar_text_stream_flush(&stream, t));
    assert_string_equal(stream.text, R R);
    invar_text_stream_release(&stream);
    invar_tokenizer_free(t);
}

/* Expected pieces end with "_"; the pattern matches digits. */
static void test_split_next__every_behavior(void **state)
{
    static const struct {
        const char *name, *expected, *inverted;
    } cases[] = {
        {"Removed", "a_bc_", "1_2_3_4_5_"},
        {"Isolated", "1_a_2_3_4_bc_5_", "1_a_2_3_4_bc_5_"},
        {"Contiguous", "1_a_234_bc_5_", "1_a_234_bc_5_"},
        {"MergedWithPrevious", "1_a2_3_4_bc5_", "1a_2_3_4bc_5_"},
        {"MergedWithNext", "1a_2_3_4bc_5_", "1_a2_3_4_bc5_"},
    };
    static const char text[] = "1a234bc5";
    invar_splitter splitter = {.pattern = INVAR_PATTERN_DIGIT};

    (void)state;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        char pieces[32];
        size_t begin, end, at = 0, used = 0;
        assert_true(invar_behavior_find(&splitter.behavior, cases[i / 2].name));
        splitter.invert = i % 2;
        while (invar_split_next(&begin, &end, &at, &splitter, text, sizeof text - 1)) {
            memcpy(pieces + used, text + begin, end - begin);
            used += end - begin;
            pieces[used++] = '_';
        }
        pieces[used] = '\0';
        assert_string_equal(pieces, i % 2 ? cases[i / 2].inverted : cases[i / 2].expected);
    }
    assert_false(invar_behavior_find(&splitter.behavior, "removed"));
}

static void test_tokenizer_encode__split_spellings_agree(void **state)
{
    tokenizer_json parts = {.pre_tokenizer = TOKENIZER_SPLIT(TOKENIZER_QWEN2, "Removed", "true")};
    invar_tokenizer *t = make_tokenizer(parts);

    (void)state;
    EXPECT(t, "abc  a", 257, ' ', 258);
    invar_tokenizer_free(t);
    // without a pattern, words extend across spaces
    parts.pre_tokenizer = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}";
    t = make_tokenizer(parts);
    EXPECT(t, "a a ab", 258, 258, ' ', 256);
    invar_tokenizer_free(t);
}

static void test_tokenizer_encode__refuses_what_is_not_utf8(void **state)
{
    static const char *const bad[] = {"\xFF",         "a\x80",    "\xC0\x80",
                                      "\xED\xA0\x80", "\xE2\x82", "\xF4\x90\x80\x80"};
    invar_tokenizer *t = make_tokenizer((tokenizer_json){0});
    int64_t count;
    int32_t *ids;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(invar_tokenizer_encode(&ids, &count, t, bad[i], strlen(bad[i])),
                     INVAR_E_INVALID, "is not UTF-8");
    assert_ok(invar_tokenizer_encode(&ids, &count, t, "a\0b", 3));
    assert_int_equal(count, 3);
    assert_int_equal(ids[1], 0);
    invar_free(ids);
    invar_tokenizer_free(t);
}

/* Encodes repetitions of `piece` up to `bytes` bytes, then `rest`. Returns the CPU seconds. */
static double encode_long(const invar_tokenizer *t, const char *piece, size_t bytes,
                          const char *rest)
{
    size_t length = strlen(piece), total = bytes / length * length;
    struct timespec begin, end;
    int64_t count;
    int32_t *ids;
    char *text;

    assert_ok(INVAR_ALLOC(text, total + strlen(rest), "text"));
    for (size_t i = 0; i < total; i++)
        text[i] = piece[i % length];
    memcpy(text + total, rest, strlen(rest));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    assert_ok(invar_tokenizer_encode(&ids, &count, t, text, total + strlen(rest)));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    assert_true(count > 0);
    invar_free(ids);
    invar_free(text);
    return (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
}

static void encode_all_long(invar_tokenizer *t)
{
    static const char *const pieces[][2] = {
        {"a", ""},
        {" ", "x"},
        {"\n", "x"},
        {" \n", "x"},
        {"1", ""},
        {"<|", ""},
        {"<|aaaaaaaaaaaaaaaaaaaaaaaaa", ""},
        {"\xCC\x81", "\xCC\xA3"}, // marks not in canonical order
        {"\xCC\x81\xCC\xA3", ""},
        {"\xE1\xBE\x82", ""}, // three marks on a letter
        {"'", ""}};
    double max_seconds = 0;
    size_t bytes = (size_t)invar_test_count(1 << 18, 1 << 20);

    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        double seconds = encode_long(t, pieces[i][0], bytes, pieces[i][1]);
        max_seconds = seconds > max_seconds ? seconds : max_seconds;
    }
    // hundredths of a second, more under a sanitizer; quadratic time would take a minute or more
    assert_true(max_seconds < (invar_test_full() ? 20 : 5));
    invar_tokenizer_free(t);
}

static void test_tokenizer_encode__long_texts_take_no_square_time(void **state)
{
    static const char added[] = "[" TOKENIZER_ADDED(
        258, "<|aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa|>", TOKENIZER_FLAGS) //
        "," TOKENIZER_ADDED(259, "  ",
                            "\"single_word\":true,\"lstrip\":true,\"rstrip\":true,"
                            "\"normalized\":false,\"special\":false") "]";
    // "aa" and "aaaa" are merges, so that a word of a's uses the heap
    tokenizer_json parts = {.normalizer = "{\"type\":\"NFC\"}",
                            .vocab = ",\"aa\":256,\"aaaa\":257",
                            .merges = "[\"a a\",\"aa aa\"]",
                            .added = added};

    (void)state;
    encode_all_long(make_tokenizer(parts));
    // character-level models with Metaspace words, and with one word for the complete text
    parts.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKD\"},"
                       "{\"type\":\"Lowercase\"},{\"type\":\"Prepend\",\"prepend\":\"_\"}]}";
    parts.pre_tokenizer = METASPACE("\"replacement\":\"_\"");
    parts.model = ",\"byte_fallback\":true,\"unk_token\":\"a\"";
    encode_all_long(make_tokenizer(parts));
    parts.pre_tokenizer = "null";
    encode_all_long(make_tokenizer(parts));
}

static void test_tokenizer_encode__one_long_word_has_the_right_ids(void **state)
{
    invar_tokenizer *t = make_tokenizer(
        (tokenizer_json){.vocab = ",\"aa\":256,\"aaaa\":257", .merges = "[\"a a\",\"aa aa\"]"});
    char text[1003];
    int64_t count;
    int32_t *ids;

    (void)state;
    memset(text, 'a', sizeof text);
    assert_ok(invar_tokenizer_encode(&ids, &count, t, text, sizeof text));
    assert_int_equal(count, 252); // 250 "aaaa", one "aa", one "a"
    for (int i = 0; i < 250; i++)
        assert_int_equal(ids[i], 257);
    assert_int_equal(ids[250], 256);
    assert_int_equal(ids[251], 'a');
    invar_free(ids);
    invar_tokenizer_free(t);
}

/* Repetitions of `piece` have at least invar_tokenizer_min_tokens tokens. */
static void check_min_tokens(const invar_tokenizer *t, const char *piece)
{
    char text[6000];
    size_t length = strlen(piece), bytes = sizeof text / length * length;
    int64_t count;
    int32_t *ids;

    for (size_t i = 0; i < bytes; i++)
        text[i] = piece[i % length];
    assert_ok(invar_tokenizer_encode(&ids, &count, t, text, bytes));
    assert_true(count >= invar_tokenizer_min_tokens(t, bytes));
    assert_true(invar_tokenizer_min_tokens(t, bytes) > 0);
    invar_free(ids);
}

#define LONG "aaaaaaaaaaaaaaaa"

static void test_tokenizer_min_tokens__of_texts_that_become_short(void **state)
{
    static const struct {
        const char *normalizer, *piece;
    } cases[] = {
        {NULL, LONG},
        {NULL, "<" LONG ">"},
        {"{\"type\":\"NFC\"}", "\xE1\xBE\xBE\xCC\x88\xCC\x81"}, // 7 bytes become 2
        {"{\"type\":\"NFC\"}", "\xE2\x84\xAA"},                 // the Kelvin sign becomes K
        {"{\"type\":\"NFKC\"}", "\xF0\x9D\x92\x82"},            // a mathematical letter becomes a
        {"{\"type\":\"Lowercase\"}", "\xE2\x84\xAA"},
        {REPLACE(LONG LONG, "a"), LONG},
        {"{\"type\":\"Prepend\",\"prepend\":\"_\"}", LONG},
    };
    static const char added[] = "[" TOKENIZER_ADDED(258, "<" LONG ">", TOKENIZER_FLAGS) "]";
    tokenizer_json parts = {
        .vocab = ",\"aa\":256,\"aaaa\":257", .merges = "[\"a a\",\"aa aa\"]", .added = added};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        invar_tokenizer *t;

        parts.normalizer = cases[i].normalizer;
        t = make_tokenizer(parts);
        check_min_tokens(t, cases[i].piece);
        invar_tokenizer_free(t);
    }
}

static void test_tokenizer_min_tokens__is_0_if_text_is_dropped(void **state)
{
    static const tokenizer_json cases[] = {
        {.normalizer = "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}"},
        {.normalizer = "{\"type\":\"StripAccents\"}"},
        {.normalizer = REPLACE("a", "")},
        {.pre_tokenizer = TOKENIZER_SPLIT(TOKENIZER_QWEN2, "Removed", "true")},
        {.pre_tokenizer = METASPACE("\"replacement\":\"_\"")}, // a character may have no token
        {.added = "[" TOKENIZER_ADDED(259, "<a>",
                                      "\"single_word\":false,\"lstrip\":true,\"rstrip\":false,"
                                      "\"normalized\":false,\"special\":true") "]"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        invar_tokenizer *t = make_tokenizer(cases[i]);

        assert_int_equal(invar_tokenizer_min_tokens(t, 1 << 20), 0);
        invar_tokenizer_free(t);
    }
}

static void test_tokenizer_max_bytes__grows_with_the_normalized_text(void **state)
{
    static const char text[] = "aaaaaa", other[] = "\xC3\xA9\xC3\xA9\xC3\xA9";
    invar_tokenizer *plain = make_tokenizer((tokenizer_json){0});
    invar_tokenizer *form = make_tokenizer((tokenizer_json){.normalizer = "{\"type\":\"NFKC\"}"});
    uint64_t base_bytes = invar_tokenizer_max_bytes(plain, "", 0), text_bytes = 6 * (uint64_t)44;

    (void)state;
    assert_int_equal(invar_tokenizer_max_bytes(plain, text, 6) - base_bytes, text_bytes);
    assert_int_equal(invar_tokenizer_max_bytes(plain, other, 6) - base_bytes, text_bytes);
    assert_int_equal(invar_tokenizer_max_bytes(form, text, 6) - base_bytes, text_bytes);
    assert_int_equal(invar_tokenizer_max_bytes(form, other, 6) - base_bytes, 11 * text_bytes);
    invar_tokenizer_free(plain);
    invar_tokenizer_free(form);
}

static void test_tokenizer_hash__is_of_the_file(void **state)
{
    invar_tokenizer *a = make_tokenizer((tokenizer_json){0}),
                    *b = make_tokenizer((tokenizer_json){0});
    invar_tokenizer *c = make_tokenizer((tokenizer_json){.normalizer = "{\"type\":\"NFC\"}"});
    invar_digest ha, hb, hc;

    (void)state;
    invar_tokenizer_hash(&ha, a);
    invar_tokenizer_hash(&hb, b);
    invar_tokenizer_hash(&hc, c);
    assert_true(invar_digest_equal(&ha, &hb));
    assert_false(invar_digest_equal(&ha, &hc));
    invar_tokenizer_free(a);
    invar_tokenizer_free(b);
    invar_tokenizer_free(c);
}

/* ---- the built-in alphabet ------------------------------------------------------------------- */

static void test_tokenizer_alphabet__round_trip(void **state)
{
    const int32_t ids[] = {1, 0, 3, 2, 99, -1};
    invar_tokenizer *t;
    size_t bytes;
    char *text;
    int64_t count;
    int32_t *got;

    (void)state;
    assert_ok(invar_tokenizer_alphabet(&t, "01+="));
    assert_int_equal(invar_tokenizer_size(t), 5);
    assert_int_equal(invar_tokenizer_eos(t), 4);
    assert_true(invar_tokenizer_special(t, 4));
    assert_false(invar_tokenizer_special(t, 3));
    assert_false(invar_tokenizer_special(t, 5));
    EXPECT(t, "1+0=", 1, 2, 0, 3);
    assert_ok(invar_tokenizer_encode(&got, &count, t, "", 0));
    assert_int_equal(count, 0);
    invar_free(got);
    assert_fails(invar_tokenizer_encode(&got, &count, t, "1x", 2), INVAR_E_INVALID,
                 "byte 1 of the text, at \"x\"");
    assert_fails(invar_tokenizer_encode(&got, &count, t, "\xC3\xA9", 2), INVAR_E_INVALID, "byte 0");
    assert_ok(invar_tokenizer_decode(&text, &bytes, t, ids, 6, false));
    assert_string_equal(text, "10=+");
    assert_int_equal(bytes, 4);
    invar_free(text);
    invar_tokenizer_free(t);
    assert_fails(invar_tokenizer_alphabet(&t, "abca"), INVAR_E_INVALID,
                 "'a' is in an alphabet twice");
    assert_fails(invar_tokenizer_alphabet(&t, "a\n"), INVAR_E_INVALID, "0x0A");
    assert_fails(invar_tokenizer_alphabet(&t, "\xC3\xA9"), INVAR_E_INVALID, "0xC3");
    assert_fails(invar_tokenizer_alphabet(&t, ""), INVAR_E_INVALID, "0 characters");
}

/* ---- streams --------------------------------------------------------------------------------- */

static void push_bytes(invar_text_stream *stream, const invar_tokenizer *t, const char *bytes)
{
    for (; *bytes; bytes++)
        assert_ok(invar_text_stream_push(stream, t, (unsigned char)*bytes, false));
}

static void test_text_stream__shows_whole_characters_only(void **state)
{
    invar_tokenizer *t = make_tokenizer((tokenizer_json){0});
    invar_text_stream stream = {0};

    (void)state;
    push_bytes(&stream, t, "a\xF0\x9F\x98");
    assert_string_equal(stream.text, "a");
    assert_int_equal(stream.joined.n_pending, 3);
    push_bytes(&stream, t, "\x80");
    assert_string_equal(stream.text, "a\xF0\x9F\x98\x80");
    push_bytes(&stream, t, "\xE2\x82");
    assert_ok(invar_text_stream_flush(&stream, t));
    assert_string_equal(stream.text, "a\xF0\x9F\x98\x80\xEF\xBF\xBD");
    assert_ok(invar_text_stream_flush(&stream, t));
    assert_int_equal(stream.bytes, 8);
    invar_text_stream_release(&stream);
    assert_ok(invar_text_stream_flush(&stream, t));
    assert_string_equal(stream.text, "");
    invar_text_stream_release(&stream);
    invar_tokenizer_free(t);
}

static void test_text_stream__replaces_like_the_unicode_standard(void **state)
{
    // cases from the tables of the Unicode Standard, section 3.9
    static const char *const cases[][2] = {
        {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", R R R R R R R R "A"},
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", R R R R R R R R "A"},
        {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", R R R R R "A" R R "B"},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", R R R R "A"},
    };
    invar_tokenizer *t = make_tokenizer((tokenizer_json){0});

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        invar_text_stream stream = {0};
        push_bytes(&stream, t, cases[i][0]);
        assert_string_equal(stream.text, cases[i][1]);
        invar_text_stream_release(&stream);
    }
    invar_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer_parse__small),
        cmocka_unit_test(test_tokenizer_parse__refuses_unknown_parts),
        cmocka_unit_test(test_tokenizer_parse__refuses_options_of_the_model),
        cmocka_unit_test(test_tokenizer_parse__refuses_damage),
        cmocka_unit_test(test_tokenizer_parse__refuses_unsupported_added_tokens),
        cmocka_unit_test(test_tokenizer_parse__reads_eos),
        cmocka_unit_test(test_tokenizer_parse__config_overrides_added_tokens),
        cmocka_unit_test(test_tokenizer_read__names_the_file),
        cmocka_unit_test(test_tokenizer_encode__ignore_merges_takes_whole_words),
        cmocka_unit_test(test_tokenizer_encode__bytes_without_a_token),
        cmocka_unit_test(test_text_stream__shows_the_joined_text_without_byte_runs),
        cmocka_unit_test(test_text_stream__invalid_byte_runs_change),
        cmocka_unit_test(test_split_next__every_behavior),
        cmocka_unit_test(test_tokenizer_encode__split_spellings_agree),
        cmocka_unit_test(test_tokenizer_encode__refuses_what_is_not_utf8),
        cmocka_unit_test(test_tokenizer_encode__long_texts_take_no_square_time),
        cmocka_unit_test(test_tokenizer_encode__one_long_word_has_the_right_ids),
        cmocka_unit_test(test_tokenizer_min_tokens__of_texts_that_become_short),
        cmocka_unit_test(test_tokenizer_min_tokens__is_0_if_text_is_dropped),
        cmocka_unit_test(test_tokenizer_max_bytes__grows_with_the_normalized_text),
        cmocka_unit_test(test_tokenizer_hash__is_of_the_file),
        cmocka_unit_test(test_tokenizer_alphabet__round_trip),
        cmocka_unit_test(test_text_stream__shows_whole_characters_only),
        cmocka_unit_test(test_text_stream__replaces_like_the_unicode_standard),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
