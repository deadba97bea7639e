/*
 * teacher_answer.c - fuzz target: what a teacher's server answers.
 *
 * Whatever the bytes are, they are refused with one printable line that names the key, or all
 * numbers are log-probabilities, and the server's name for its model is printable.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "engine/ext/server/remote_teacher.h"
#include "tests/fuzz/fuzz.h"

enum { COUNT = 4, FIRST = 1 };

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
    const invar_token_text_fn words = {text_of, NULL, COUNT};
    const invar_logprob_request q = {tokens, COUNT, FIRST, 3};
    const invar_logprob_expectation e = {"opd-teacher-url", temperature, &words, earlier};
    char print[INVAR_REMOTE_TEACHER_FINGERPRINT_SIZE];
    float logp[COUNT - FIRST];
    invar_status status = invar_remote_teacher_read(logp, print, &e, &q, data, size);

    if (status != INVAR_OK) {
        INVAR_CHECK(status == INVAR_E_CORRUPT || (status == INVAR_E_STATE && earlier));
        INVAR_CHECK(strncmp(invar_error_last()->message, "opd-teacher-url: ", 17) == 0);
        check_line(invar_error_last()->message);
        return;
    }
    for (int i = 0; i < COUNT - FIRST; i++)
        INVAR_CHECK(isfinite(logp[i]) && logp[i] <= 0.0011f);
    INVAR_CHECK(memchr(print, '\0', sizeof print));
    check_line(print);
    INVAR_CHECK(!earlier || strcmp(print, earlier) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz(1.0, NULL, (const char *)data, size);
    fuzz(0.5, "ieee-fp32-0", (const char *)data, size);
    return 0;
}
