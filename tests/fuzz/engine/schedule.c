/*
 * schedule.c - fuzz target: the recorded schedule of an asynchronous run, in its file and in a
 * ledger.
 *
 * The input is read as the lines of a file after a valid head, as a complete file, and as the text
 * in a ledger. An accepted schedule has consecutive ticks and ascending groups and samples, and is
 * written and read again to the same bytes. The corpus is from real runs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/schedule_log.h"

#include <string.h>

#include "base/alloc.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"

static const char head[] = "{\"invar_schedule\":1,\"run\":\"00000000000000000000000000000000\"}\n";

static void check_tick(const invar_schedule_tick *tick, bool first, bool last)
{
    INVAR_CHECK((tick->has_batch || first) && (tick->has_unfinished || last));
    for (int64_t i = 0; i < tick->n_groups; i++)
        INVAR_CHECK(tick->groups[i] >= 0 && (i == 0 || tick->groups[i] > tick->groups[i - 1]));
    for (int64_t i = 0; i < tick->n_unfinished; i++) {
        INVAR_CHECK(tick->unfinished[i].sample >= 0 && tick->unfinished[i].tokens >= 0);
        INVAR_CHECK(i == 0 || tick->unfinished[i].sample > tick->unfinished[i - 1].sample);
    }
}

static void write_all(invar_json_text *out, const invar_schedule_log *ticks)
{
    for (int64_t i = 0; i < ticks->count; i++) {
        const invar_schedule_tick *tick = invar_schedule_log_find(ticks, ticks->first + i);

        check_tick(tick, i == 0, i + 1 == ticks->count);
        if (tick->has_batch)
            invar_schedule_log_write_batch(out, ticks->first + i, tick);
        if (tick->has_unfinished)
            invar_schedule_log_write_drawn(out, ticks->first + i, tick);
    }
    INVAR_CHECK(out->status == INVAR_OK);
}

static void check_schedule(const invar_schedule_log *ticks, invar_status status)
{
    invar_json_text first = {0}, second = {0};
    invar_schedule_log reread = {0};

    INVAR_CHECK(status == INVAR_OK || status == INVAR_E_CORRUPT);
    if (status != INVAR_OK) {
        fuzz_check_failure(status);
        return;
    }
    write_all(&first, ticks);
    INVAR_CHECK(invar_schedule_log_read(&reread, first.bytes ? first.data : "", first.bytes,
                                        "fuzz") == INVAR_OK);
    write_all(&second, &reread);
    INVAR_CHECK(first.bytes == second.bytes &&
                (first.bytes == 0 || memcmp(first.data, second.data, first.bytes) == 0));
    INVAR_CHECK(ticks->count == 0 ||
                invar_schedule_log_end(ticks) == invar_schedule_log_end(&reread));
    invar_schedule_log_release(&reread);
    invar_json_text_release(&first);
    invar_json_text_release(&second);
}

static void read_file(const char *text, size_t bytes)
{
    invar_schedule_log ticks = {0};
    invar_schedule_log_head found;
    invar_status status = invar_schedule_log_read_file(&ticks, &found, text, bytes, "fuzz");

    check_schedule(&ticks, status);
    invar_schedule_log_release(&ticks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    invar_schedule_log ticks = {0};
    char *text;

    INVAR_CHECK(INVAR_ALLOC(text, sizeof head + size, "fuzz") == INVAR_OK);
    memcpy(text, head, sizeof head - 1);
    if (size)
        memcpy(text + sizeof head - 1, data, size);
    read_file(text, sizeof head - 1 + size);
    read_file(text + sizeof head - 1, size);
    check_schedule(&ticks, invar_schedule_log_read(&ticks, text + sizeof head - 1, size, "fuzz"));
    invar_schedule_log_release(&ticks);
    invar_free(text);
    return 0;
}
