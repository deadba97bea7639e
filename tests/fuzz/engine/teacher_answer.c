/*
 * teacher_answer.c - fuzz target: the response of a teacher's server.
 *
 * It is rejected with one printable line that names the key, or all its numbers are
 * log-probabilities and the fingerprint of the server's model is printable.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "engine/ext/server/remote_teacher.h"
#include "tests/fuzz/fuzz.h"

enum { COUNT = 4, FIRST_TOKEN = 1 };

static const char *text_of(size_t *bytes_out, const void *payload, int32_t token)
{
    static const char *const texts[] = {"1", ",", " ab", "\xf0"};

    (void)payload;
    *bytes_out = strlen(texts[token]);
    return texts[token];
}

static void check_line(const char *line)
{
    for (; *line; line++)
        INVAR_CHECK((unsigned char)*line >= 0x20 && *line != 0x7F);
}

static void fuzz(double temperature, const char *earlier, const char *data, size_t size)
{
    static const int32_t tokens[COUNT] = {0, 1, 2, 3};
    const invar_token_text_fn token_text = {text_of, NULL, COUNT};
    const invar_plugin_sample asked = {
        .tokens = tokens, .n_tokens = COUNT, .prompt_tokens = FIRST_TOKEN, .index = 3};
    const invar_logprob_expectation expectation = {"opd-teacher-url", temperature, &token_text,
                                                   earlier};
    char fingerprint[INVAR_REMOTE_TEACHER_FINGERPRINT_SIZE];
    float logp[COUNT - FIRST_TOKEN];
    invar_status status =
        invar_remote_teacher_read(logp, fingerprint, &expectation, &asked, data, size);

    if (status != INVAR_OK) {
        INVAR_CHECK(status == INVAR_E_CORRUPT || (status == INVAR_E_STATE && earlier));
        INVAR_CHECK(strncmp(invar_error_last()->message, "opd-teacher-url: ", 17) == 0);
        check_line(invar_error_last()->message);
        return;
    }
    for (int i = 0; i < COUNT - FIRST_TOKEN; i++)
        INVAR_CHECK(isfinite(logp[i]) && logp[i] <= 0.0011f);
    INVAR_CHECK(memchr(fingerprint, '\0', sizeof fingerprint));
    check_line(fingerprint);
    INVAR_CHECK(!earlier || strcmp(fingerprint, earlier) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz(1.0, NULL, (const char *)data, size);
    fuzz(0.5, "ieee-fp32-0", (const char *)data, size);
    return 0;
}
