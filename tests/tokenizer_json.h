/*
 * tokenizer_json.h - a small tokenizer.json for tests, any part of which can be replaced.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_TOKENIZER_JSON_H
#define INVAR_TESTS_TOKENIZER_JSON_H

#include <stdio.h>
#include <string.h>

#include "engine/text/unicode.h"

#define TOKENIZER_JSON_SIZE 16384

#define TOKENIZER_TAIL "|\\\\s+(?!\\\\S)|\\\\s+"
#define TOKENIZER_QWEN2                                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}"                \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+" TOKENIZER_TAIL
#define TOKENIZER_SPLIT(regex, behavior, invert)                                                   \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"        \
    "\"" regex "\"},\"behavior\":\"" behavior "\",\"invert\":" invert "},{\"type\":\"ByteLevel\"," \
    "\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}]}"
#define TOKENIZER_ADDED(id, content, flags) "{\"id\":" #id ",\"content\":\"" content "\"," flags "}"
#define TOKENIZER_FLAGS                                                                            \
    "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"                \
    "\"special\":true"

/* Members of the file as JSON text; NULL for those of the small tokenizer. */
typedef struct tokenizer_json {
    const char *normalizer, *pre_tokenizer, *post_processor, *decoder, *added;
    const char *vocab;  /* entries after the 256 bytes: ",\"ab\":256" */
    const char *merges; /* a list */
    const char *model;  /* more members of the model: ",\"dropout\":0.1" */
    const char *more;   /* more members of the file: ",\"truncation\":{}" */
} tokenizer_json;

static inline const char *tokenizer_json_or(const char *given, const char *fallback)
{
    return given ? given : fallback;
}

/* Writes the file and returns its length. Byte b has id b; "ab" has 256, "abc" 257, " a" 258. */
static inline size_t tokenizer_json_write(char out[TOKENIZER_JSON_SIZE],
                                          const tokenizer_json *parts)
{
    int at = snprintf(
        out, TOKENIZER_JSON_SIZE,
        "{\"version\":\"1.0\",\"added_tokens\":%s,\"normalizer\":%s,"
        "\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%s%s,"
        "\"model\":{\"type\":\"BPE\"%s,\"merges\":%s,\"vocab\":{",
        tokenizer_json_or(parts->added, "[]"), tokenizer_json_or(parts->normalizer, "null"),
        tokenizer_json_or(parts->pre_tokenizer,
                          TOKENIZER_SPLIT(TOKENIZER_QWEN2, "Isolated", "false")),
        tokenizer_json_or(parts->post_processor, "null"),
        tokenizer_json_or(parts->decoder, "{\"type\":\"ByteLevel\"}"),
        tokenizer_json_or(parts->more, ""), tokenizer_json_or(parts->model, ""),
        tokenizer_json_or(parts->merges, "[[\"a\",\"b\"],\"ab c\",[\"\xC4\xA0\",\"a\"]]"));

    for (unsigned byte = 0, moved = 0x100; byte < 256; byte++) {
        int printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
        char name[4];
        size_t bytes = invar_unicode_write(name, printable ? byte : moved);
        moved += !printable;
        at +=
            snprintf(out + at, TOKENIZER_JSON_SIZE - (size_t)at, "%s\"%s%.*s\":%u", byte ? "," : "",
                     byte == '"' || byte == '\\' ? "\\" : "", (int)bytes, name, byte);
    }
    at += snprintf(out + at, TOKENIZER_JSON_SIZE - (size_t)at, "%s}}}",
                   tokenizer_json_or(parts->vocab, ",\"ab\":256,\"abc\":257,\"\xC4\xA0"
                                                   "a\":258"));
    return (size_t)at;
}

#endif
