/*
 * completion_request.c - fuzz target: the body of a completion request, for texts and for chats.
 *
 * The body is rejected with one printable line, or all its fields are in range and consistent.
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

static void check_prompts(const invar_completion_request *request)
{
    INVAR_CHECK(request->n >= 1 &&
                request->n_prompts * request->n <= INVAR_COMPLETION_REQUEST_MAX_CHOICES);
    for (int64_t i = 0; i < request->n_prompts; i++) {
        const invar_completion_prompt *p = &request->prompts[i];
        INVAR_CHECK(!p->text == !!p->ids);
        for (int64_t n = 0; n < p->n_ids; n++)
            INVAR_CHECK(p->ids[n] >= 0);
    }
}

/* Checks the fields that a chat template reads. */
static void check_messages(const invar_completion_request *request)
{
    const json_t *message;
    size_t i;

    INVAR_CHECK(json_array_size(request->messages) > 0 && request->n_prompts == 0);
    INVAR_CHECK(!request->tools || json_is_array(request->tools));
    json_array_foreach(request->messages, i, message)
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
    invar_completion_request request;
    invar_status status =
        invar_completion_request_read(&request, kind, data, size, &sampling, NULL);

    if (status != INVAR_OK) {
        check_refusal(status);
    } else {
        check_sampling(&request.sampling);
        check_prompts(&request);
        INVAR_CHECK(!request.include_usage || request.stream);
        if (kind == INVAR_COMPLETION_REQUEST_CHAT)
            check_messages(&request);
    }
    invar_completion_request_release(&request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz(INVAR_COMPLETION_REQUEST_TEXT, (const char *)data, size);
    fuzz(INVAR_COMPLETION_REQUEST_CHAT, (const char *)data, size);
    return 0;
}
