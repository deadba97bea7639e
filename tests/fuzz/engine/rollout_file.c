/*
 * rollout_file.c - fuzz target: a rollout file with a valid trailer, whatever its other lines.
 *
 * The input is the file without its last line, which rollout_text.h adds. An accepted file is
 * written and read again to the same bytes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/file/rollout_file.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "tests/fuzz/engine/rollout_text.h"
#include "tests/fuzz/fuzz.h"

static void check_refusal(invar_status status)
{
    const char *message = invar_error_last()->message;

    INVAR_CHECK(status == INVAR_E_CORRUPT || status == INVAR_E_UNSUPPORTED);
    INVAR_CHECK(strncmp(message, "fuzz:", 5) == 0);
    for (; *message; message++)
        INVAR_CHECK((unsigned char)*message >= 0x20 && *message != 0x7F);
}

static void check_samples(const invar_rollout_file *data)
{
    for (int64_t i = 0; i < data->samples.count; i++) {
        const invar_rl_sample *s = &data->samples.items[i];
        INVAR_CHECK(s->prompt_tokens >= 1 && s->prompt_tokens <= s->n_tokens);
        INVAR_CHECK(s->response[s->response_bytes] == '\0');
        INVAR_CHECK(s->data.metadata[0] == '{' && s->data.label && s->data.prompt);
    }
}

/* Writes, reads and writes the samples again. Both files must have the same bytes. */
static void check_round_trip(const invar_rollout_file *data)
{
    char path[64], *first, *second;
    size_t first_bytes, second_bytes;
    invar_rollout_file reread;

    snprintf(path, sizeof path, "fuzz-rollout-%d", (int)getpid());
    INVAR_CHECK(invar_rollout_file_write(path, &data->header, data->samples.items,
                                         data->samples.count) == INVAR_OK);
    INVAR_CHECK(invar_file_read(&first, &first_bytes, path, 1 << 24) == INVAR_OK);
    INVAR_CHECK(invar_rollout_file_read(&reread, path) == INVAR_OK);
    INVAR_CHECK(invar_rollout_file_write(path, &reread.header, reread.samples.items,
                                         reread.samples.count) == INVAR_OK);
    INVAR_CHECK(invar_file_read(&second, &second_bytes, path, 1 << 24) == INVAR_OK);
    INVAR_CHECK(first_bytes == second_bytes && memcmp(first, second, first_bytes) == 0);
    unlink(path);
    invar_rollout_file_release(&reread);
    invar_free(first);
    invar_free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    invar_rollout_file parsed;
    size_t bytes;
    char *text = rollout_text(&bytes, data, size);
    invar_status status = invar_rollout_file_parse(&parsed, "fuzz", text, bytes);

    if (status == INVAR_OK) {
        check_samples(&parsed);
        check_round_trip(&parsed);
        invar_rollout_file_release(&parsed);
    } else {
        check_refusal(status);
    }
    invar_free(text);
    return 0;
}
