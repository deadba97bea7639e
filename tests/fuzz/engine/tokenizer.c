/*
 * tokenizer.c - fuzz target: tokenizer.json, tokenizer_config.json and a text of any bytes.
 *
 * The input is these three, separated by 0xFF, a byte that UTF-8 never has. The first two are
 * rejected with a proper message, or make a tokenizer whose ids are in range and whose streamed
 * text is its decoded text. Control: a valid tokenizer of this file must decode every text to
 * itself.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/tokenizer/tokenizer.h"

#include <string.h>

#include "base/alloc.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"
#include "tests/tokenizer_json.h"

/* Cuts off the part before the first mark and the mark. Returns "" if nothing is left. */
static const char *next_part(size_t *bytes_out, const uint8_t **data, size_t *size)
{
    const char *begin = (const char *)*data;
    const uint8_t *mark = *size ? memchr(*data, 0xFF, *size) : NULL;

    *bytes_out = mark ? (size_t)(mark - *data) : *size;
    *data = mark ? mark + 1 : *data + *size;
    *size -= *bytes_out + (mark != NULL);
    return *bytes_out ? begin : "";
}

static void check_stream(const invar_tokenizer *t, const int32_t *ids, int64_t count, bool skip,
                         const char *text, size_t bytes)
{
    invar_text_stream stream = {0};

    for (int64_t i = 0; i < count; i++) {
        INVAR_CHECK(invar_text_stream_push(&stream, t, ids[i], skip) == INVAR_OK);
        // text reported as stable does not change
        INVAR_CHECK(stream.stable_bytes <= stream.bytes && stream.stable_bytes <= bytes);
        INVAR_CHECK(stream.stable_bytes == 0 ||
                    memcmp(stream.text, text, stream.stable_bytes) == 0);
    }
    INVAR_CHECK(invar_text_stream_flush(&stream, t) == INVAR_OK);
    INVAR_CHECK(stream.bytes == bytes && memcmp(stream.text, text, bytes) == 0);
    invar_text_stream_release(&stream);
}

/* Encodes and decodes the text. If `exact` is set, decoding must give the same text. */
static void round_trip(const invar_tokenizer *t, const char *text, size_t bytes, bool exact)
{
    int32_t *ids;
    int64_t count;
    char *decoded;
    size_t length;
    invar_status status = invar_tokenizer_encode(&ids, &count, t, text, bytes);

    if (status != INVAR_OK) {
        fuzz_check_failure(status);
        return;
    }
    INVAR_CHECK(count >= invar_tokenizer_min_tokens(t, bytes));
    for (int64_t i = 0; i < count; i++)
        INVAR_CHECK(ids[i] >= 0 && ids[i] < invar_tokenizer_size(t));
    for (int skip = 0; skip < 2; skip++) {
        INVAR_CHECK(invar_tokenizer_decode(&decoded, &length, t, ids, count, skip) == INVAR_OK);
        INVAR_CHECK(!exact || (length == bytes && memcmp(decoded, text, bytes) == 0));
        check_stream(t, ids, count, skip, decoded, length);
        invar_free(decoded);
    }
    invar_free(ids);
}

static const invar_tokenizer *byte_tokenizer(void)
{
    static invar_tokenizer *t;
    static char json[TOKENIZER_JSON_SIZE];

    if (!t) {
        const tokenizer_json parts = {0};
        invar_tokenizer_source source = {"own", json, tokenizer_json_write(json, &parts), NULL, 0};
        INVAR_CHECK(invar_tokenizer_parse(&t, &source) == INVAR_OK);
    }
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    invar_tokenizer_source source = {.where = "fuzz"};
    invar_tokenizer *t;
    invar_status status;
    const char *text;
    size_t bytes;

    source.json = next_part(&source.json_bytes, &data, &size);
    source.config = next_part(&source.config_bytes, &data, &size);
    text = next_part(&bytes, &data, &size);
    if (source.config_bytes == 0)
        source.config = NULL;
    round_trip(byte_tokenizer(), text, bytes, true);
    status = invar_tokenizer_parse(&t, &source);
    if (status != INVAR_OK) {
        fuzz_check_failure(status);
        return 0;
    }
    round_trip(t, text, bytes, false);
    invar_tokenizer_free(t);
    return 0;
}
