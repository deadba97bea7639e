/*
 * tokenizer_alloc.c - allocations of tokenizers and chat templates fail one at a time.
 *
 * Each failure must return INVAR_E_NOMEM with a message and leave no block (faulty.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "tests/fault/faulty.h"
#include "tests/tokenizer_json.h"

static char folder[] = INVAR_TEST_WORK "/tokenizer-alloc-XXXXXX";

static invar_status encode_and_decode(const invar_tokenizer *tokenizer, const char *text)
{
    invar_status status;
    int64_t count;
    int32_t *ids;
    char *decoded;
    size_t bytes;

    INVAR_TRY(invar_tokenizer_encode(&ids, &count, tokenizer, text, strlen(text)));
    status = invar_tokenizer_decode(&decoded, &bytes, tokenizer, ids, count, false);
    invar_free(ids);
    if (status == INVAR_OK)
        invar_free(decoded);
    return status;
}

static invar_status exercise_tokenizer(const tokenizer_json *parts)
{
    static const char text[] =
        "e\xCC\x81t\xC3\xA9 abc<s>ab cccccccccccccccccccccccccccccccccccccccc"
        "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc";
    static const char config[] = "{\"eos_token\":\"<s>\"}";
    static char json[TOKENIZER_JSON_SIZE];
    invar_tokenizer_source source = {"t.json", json, tokenizer_json_write(json, parts), config,
                                     strlen(config)};
    invar_tokenizer *tokenizer;
    invar_status status;

    INVAR_TRY(invar_tokenizer_parse(&tokenizer, &source));
    status = encode_and_decode(tokenizer, text);
    invar_tokenizer_free(tokenizer);
    return status;
}

/* Covers composition, a prefix space, added tokens and words that are one token. */
static invar_status exercise_bytes(void)
{
    static const tokenizer_json parts = {
        .normalizer = "{\"type\":\"NFC\"}",
        .pre_tokenizer = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}",
        .model = ",\"ignore_merges\":true",
        .added = "[" TOKENIZER_ADDED(259, "<s>", TOKENIZER_FLAGS) "]"};

    return exercise_tokenizer(&parts);
}

/* Covers every kind of normalizer, a metaspace, and a decoder that changes tokens. */
static invar_status exercise_characters(void)
{
    static const tokenizer_json parts = {
        .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKD\"},"
                      "{\"type\":\"StripAccents\"},{\"type\":\"Lowercase\"},{\"type\":\"Strip\","
                      "\"strip_left\":true,\"strip_right\":true},{\"type\":\"Prepend\",\"prepend\":"
                      "\"b\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\"t\"},\"content\":"
                      "\"cab\"}]}",
        .pre_tokenizer = "{\"type\":\"Metaspace\",\"replacement\":\"_\"}",
        .decoder = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaa\"}",
        .model = ",\"byte_fallback\":true",
        .added = "[" TOKENIZER_ADDED(259, "<s>",
                                     "\"single_word\":false,\"lstrip\":true,\"rstrip\":true,"
                                     "\"normalized\":true,\"special\":true") "]"};

    return exercise_tokenizer(&parts);
}

/* Covers a decoder that maps the joined tokens to bytes. */
static invar_status exercise_joined(void)
{
    static const tokenizer_json parts = {
        .added = "[" TOKENIZER_ADDED(259, "<s>", TOKENIZER_FLAGS) "]",
        .decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\","
                   "\"pattern\":{\"String\":\"b\"},\"content\":\"bb\"},{\"type\":\"ByteLevel\"}]}"};

    return exercise_tokenizer(&parts);
}

static invar_status exercise_alphabet(void)
{
    invar_tokenizer *tokenizer;
    invar_status status;

    INVAR_TRY(invar_tokenizer_alphabet(&tokenizer, "abc"));
    status = encode_and_decode(tokenizer, "cab");
    invar_tokenizer_free(tokenizer);
    return status;
}

static invar_status exercise_template(void)
{
    invar_chat_template *chat;
    invar_status status;
    size_t bytes;
    char *text;

    INVAR_TRY(invar_chat_template_open(&chat, folder, "", "{\"x\": 1}"));
    status = invar_chat_template_render(&text, &bytes, chat, "[{\"content\": \"a\"}]", "", false);
    invar_free(text);
    invar_chat_template_close(chat);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); // no child process is left
    return status;
}

static void test_fault_tokenizer__survives_lack_of_memory(void **state)
{
    (void)state;
    fail_each_allocation(exercise_bytes);
    fail_each_allocation(exercise_characters);
    fail_each_allocation(exercise_joined);
    fail_each_allocation(exercise_alphabet);
}

static void test_fault_template__survives_lack_of_memory(void **state)
{
    char path[INVAR_PATH_SIZE];

    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_ok(invar_path_join(path, sizeof path, folder, "chat_template.jinja"));
    assert_ok(invar_file_write(path, "{{ x }}", 7));
    fail_each_allocation(exercise_template);
    assert_ok(invar_held_folder_remove(folder));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fault_tokenizer__survives_lack_of_memory),
        cmocka_unit_test(test_fault_template__survives_lack_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
