/*
 * ask.c - fuzz target: the body of a request to complete texts or chats.
 *
 * Whatever the bytes are, they are refused with one printable line, or all that they have given is
 * in range and holds together.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/sample/serve/completion_request.h"
#include "tests/fuzz/fuzz.h"

static void check_refusal(invar_status status)
{
    const char *message = invar_error_last()->message;

    INVAR_CHECK(status == INVAR_E_INVALID && *message);
    for (; *message; message++)
        INVAR_CHECK((unsigned char)*message >= 0x20 && *message != 0x7F);
}

static void check_sampling(const invar_sampling_params *p)
{
    INVAR_CHECK(p->temperature == 0.0f ||
                p->temperature >= (float)INVAR_COMPLETION_REQUEST_MIN_TEMPERATURE);
    INVAR_CHECK(p->temperature <= 100.0f);
    INVAR_CHECK(p->top_p > 0.0f && p->top_p <= 1.0f && p->min_p >= 0.0f && p->min_p <= 1.0f);
    INVAR_CHECK(p->top_k >= 0 && p->max_response >= -1 && p->min_response >= 0);
    INVAR_CHECK(p->n_stop >= 1 && p->n_stop <= 1 + INVAR_COMPLETION_REQUEST_MAX_STOPS);
    INVAR_CHECK(p->n_stop_ids >= 2 && p->n_stop_ids <= 2 + INVAR_COMPLETION_REQUEST_MAX_STOPS);
    for (int64_t i = 0; i < p->n_stop; i++)
        INVAR_CHECK(p->stop[i][0]);
    for (int64_t i = 0; i < p->n_stop_ids; i++)
        INVAR_CHECK(p->stop_ids[i] >= 0);
}

static void check_prompts(const invar_completion_request *ask)
{
    INVAR_CHECK(ask->n >= 1 && ask->n_prompts * ask->n <= INVAR_COMPLETION_REQUEST_MAX_CHOICES);
    for (int64_t i = 0; i < ask->n_prompts; i++) {
        const invar_completion_prompt *p = &ask->prompts[i];
        INVAR_CHECK(!p->text == !!p->ids);
        for (int64_t n = 0; n < p->n_ids; n++)
            INVAR_CHECK(p->ids[n] >= 0);
    }
}

/* As a chat template reads them. */
static void check_messages(const invar_completion_request *ask)
{
    const json_t *message;
    size_t i;

    INVAR_CHECK(json_array_size(ask->messages) > 0 && ask->n_prompts == 0);
    INVAR_CHECK(!ask->tools || json_is_array(ask->tools));
    json_array_foreach(ask->messages, i, message)
    {
        INVAR_CHECK(json_is_string(json_object_get(message, "role")));
        INVAR_CHECK(json_is_string(json_object_get(message, "content")));
    }
}

static void fuzz(invar_completion_kind kind, const char *data, size_t size)
{
    static const int32_t ids[] = {2, 0};
    static const char *const stops[] = {"end"};
    const invar_sampling_params sampling = {.temperature = 1.0f,
                                            .top_p = 1.0f,
                                            .stop_ids = ids,
                                            .n_stop_ids = 2,
                                            .stop = stops,
                                            .n_stop = 1};
    invar_completion_request ask;
    invar_status status = invar_completion_request_read(&ask, kind, data, size, &sampling, NULL);

    if (status != INVAR_OK) {
        check_refusal(status);
    } else {
        check_sampling(&ask.sampling);
        check_prompts(&ask);
        INVAR_CHECK(!ask.include_usage || ask.stream);
        if (kind == INVAR_COMPLETION_REQUEST_CHAT)
            check_messages(&ask);
    }
    invar_completion_request_release(&ask);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz(INVAR_COMPLETION_REQUEST_TEXT, (const char *)data, size);
    fuzz(INVAR_COMPLETION_REQUEST_CHAT, (const char *)data, size);
    return 0;
}
