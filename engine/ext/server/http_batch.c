/*
 * http_batch.c - posts many JSON requests, a limited number at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/server/http_batch.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#define BATCH_SIZE 256 /* requests whose responses are in memory together */

static invar_status write_bodies(invar_json_text *text, invar_http_exchange *exchanges,
                                 const invar_http_batch *q, size_t first, size_t count)
{
    size_t at = 0;

    invar_json_text_reset(text);
    for (size_t i = 0; i < count; i++) {
        size_t before = text->bytes;

        q->write(text, first + i, q->payload);
        invar_json_text_newline(text);
        exchanges[i] = (invar_http_exchange){
            .bytes = text->bytes - before,
            .max_response_bytes =
                q->max_response_bytes ? q->max_response_bytes(first + i, q->payload) : 0};
    }
    INVAR_TRY(text->status);
    for (size_t i = 0; i < count; at += exchanges[i++].bytes)
        exchanges[i].body = text->data + at;
    return INVAR_OK;
}

static invar_status post_requests(invar_json_text *text, invar_http_exchange *exchanges,
                                  invar_http *server, const invar_http_batch *q, size_t first,
                                  size_t count)
{
    invar_status status = write_bodies(text, exchanges, q, first, count);

    if (status == INVAR_OK)
        status = invar_http_post(server, exchanges, count);
    for (size_t i = 0; i < count; i++) {
        const invar_http_exchange *e = &exchanges[i];
        if (status == INVAR_OK)
            status = q->read(first + i, e->reply ? e->reply : "", e->reply_bytes, q->payload);
        invar_free(e->reply);
    }
    return status;
}

invar_status invar_http_batch_run(invar_http *server, const invar_http_batch *q)
{
    invar_http_exchange exchanges[BATCH_SIZE];
    invar_json_text text = {0};
    invar_status status = INVAR_OK;

    memset(exchanges, 0, sizeof exchanges);
    for (size_t first = 0, count; first < q->count && status == INVAR_OK; first += count) {
        count = q->count - first < BATCH_SIZE ? q->count - first : BATCH_SIZE;
        status = post_requests(&text, exchanges, server, q, first, count);
    }
    invar_json_text_release(&text);
    return status;
}
