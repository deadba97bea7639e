/*
 * ledger_sql.c - fuzz target: the text of a read-only query, on any bytes.
 *
 * Whatever the query is, the ledger's file keeps its bytes, no other file appears in its folder,
 * and the time limit holds.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ledger/ledger.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"
#include "tests/ledger.h"

enum { LIMIT_MS = 50, GRACE_MS = 10000 }; // the grace is for sanitizers and busy machines

static char path[FUZZ_PATH_SIZE];
static invar_ledger *ledger;
static invar_digest initial_digest;
static int n_files;

static void hash_file(invar_digest *out)
{
    size_t size;
    uint8_t *data = fuzz_read(&size, path);

    invar_hash_bytes(out, data, size);
    free(data);
}

/*
 * Makes the ledger in the scratch folder and changes to that folder, so that a query with relative
 * names reaches it, too.
 */
static void make_ledger(void)
{
    fuzz_path(path, "");
    INVAR_CHECK(chdir(path) == 0);
    fuzz_path(path, "ledger.db");
    INVAR_CHECK(invar_test_ledger_write(path, &(invar_test_ledger){.steps = 3}) == INVAR_OK);
    INVAR_CHECK(invar_ledger_open(&ledger, path, NULL) == INVAR_OK);
    hash_file(&initial_digest);
    n_files = fuzz_count();
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Reads every byte, so that a sanitizer finds uninitialized or freed values. */
static invar_status read_row(void *payload, const char *const *columns,
                             const invar_ledger_value *values, int count)
{
    invar_digest *digest = payload;

    for (int i = 0; i < count; i++) {
        invar_hash_bytes(digest, columns[i], strlen(columns[i]));
        if (values && values[i].bytes > 0)
            invar_hash_bytes(digest, values[i].data, values[i].bytes);
        if (values && values[i].type == INVAR_LEDGER_TYPE_TEXT)
            INVAR_CHECK(((const char *)values[i].data)[values[i].bytes] == '\0');
    }
    return INVAR_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const invar_ledger_argument arguments[] = {
        {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = 1}},
        {"text", {.type = INVAR_LEDGER_TYPE_TEXT, .data = "train/loss", .bytes = 10}}};
    char *text = malloc(size + 1);
    invar_digest row, after;
    invar_status status;
    int64_t start;

    if (!ledger)
        make_ledger();
    INVAR_CHECK(text);
    memcpy(text, data, size);
    text[size] = '\0';
    start = now_ms();
    status = invar_ledger_select(ledger, &(invar_ledger_select_request){.sql = text,
                                                                        .arguments = arguments,
                                                                        .n_arguments = 2,
                                                                        .limit_ms = LIMIT_MS,
                                                                        .row = read_row,
                                                                        .payload = &row});
    INVAR_CHECK(now_ms() - start < LIMIT_MS + GRACE_MS);
    if (status != INVAR_OK)
        fuzz_check_failure(status);
    hash_file(&after);
    INVAR_CHECK(invar_digest_equal(&initial_digest, &after));
    INVAR_CHECK(fuzz_count() == n_files);
    free(text);
    return 0;
}
